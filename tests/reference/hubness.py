"""Occurrences among the first k, and their skewness by its sums; queries in rows."""

import math


def hubness(scores, k):
    """Give skewness, highest occurrence and percentage of items that never occur."""
    items = len(scores[0])
    occurrence = [0] * items
    for row in scores:
        for item in sorted(range(items), key=lambda item: (-row[item], item))[:k]:
            occurrence[item] += 1
    mean = sum(occurrence) / items
    second = sum((count - mean) ** 2 for count in occurrence) / items
    third = sum((count - mean) ** 3 for count in occurrence) / items
    skew = third / second**1.5 if second else math.nan
    return skew, max(occurrence), 100 * occurrence.count(0) / items
