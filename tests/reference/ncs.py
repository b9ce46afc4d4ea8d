"""Normalised caption score of one query: sorted lists without the gold items, two means, one division."""

import math


def ncs(scores, values, gold, k):
    items = [item for item in range(len(scores)) if item not in gold]
    if not items:
        return math.nan
    found = [values[item] for item in sorted(items, key=lambda item: (-scores[item], item))[:k]]
    best = sorted((values[item] for item in items), reverse=True)[:k]
    return 100 * (sum(found) / len(found)) / (sum(best) / len(best) + 1e-10)
