"""Weighted sums of hinges over all ordered pairs of candidates, the plain way: blocks of anchors.

Both Kendall losses without mining have the form ``sum over (j, k) of w_jk [s_k - s_j + m]_+`` for each anchor. It is
linear in s wherever its pattern of active pairs stays the same, so integer counts of active pairs say everything:
``sum over k of c_k s_k + m * (number of active pairs)``, where c_k counts the active pairs in which k is the wrongly
higher one, less those in which it is the wrongly lower one. The counts are also the gradient.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bcls.losses._windows import wide

#: Cells of the (block, B, B) cube held at once: what a CPU's cache holds. An accelerator wants more to do at once.
_CELLS = 1 << 20
_MORE = 64


class Active(NamedTuple):
    """Active pairs of each candidate, weighted."""

    higher: Tensor  #: (B, B) int64, pairs in which the candidate scores too high
    lower: Tensor  #: (B, B) int64, pairs in which it scores too low


def count_in_blocks(scores: Tensor, reach: Tensor, floor: Tensor, margin: float, *, graded: bool) -> Active:
    """Count active pairs (j, k), ``reach_j > floor_k`` and ``s_j < s_k + margin``; O(B^3) time, O(B^2) memory.

    Args:
        scores: ``(B, B)``, rows are anchors.
        reach: ``(B, B)``; j should be above every k whose floor lies below its reach.
        floor: ``(B, B)``.
        margin: How far above.
        graded: Whether a pair weighs ``reach_j - floor_k`` instead of 1; for integers.
    """
    size = scores.shape[1]
    step = max(1, _CELLS * (1 if scores.device.type == "cpu" else _MORE) // size**2)
    # One place for all counts: small results between large temporaries would keep the memory of all blocks taken.
    # Like a sum of both inputs, so that vmap may batch either.
    higher, lower = (torch.empty_like(scores + reach, dtype=torch.int64) for _ in range(2))
    for start in range(0, scores.shape[0], step):
        block = slice(start, start + step)
        low, high = scores[block, :, None], scores[block, None, :] + margin  # (block, j, 1), (block, 1, k)
        active = (reach[block, :, None] > floor[block, None, :]) & (low < high)
        weight = torch.where(active, reach[block, :, None] - floor[block, None, :], 0) if graded else active
        higher[block], lower[block] = weight.sum(1), weight.sum(2)
    return Active(higher, lower)


def hinge_sum(scores: Tensor, active: Active, margin: float) -> Tensor:
    """The weighted hinges from the counts of active pairs, differentiable in ``scores``."""
    exact = wide(scores)
    counts = (active.higher - active.lower).to(exact)
    # The counts of an anchor add up to 0, so a common offset of its scores cancels: take it out before it costs digits.
    centred = scores.to(exact) - scores.detach().to(exact).mean(1, keepdim=True)
    return ((counts * centred).sum() + margin * active.higher.sum().to(exact)).to(scores.dtype)
