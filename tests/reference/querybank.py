"""Inverted softmax and QB-Norm with plain exponentials; queries in rows, gallery in columns."""

import math


def inverted_softmax(scores, bank, beta):
    sums = [sum(math.exp(beta * row[item]) for row in bank) for item in range(len(bank[0]))]
    return [[math.exp(beta * value) / sums[item] for item, value in enumerate(row)] for row in scores]


def qb_norm(scores, bank, beta, k):
    """Give the scores, and which queries were normalised."""
    hubs = set()
    for row in bank:
        hubs |= set(sorted(range(len(row)), key=lambda item: (-row[item], item))[:k])
    touched = [max(range(len(row)), key=lambda item: (row[item], -item)) in hubs for row in scores]
    softened = inverted_softmax(scores, bank, beta)
    return [soft if touch else row for soft, touch, row in zip(softened, touched, scores, strict=True)], touched
