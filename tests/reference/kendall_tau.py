"""Kendall's tau by looking at every pair, as the definition reads."""

import math


def kendall_tau(scores, labels):
    """Give tau-a and tau-b of two sequences; nan where a denominator is zero."""
    n = len(scores)
    concordant = discordant = equal_scores = equal_labels = 0
    for i in range(n):
        for j in range(i + 1, n):
            order = (scores[i] > scores[j]) - (scores[i] < scores[j])
            truth = (labels[i] > labels[j]) - (labels[i] < labels[j])
            concordant += order * truth > 0
            discordant += order * truth < 0
            equal_scores += order == 0
            equal_labels += truth == 0
    pairs = n * (n - 1) // 2
    weight = math.sqrt((pairs - equal_scores) * (pairs - equal_labels))
    net = concordant - discordant
    return (net / pairs if pairs else math.nan, net / weight if weight else math.nan)
