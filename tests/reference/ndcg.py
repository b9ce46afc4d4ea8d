"""Normalised discounted cumulative gain, one query at a time and one item at a time."""

import math


def ndcg(scores, labels, k=None, exponential=False):
    """Of one query; nan where no label is above 0."""
    if k is None:
        k = sum(label > 0 for label in labels)
    by_score = sorted(range(len(scores)), key=lambda item: (-scores[item], item))
    by_label = sorted(range(len(scores)), key=lambda item: -labels[item])
    total = {}
    for name, order in (("found", by_score), ("ideal", by_label)):
        total[name] = 0.0
        for place, item in enumerate(order[:k], start=1):
            gain = math.expm1(labels[item] * math.log(2)) if exponential else labels[item]
            total[name] += gain / math.log2(place + 1)
    return total["found"] / total["ideal"] if total["ideal"] > 0 else math.nan
