"""Slow transcriptions of the losses with graded labels, one loop for one sum; autograd gives their gradients.

Each is written for one anchor with its scores, its labels and the set of its own candidates; ``average`` runs both
directions and averages them. The results are sums over anchors (``reduction="sum"``).
"""

import math

import torch


def same(i, j, image_ids):
    return i == j or (image_ids is not None and int(image_ids[i]) == int(image_ids[j]))


def average(anchor, similarity, relevance, image_ids, **arguments):
    size = len(similarity)
    value = similarity.sum() * 0
    for i in range(size):
        own = [j for j in range(size) if same(i, j, image_ids)]
        rows = None if relevance is None else relevance[i, :].tolist()
        columns = None if relevance is None else relevance[:, i].tolist()
        value = value + anchor(i, similarity[i, :], rows, own, **arguments) / 2
        value = value + anchor(i, similarity[:, i], columns, own, **arguments) / 2
    return value


def log_softmax(scores, temperature):
    top = max(scores).item() / temperature
    total = sum(torch.exp(score / temperature - top) for score in scores)
    return [score / temperature - top - torch.log(total) for score in scores]


def softmax_of(labels, temperature):
    top = max(labels)
    weights = [math.exp((label - top) / temperature) for label in labels]
    return [weight / sum(weights) for weight in weights]


def csa(similarity, relevance, image_ids=None, temperature=0.45, label_temperature=1.0):
    def anchor(i, scores, labels, own):
        logs, targets = log_softmax(scores, temperature), softmax_of(labels, label_temperature)
        return sum(p * (math.log(p) - log) for p, log in zip(targets, logs, strict=True) if p > 0)

    return average(anchor, similarity, relevance, image_ids)


def xclr(similarity, relevance, image_ids=None, temperature=0.1, label_temperature=0.1):
    def anchor(i, scores, labels, own):
        logs, targets = log_softmax(scores, temperature), softmax_of(labels, label_temperature)
        return sum(-p * log for p, log in zip(targets, logs, strict=True))

    return average(anchor, similarity, relevance, image_ids)


def cwcl(similarity, relevance, image_ids=None, temperature=0.05):
    def anchor(i, scores, labels, own):
        weights = [(label + 1) / 2 for label in labels]
        if sum(weights) == 0:
            return scores.sum() * 0
        logs = log_softmax(scores, temperature)
        return sum(-w * log for w, log in zip(weights, logs, strict=True)) / sum(weights)

    return average(anchor, similarity, relevance, image_ids)


def sigmoid_rank(scores, j, temperature, among=None):
    others = [k for k in (range(len(scores)) if among is None else among) if k != j]
    return 1 + sum((torch.sigmoid((scores[k] - scores[j]) / temperature) for k in others), scores.sum() * 0)


def ideal_dcg(gains):
    return sum(gain / math.log2(2 + place) for place, gain in enumerate(sorted(gains, reverse=True)))


def sndcg(similarity, relevance, image_ids=None, temperature=0.01):
    def anchor(i, scores, labels, own):
        graded = [1.0 if j == i else (1 + label) / 2 for j, label in enumerate(labels)]
        gains = [2**label - 1 for label in graded]
        ideal = ideal_dcg(gains)
        dcg = sum(gain / torch.log2(1 + sigmoid_rank(scores, j, temperature)) for j, gain in enumerate(gains))
        return 1 - dcg / ideal if ideal > 0 else scores.sum() * 0

    return average(anchor, similarity, relevance, image_ids)


def listmle(similarity, relevance, image_ids=None, temperature=1.0):
    def anchor(i, scores, labels, own):
        order = sorted(range(len(scores)), key=lambda j: (-labels[j], j))
        value = scores.sum() * 0
        for place, j in enumerate(order):
            rest = torch.stack([scores[k] / temperature for k in order[place:]])
            value = value + torch.logsumexp(rest, 0) - scores[j] / temperature
        return value

    return average(anchor, similarity, relevance, image_ids)


def rnc(similarity, relevance, image_ids=None, temperature=0.1):
    def anchor(i, scores, labels, own):
        value = scores.sum() * 0
        for j in range(len(scores)):
            rest = torch.stack([scores[k] / temperature for k in range(len(scores)) if labels[k] <= labels[j]])
            value = value + torch.logsumexp(rest, 0) - scores[j] / temperature
        return value / len(scores)

    return average(anchor, similarity, relevance, image_ids)


def lambda_loss(similarity, relevance, image_ids=None, weighting="lambdarank", sigma=1.0):
    def anchor(i, scores, labels, own):
        graded = [(1 + label) / 2 for label in labels]
        gains = [2**label - 1 for label in graded]
        ideal = ideal_dcg(gains)
        gains = [gain / ideal if ideal > 0 else 0.0 for gain in gains]
        order = sorted(range(len(scores)), key=lambda j: (-scores[j].item(), j))
        rank = {j: place + 1 for place, j in enumerate(order)}
        value = scores.sum() * 0
        for j in range(len(scores)):
            for k in range(len(scores)):
                if not labels[j] > labels[k]:
                    continue
                loss = -torch.nn.functional.logsigmoid(sigma * (scores[j] - scores[k]))
                if weighting == "none":
                    value = value + loss
                    continue
                weight = abs(1 / math.log2(1 + rank[j]) - 1 / math.log2(1 + rank[k]))
                if weighting == "ndcg2++":
                    d = abs(rank[j] - rank[k])
                    weight += 10 * abs(1 / math.log2(1 + d) - 1 / math.log2(2 + d))
                value = value + weight * abs(gains[j] - gains[k]) * loss / math.log(2)
        return value

    return average(anchor, similarity, relevance, image_ids)


def positives_of(labels, own, threshold):
    if labels is None:
        return own
    return [j for j, label in enumerate(labels) if j in own or label >= threshold - 1e-4]


def smooth_ap(similarity, relevance=None, image_ids=None, temperature=0.01, threshold=1.0):
    def anchor(i, scores, labels, own):
        positives = positives_of(labels, own, threshold)
        precisions = [
            sigmoid_rank(scores, p, temperature, positives) / sigmoid_rank(scores, p, temperature) for p in positives
        ]
        return 1 - sum(precisions) / len(positives) + scores.sum() * 0

    return average(anchor, similarity, relevance, image_ids)


def recall(
    similarity, relevance=None, image_ids=None, temperature=0.01, threshold=1.0, ks=(1, 5, 10), k_temperature=1.0
):
    def anchor(i, scores, labels, own):
        positives = positives_of(labels, own, threshold)
        value = 0
        for k in ks:
            hits = sum(torch.sigmoid((k - sigmoid_rank(scores, p, temperature)) / k_temperature) for p in positives)
            value = value + hits / min(k, len(positives))
        return 1 - value / len(ks) + scores.sum() * 0

    return average(anchor, similarity, relevance, image_ids)
