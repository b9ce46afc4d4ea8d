"""Hard pairs at every window position at once: the limit of the sliding windows as the stride goes to 0.

The hinge of a window is piecewise constant in its position x (the lower edge): the negatives ``r < x`` change at the
labels, the positives ``r >= x + alpha`` at the labels less alpha. Between two neighbouring breakpoints the hard pair
stays the same, so the mean over all positions is a finite sum with the lengths of these intervals as weights.
"""

import torch
from torch import Tensor
from torch.nn import functional

from bcls.losses._extrema import GREATEST, LEAST, HardPairs


def limit_pairs(keys: Tensor, relevance: Tensor, alpha: float) -> tuple[HardPairs, Tensor]:
    """Hard pair and length of each interval of window positions in [-1, 1 - alpha]; rows are anchors.

    One sort an anchor: the labels and the labels less alpha are two sorted lists, which are merged.

    Args:
        keys: ``(B, B)`` from :func:`bcls.losses._extrema.cell_keys`.
        relevance: ``(B, B)``, contiguous.
        alpha: Width of the windows.

    Returns:
        Pairs of 2 B intervals an anchor, and the intervals' lengths, ``(B, 2 B)``; 0 without a pair.
    """
    size = relevance.shape[1]
    labels, order = relevance.sort(dim=1)
    ordered = keys.gather(1, order)
    highest = functional.pad(ordered.cummax(1).values, (1, 0), value=LEAST)  # of the negatives, a prefix of the order
    lowest = functional.pad(ordered.flip(1).cummin(1).values, (1, 0), value=GREATEST)  # of the positives, a suffix
    enters = labels.clamp(-1, 1 - alpha)  # from here on the label is negative
    leaves = (labels - alpha).clamp(min=-1)  # from here on it is no longer positive

    along = torch.arange(size, device=relevance.device)
    at_enters = along + torch.searchsorted(leaves, enters, right=False)
    at_leaves = along + torch.searchsorted(enters, leaves, right=True)
    both = torch.cat((enters, leaves), 1)
    points = both.scatter(1, torch.cat((at_enters, at_leaves), 1), both)
    entered = torch.zeros_like(both, dtype=torch.int64).scatter(1, at_enters, 1).cumsum(1)
    stayed = size - (torch.arange(1, 2 * size + 1, device=relevance.device) - entered)
    # No positive is left after the last point, so the last interval never counts.
    lengths = functional.pad(points.diff(dim=1), (0, 1))
    pairs = HardPairs(positive=lowest.gather(1, stayed), negative=highest.gather(1, entered))
    return pairs, lengths * pairs.valid
