"""Definitions that all backends share: tolerances, windows over the labels, settings of the fused losses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from bcls._core.errors import check_number, check_numbers, check_whole, fail

#: Tolerance at the edges of windows, so that a label of 0.3 in float32 lies on the edge 0.3.
EDGE = 1e-6
#: Labels this close to 1 mark the same caption: cosines of equal captions round to 0.9999999.
SAME = 1e-4
#: How far labels may lie outside [-1, 1] through rounding.
ROUNDING = 1e-4
#: Upper limit for the number of windows; with more, the sum is equal to its limit (beta=0) in practice.
MAX_WINDOWS = 20_000
LOG2_E = math.log2(math.e)


def check_alpha(alpha: float) -> float:
    """Check the width of the windows (or the relaxation of the dense loss), in [0, 2)."""
    hint = "the paper uses 0.2, the standard deviation of the similarities between captions of one image"
    alpha = check_number("alpha", alpha, hint, low=0)
    if alpha >= 2:
        fail("alpha", "a number below 2, the width of the labels' range", alpha, hint)
    return alpha


def check_stride(alpha: float, beta: float) -> None:
    """Check that ``beta``, which is above 0, gives between 1 and :data:`MAX_WINDOWS` windows."""
    if (2 - alpha) / beta >= MAX_WINDOWS + 1:
        hint = "bcls.losses.KendallWindowLoss with beta=0 computes the exact limit, at a lower cost"
        fail("beta", f"a stride with at most {MAX_WINDOWS} windows", beta, hint)
    if window_count(alpha, beta) < 1:
        fail("beta", f"at most 2 - alpha = {2 - alpha:g}, so that one window fits", beta, "the paper uses 0.1")


def window_count(alpha: float, beta: float) -> int:
    """The number of windows of the paper, M = (2 - alpha) / beta, rounded down.

    Example:
        >>> window_count(0.2, 0.1)
        18
    """
    return math.floor((2 - alpha) / beta + 1e-9)


@dataclass(frozen=True)
class SoftNegatives:
    """Settings of the binary term, ``scale * sum of [soft maximum - own + margin]_+`` over both directions (L_T-SN).

    Attributes:
        margin: Margin between the score of the matching pair and the soft maximum of the negatives.
        gamma: Hardness of the log-sum-exp.
        average: Whether ``log(number of negatives) / gamma`` is subtracted.
        scale: Factor of the sum: 1 for the equation of the paper, 1 / B for the mean.
    """

    margin: float = 0.2
    gamma: float = 50.0
    average: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("margin", self.margin, "every baseline uses 0.2", low=0)
        check_number("gamma", self.gamma, "the paper uses 50", above=0)
        check_number("scale", self.scale, "use 1 for the sum, 1 / B for the mean")

    @property
    def sharpness(self) -> float:
        """``gamma`` for powers of 2 instead of e, which are faster to compute."""
        return self.gamma * LOG2_E


@dataclass(frozen=True)
class Windows:
    """Settings of the continuous term, ``scale * sum of w_m [hardest negative - hardest positive + margin_m]_+``.

    Attributes:
        count: Number of windows, W.
        margins: Margin of each window.
        weights: Weight of each window.
        alpha: Width of sliding windows; ignored if ``thresholds`` are given.
        beta: Stride of sliding windows; ignored if ``thresholds`` are given.
        thresholds: Ascending. Windows of width 0, one at each threshold, instead of sliding ones.
        exclude_same: Whether pairs of the same image are never negatives; otherwise only the labels decide.
        valid_only: Whether the sum of an anchor is divided by the number of its windows that have positives and
            negatives.
        scale: Factor of the sum: 1 for the equation of the paper, 1 / B for the mean, times the weight of the term.
    """

    count: int
    margins: tuple[float, ...]
    weights: tuple[float, ...]
    alpha: float = 0.0
    beta: float = 0.0
    thresholds: tuple[float, ...] = ()
    exclude_same: bool = False
    valid_only: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_whole("count", self.count, least=1)
        for argument in ("margins", "weights"):
            numbers = check_numbers(argument, getattr(self, argument), "give one for each window", count=self.count)
            object.__setattr__(self, argument, tuple(numbers))  # hashable, for `window_tensors`
        check_number("scale", self.scale, "use 1 for the sum, 1 / B for the mean")
        if not self.thresholds:
            check_alpha(self.alpha)
            check_number("beta", self.beta, "give the stride of sliding windows, or thresholds", above=0)
            return
        levels = check_numbers("thresholds", self.thresholds, "labels lie in [-1, 1]", count=self.count)
        if sorted(levels) != levels:
            fail("thresholds", "ascending numbers", self.thresholds, "sort them together with margins and weights")
        object.__setattr__(self, "thresholds", tuple(levels))


class LossSettings(NamedTuple):
    """The terms to compute; None for a term that is not wanted."""

    soft: SoftNegatives | None
    windows: Windows | None


def sliding_windows(alpha: float = 0.2, beta: float = 0.1, *, valid_only: bool = False, scale: float = 1.0) -> Windows:
    """The windows of L_K-SW-HS: ``[-1 + m beta, -1 + m beta + alpha]``, m = 1 .. M, M = floor((2 - alpha) / beta).

    Args:
        alpha: Width of a window, in [0, 2).
        beta: Stride, above 0.
        valid_only: Divide by the number of non-empty windows of the anchor instead of M.
        scale: Factor of the sum.

    Raises:
        ValueError: If no window or more than 20,000 windows fit, or a number is out of range.

    Example:
        >>> sliding_windows().count
        18
    """
    alpha = check_alpha(alpha)
    beta = check_number("beta", beta, "the paper uses 0.1", above=0)
    check_stride(alpha, beta)
    return _sliding(alpha, beta, valid_only, scale)


@lru_cache(maxsize=64)  # every training step uses the same settings
def _sliding(alpha: float, beta: float, valid_only: bool, scale: float) -> Windows:
    count = window_count(alpha, beta)
    weight = 1.0 if valid_only else 1 / count
    return Windows(count, (0.0,) * count, (weight,) * count, alpha, beta, valid_only=valid_only, scale=scale)


def rungs(
    thresholds: Sequence[float], margins: Sequence[float], weights: Sequence[float], *, scale: float = 1.0
) -> Windows:
    """The thresholds of the ladder loss as windows of width 0, without its triplet term.

    Args:
        thresholds: Ascending.
        margins: One for each threshold.
        weights: One for each threshold.
        scale: Factor of the sum.

    Raises:
        ValueError: If the lists differ in length or are empty, or the thresholds are not ascending.
    """
    levels = tuple(check_numbers("thresholds", thresholds, "labels lie in [-1, 1]"))
    if not levels:
        fail("thresholds", "at least one threshold", thresholds, "labels lie in [-1, 1]")
    return Windows(len(levels), tuple(margins), tuple(weights), thresholds=levels, exclude_same=True, scale=scale)


@lru_cache(maxsize=64)
def window_tensors(windows: Windows, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Edges, margins and weights on a device. Cached: the copy takes longer than the whole loss of a small batch.

    Returns:
        float64 ``(1 + tolerance, 1 / beta, alpha / beta)`` or the thresholds in float32; margins and weights ``(W,)``.
    """
    if windows.thresholds:
        edges = torch.tensor(windows.thresholds, dtype=torch.float32)
    else:
        edges = torch.tensor([1 + EDGE, 1 / windows.beta, windows.alpha / windows.beta], dtype=torch.float64)
    return edges.to(device), torch.tensor(windows.margins).to(device), torch.tensor(windows.weights).to(device)
