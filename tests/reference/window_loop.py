"""The window loss as one would first write it, a loop over windows; the rival in `make bench`."""

import torch


def loop_over_windows(similarity, relevance, alpha=0.2, beta=0.1, norm="all"):
    """The paper's loss by one pass over the matrices for each window; the plain path, vectorised over anchors only."""
    windows = int((2 - alpha) / beta + 1e-9)
    total = similarity.sum() * 0
    for scores, labels in ((similarity, relevance.double()), (similarity.T, relevance.double().T)):
        value = scores.new_zeros(len(scores))
        valid = scores.new_zeros(len(scores))
        for m in range(1, windows + 1):
            lower = -1 + m * beta
            positive = labels >= lower + alpha - 1e-6
            negative = labels < lower - 1e-6
            both = positive.any(1) & negative.any(1)
            lowest = scores.masked_fill(~positive, torch.inf).min(1).values
            highest = scores.masked_fill(~negative, -torch.inf).max(1).values
            value = value + torch.where(both, highest - lowest, 0).relu()
            valid = valid + both
        total = total + (value / (windows if norm == "all" else valid.clamp(min=1))).sum()
    return total
