"""The hierarchical bootstrap of two small tables: all draws of seeds and images, one after another."""

from itertools import product
from math import sqrt


def widened(table):
    """Deviations of the seeds from their mean, times sqrt(S / (S - 1))."""
    seeds = len(table)
    if seeds == 1:
        return table
    factor = sqrt(seeds / (seeds - 1))
    means = [sum(column) / seeds for column in zip(*table, strict=True)]
    return [[mean + factor * (value - mean) for value, mean in zip(row, means, strict=True)] for row in table]


def every_difference(a, b):
    """The difference of the means for every possible draw; all draws are equally likely."""
    a, b = widened(a), widened(b)
    images = len(a[0])
    found = []
    for drawn in product(range(images), repeat=images):
        for seeds_a in product(range(len(a)), repeat=len(a)):
            for seeds_b in product(range(len(b)), repeat=len(b)):
                first = sum(a[seed][image] for seed in seeds_a for image in drawn) / (len(a) * images)
                second = sum(b[seed][image] for seed in seeds_b for image in drawn) / (len(b) * images)
                found.append(first - second)
    return found


def holm_rejects(p_values, level):
    """Whether each hypothesis is rejected: the smallest p-value first, each against the level shared by those left."""
    rejected, left = [False] * len(p_values), list(range(len(p_values)))
    while left:
        place = min(left, key=lambda one: p_values[one])
        if p_values[place] * len(left) > level:
            break
        rejected[place] = True
        left.remove(place)
    return rejected
