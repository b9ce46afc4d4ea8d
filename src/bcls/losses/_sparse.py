"""Hinges of hard pairs: few cells of the similarity matrix are read, and few get a gradient.

Being plain indexing, the result can be differentiated again and works under ``torch.func``.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bcls.kernels.values import is_planned
from bcls.losses._extrema import CELL, HardPairs
from bcls.losses._windows import wide

#: Number of windows from which finding runs costs less than reading every pair, as `make bench` shows.
_MANY = 64


class LinearSum(NamedTuple):
    """A sum of few cells: the loss is linear as long as the mined pairs stay the same."""

    cells: Tensor  #: (K,) int64, flat positions
    coefficients: Tensor  #: (K,)


def hinge_terms(pairs: HardPairs, weight: Tensor) -> LinearSum:
    """Weighted hinges without margin, ``sum of weight * [s_negative - s_positive]_+``, as a linear sum.

    Args:
        pairs: Mined pairs.
        weight: Of each pair ``(A, W)``, of each anchor ``(A, 1)``, or ``(1, 1)``.
    """
    if pairs.negative.shape[1] >= _MANY and not is_planned(pairs.negative):  # the number of runs depends on the data
        pairs, weight = runs(pairs, weight)
    wrong = pairs.wrong
    cells = torch.stack((pairs.negative, pairs.positive)).where(wrong, 0) & CELL
    weights = torch.where(wrong, weight, 0.0)
    return LinearSum(cells.flatten(), torch.stack((weights, -weights)).flatten())


def runs(pairs: HardPairs, weight: Tensor) -> tuple[HardPairs, Tensor]:
    """The same sum with one pair for each run of neighbouring windows that share it, and the run's whole weight.

    Running extrema over W windows change only O(log W) times, so for many windows few pairs are left.
    """
    windows = pairs.negative.shape[1]
    changes = (pairs.negative[:, 1:] != pairs.negative[:, :-1]) | (pairs.positive[:, 1:] != pairs.positive[:, :-1])
    ends = functional.pad(changes, (0, 1), value=True)
    last = ends.flatten().nonzero()[:, 0]
    if weight.shape[1] == 1:
        whole = last.diff(prepend=last.new_full((1,), -1))  # an anchor's last window always ends a run
        whole = whole * (weight[0] if len(weight) == 1 else weight[:, 0].index_select(0, last // windows))
    else:
        summed = weight.to(wide(weight)).flatten().cumsum(0)[last]
        whole = summed.diff(prepend=summed.new_zeros(1))
    return HardPairs(*(extrema.flatten().index_select(0, last) for extrema in pairs)), whole


def add_up(similarity: Tensor, terms: list[LinearSum]) -> Tensor:
    """The sum, differentiable: one gather, whose gradient is one scatter of as many numbers."""
    exact = wide(similarity)
    scores = similarity.flatten().gather(0, torch.cat([part.cells for part in terms])).to(exact)
    return (scores * torch.cat([part.coefficients for part in terms]).to(exact)).sum().to(similarity.dtype)


def hinges_with_margin(similarity: Tensor, pairs: HardPairs, weight: Tensor, margin: Tensor) -> Tensor:
    """``sum of weight * [s_negative - s_positive + margin]_+``: with a margin, values decide what is active."""
    valid = pairs.valid
    cells = torch.stack((pairs.negative, pairs.positive)).where(valid, 0) & CELL
    scores = similarity.flatten().gather(0, cells.flatten()).view(cells.shape)
    return ((scores[0] - scores[1] + margin).relu() * torch.where(valid, weight, 0.0)).sum()
