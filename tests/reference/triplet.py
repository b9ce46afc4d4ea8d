"""Slow transcriptions of the paper's binary losses, one loop for one sum; autograd gives their gradients."""

import math

import torch


def is_negative(i, j, relevance, image_ids):
    """Is the pair (V_i, T_j) a negative: r_ij < 1, not its own pair, not of one image."""
    if i == j or (image_ids is not None and image_ids[i] == image_ids[j]):
        return False
    return relevance is None or float(relevance[i, j]) < 1 - 1e-4


def _directions(similarity, relevance, image_ids):
    """For each direction and anchor: s(V_i, T_i) and the similarities of the negatives."""
    size = len(similarity)
    for i in range(size):
        yield similarity[i, i], [similarity[i, j] for j in range(size) if is_negative(i, j, relevance, image_ids)]
    for i in range(size):
        yield similarity[i, i], [similarity[j, i] for j in range(size) if is_negative(j, i, relevance, image_ids)]


def hinge(x):
    return torch.clamp(x, min=0)


def triplet(similarity, relevance=None, image_ids=None, margin=0.2):
    loss = similarity.sum() * 0
    for own, negatives in _directions(similarity, relevance, image_ids):
        for negative in negatives:
            loss = loss + hinge(negative - own + margin)
    return loss


def triplet_hard(similarity, relevance=None, image_ids=None, margin=0.2):
    loss = similarity.sum() * 0
    for own, negatives in _directions(similarity, relevance, image_ids):
        if negatives:
            loss = loss + hinge(margin - own + max(negatives))
    return loss


def triplet_soft(similarity, relevance=None, image_ids=None, margin=0.2, gamma=50.0, lse="sum"):
    loss = similarity.sum() * 0
    for own, negatives in _directions(similarity, relevance, image_ids):
        if negatives:
            # (1/gamma) log sum exp(gamma s), with the largest taken out so that exp does not overflow
            top = max(negatives).detach()
            soft = top + torch.log(sum(torch.exp(gamma * (s - top)) for s in negatives)) / gamma
            if lse == "mean":
                soft = soft - math.log(len(negatives)) / gamma
            loss = loss + hinge(soft - own + margin)
    return loss


def infonce(similarity, relevance=None, image_ids=None, temperature=0.05):
    loss = similarity.sum() * 0
    for own, negatives in _directions(similarity, relevance, image_ids):
        top = max([own, *negatives]).detach()
        denominator = sum(torch.exp((s - top) / temperature) for s in [own, *negatives])
        loss = loss - ((own - top) / temperature - torch.log(denominator)) / 2
    return loss


def sigmoid(similarity, relevance=None, image_ids=None, scale=10.0, bias=-10.0):
    loss = similarity.sum() * 0
    for i in range(len(similarity)):
        for j in range(len(similarity)):
            logit = scale * similarity[i, j] + bias
            if i == j:
                loss = loss - torch.nn.functional.logsigmoid(logit)
            elif is_negative(i, j, relevance, image_ids):
                loss = loss - torch.nn.functional.logsigmoid(-logit)
    return loss
