"""Slow transcriptions of the paper's continuous losses, one loop for one sum; autograd gives their gradients.

Each is written for one anchor, with its scores and labels; ``both`` adds the two directions.
"""

import itertools
import math

from tests.reference.triplet import hinge, triplet_hard


def both(anchor_loss, similarity, relevance, **arguments):
    """Rows are image anchors, columns are caption anchors, of the same two matrices."""
    loss = similarity.sum() * 0
    for i in range(len(similarity)):
        loss = loss + anchor_loss(similarity[i, :], relevance[i, :].tolist(), **arguments)
        loss = loss + anchor_loss(similarity[:, i], relevance[:, i].tolist(), **arguments)
    return loss


def kendall(similarity, relevance, image_ids=None, alpha=0.2, margin=0.0, normalize="none"):
    def anchor(scores, labels):
        loss, triples = scores.sum() * 0, 0
        for j in range(len(scores)):
            for k in range(len(scores)):
                if labels[j] > labels[k] + alpha:
                    loss = loss + hinge(scores[k] - scores[j] + margin)
                    triples += 1
        return loss, triples

    value = similarity.sum() * 0
    size = len(similarity)
    for matrix, labels in ((similarity, relevance), (similarity.T, relevance.T)):
        direction, triples = similarity.sum() * 0, 0
        for i in range(size):
            loss, count = anchor(matrix[i], labels[i].tolist())
            direction, triples = direction + loss, triples + count
        value = value + (direction if normalize == "none" else direction / max(triples, 1) * size)
    return value


def window_edges(alpha, beta):
    windows = math.floor((2 - alpha) / beta + 1e-9)
    return [(-1 + m * beta, -1 + m * beta + alpha) for m in range(1, windows + 1)]


def split(scores, labels, lower, upper):
    """T_Pos and T_Neg of one window."""
    positives = [s for s, r in zip(scores, labels, strict=True) if r >= upper - 1e-6]
    negatives = [s for s, r in zip(scores, labels, strict=True) if r < lower - 1e-6]
    return positives, negatives


def kendall_window(similarity, relevance, image_ids=None, alpha=0.2, beta=0.1, mining="hard", window_norm="all"):
    edges = window_edges(alpha, beta)

    def anchor(scores, labels):
        loss, valid = scores.sum() * 0, 0
        for lower, upper in edges:
            positives, negatives = split(scores, labels, lower, upper)
            if not positives or not negatives:
                continue
            valid += 1
            if mining == "hard":
                loss = loss + hinge(max(negatives) - min(positives))
            else:
                for positive in positives:
                    for negative in negatives:
                        loss = loss + hinge(negative - positive)
        if mining == "none":
            return loss
        return loss / (len(edges) if window_norm == "all" else max(valid, 1))

    return both(anchor, similarity, relevance)


def kendall_limit(similarity, relevance, image_ids=None, alpha=0.2, window_norm="all"):
    """Mean over all window positions x in [-1, 1 - alpha]: an integral of a step function, from its breakpoints."""

    def anchor(scores, labels):
        points = {-1.0, 1 - alpha, *labels, *(label - alpha for label in labels)}
        points = sorted(x for x in points if -1 <= x <= 1 - alpha)
        loss, valid = scores.sum() * 0, 0.0
        for start, stop in itertools.pairwise(points):
            middle = (start + stop) / 2
            positives = [s for s, r in zip(scores, labels, strict=True) if r >= middle + alpha]
            negatives = [s for s, r in zip(scores, labels, strict=True) if r < middle]
            if positives and negatives:
                loss = loss + (stop - start) * hinge(max(negatives) - min(positives))
                valid += stop - start
        whole = 2 - alpha if window_norm == "all" else valid
        return loss / whole if whole > 0 else loss

    return both(anchor, similarity, relevance)


def ladder(similarity, relevance, image_ids=None, thresholds=(0.4,), margins=(0.2, 0.01), weights=(0.25,)):
    loss = triplet_hard(similarity, relevance, image_ids, margins[0])
    size = len(similarity)

    def same(i, j):
        return i == j or (image_ids is not None and image_ids[i] == image_ids[j])

    for i in range(size):
        for cells in ([(i, j) for j in range(size)], [(j, i) for j in range(size)]):
            for threshold, margin, weight in zip(thresholds, margins[1:], weights, strict=True):
                high = [similarity[c] for c in cells if float(relevance[c]) >= threshold]
                low = [similarity[c] for c in cells if float(relevance[c]) < threshold and not same(*c)]
                if high and low:
                    loss = loss + weight * hinge(margin - min(high) + max(low))
    return loss


def sam(similarity, relevance, image_ids=None, temperature=10.0, sampling="soft", weight=5.0, margin=0.2):
    loss = sam_margins(similarity, relevance, image_ids, temperature, sampling, weight)
    for i, cells in sam_negatives(similarity, relevance, image_ids):
        if cells:
            loss = loss + hinge(
                margin - similarity[i, i] + max(similarity[c] for c in cells)
            )  # the binary loss beside it
    return loss


def sam_margins(similarity, relevance, image_ids=None, temperature=10.0, sampling="soft", weight=5.0):
    """The adaptive part alone."""
    phi = relevance.tolist()
    loss = similarity.sum() * 0
    for i, cells in sam_negatives(similarity, relevance, image_ids):
        if not cells:
            continue
        # sorted() keeps the order of equal ones, so that the lower index comes first.
        ranked = sorted(cells, key=lambda c: similarity[c].item(), reverse=sampling != "least-similar")
        chosen = ranked[1] if sampling == "soft" and len(ranked) > 1 else ranked[0]
        adaptive = min(1.0, (phi[i][i] - phi[chosen[0]][chosen[1]]) / temperature)
        loss = loss + weight * hinge(similarity[chosen] - similarity[i, i] + adaptive)
    return loss


def sam_negatives(similarity, relevance, image_ids=None):
    """Each anchor with its negatives as cells of the matrix, by rows and by columns."""
    size = len(similarity)
    phi = relevance.tolist()

    def close(x, y):
        return abs(x - y) <= 1e-4 * max(abs(x), abs(y))

    def negative(i, j):
        if i == j or (image_ids is not None and image_ids[i] == image_ids[j]):
            return False
        return not (close(phi[i][j], phi[i][i]) and close(phi[j][i], phi[j][j]))

    for i in range(size):
        yield i, [(i, j) for j in range(size) if negative(i, j)]
        yield i, [(j, i) for j in range(size) if negative(j, i)]
