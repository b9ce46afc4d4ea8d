"""What the kernels compute: soft negatives, windows over the labels, or both."""

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
#: Labels this close to 1 say "the same": cosines of equal captions round to 0.9999999.
SAME = 1e-4
#: More would only fill the memory: the sum has long met its limit.
MOST_WINDOWS = 20_000
LOG2_E = math.log2(math.e)


def check_alpha(alpha: float) -> float:
    """Check the width of windows, or the relaxation, in [0, 2)."""
    remedy = "the paper uses 0.2, the spread of similarities between captions of one image"
    alpha = check_number("alpha", alpha, remedy, low=0)
    if alpha >= 2:
        fail("alpha", "a number below 2, the width of the labels' range", alpha, remedy)
    return alpha


def check_stride(alpha: float, beta: float) -> None:
    """Check that between one and :data:`MOST_WINDOWS` windows fit; ``beta`` is above 0."""
    if (2 - alpha) / beta >= MOST_WINDOWS + 1:
        remedy = "bcls.losses.KendallWindowLoss with beta=0 is the exact limit, and cheaper"
        fail("beta", f"a stride with at most {MOST_WINDOWS} windows", beta, remedy)
    if window_count(alpha, beta) < 1:
        fail("beta", f"at most 2 - alpha = {2 - alpha:g}, so that one window fits", beta, "the paper uses 0.1")


def window_count(alpha: float, beta: float) -> int:
    """The paper's number of windows, M = (2 - alpha) / beta, rounded down.

    Example:
        >>> window_count(0.2, 0.1)
        18
    """
    return math.floor((2 - alpha) / beta + 1e-9)


@dataclass(frozen=True)
class SoftNegatives:
    """The binary half, ``scale * sum of [soft maximum - own + margin]_+`` over both directions (L_T-SN)."""

    margin: float = 0.2
    """How far the own pair must lie above the soft maximum of the negatives."""
    gamma: float = 50.0
    """Hardness of the log-sum-exp."""
    average: bool = False
    """Whether ``log(number of negatives) / gamma`` is subtracted."""
    scale: float = 1.0
    """Factor of the sum: 1 for the paper's equation, 1 / B for the mean."""

    def __post_init__(self) -> None:
        check_number("margin", self.margin, "every baseline uses 0.2", low=0)
        check_number("gamma", self.gamma, "the paper uses 50", above=0)
        check_number("scale", self.scale, "1 gives the sum, 1 / B the mean")

    @property
    def sharpness(self) -> float:
        """``gamma`` for powers of 2 instead of e, which devices are faster at."""
        return self.gamma * LOG2_E


@dataclass(frozen=True)
class Windows:
    """The continuous half, ``scale * sum of w_m [hardest negative - hardest positive + margin_m]_+`` over windows m."""

    count: int
    """Number of windows, W."""
    margins: tuple[float, ...]
    """Margin of each window."""
    weights: tuple[float, ...]
    """Weight of each window."""
    alpha: float = 0.0
    """Width of sliding windows; without thresholds."""
    beta: float = 0.0
    """Stride of sliding windows; without thresholds."""
    thresholds: tuple[float, ...] = ()
    """Ascending; windows of no width, one at each threshold, in place of sliding ones."""
    exclude_same: bool = False
    """Whether pairs of one image are never negatives; if not, the labels alone decide."""
    valid_only: bool = False
    """Whether an anchor's sum is divided by the number of its windows that have positives and negatives."""
    scale: float = 1.0
    """Factor of the sum: 1 for the paper's equation, 1 / B for the mean, times the weight of the half."""

    def __post_init__(self) -> None:
        check_whole("count", self.count, least=1)
        for argument in ("margins", "weights"):
            numbers = check_numbers(argument, getattr(self, argument), "give one a window", count=self.count)
            object.__setattr__(self, argument, tuple(numbers))  # a list could not be looked up, see `numbers_on`
        check_number("scale", self.scale, "1 gives the sum, 1 / B the mean")
        if not self.thresholds:
            check_alpha(self.alpha)
            check_number("beta", self.beta, "give the stride of sliding windows, or thresholds", above=0)
            return
        levels = check_numbers("thresholds", self.thresholds, "labels lie in [-1, 1]", count=self.count)
        if sorted(levels) != levels:
            fail("thresholds", "ascending numbers", self.thresholds, "sort them, and margins and weights along")
        object.__setattr__(self, "thresholds", tuple(levels))


class Halves(NamedTuple):
    """Settings of what is asked for; None for a half that is left out."""

    soft: SoftNegatives | None
    windows: Windows | None


def sliding_windows(alpha: float = 0.2, beta: float = 0.1, *, valid_only: bool = False, scale: float = 1.0) -> Windows:
    """The windows of L_K-SW-HS: ``[-1 + m beta, -1 + m beta + alpha]``, m = 1 .. M, M = floor((2 - alpha) / beta).

    Args:
        alpha: Width of a window, in [0, 2).
        beta: Stride, above 0.
        valid_only: Divide by the anchor's non-empty windows instead of by M.
        scale: Factor of the sum.

    Raises:
        ValueError: If no window fits, more than 20,000 do, or a number is out of its range.

    Example:
        >>> sliding_windows().count
        18
    """
    alpha = check_alpha(alpha)
    beta = check_number("beta", beta, "the paper uses 0.1", above=0)
    check_stride(alpha, beta)
    return _sliding(alpha, beta, valid_only, check_number("scale", scale, "1 gives the sum, 1 / B the mean"))


@lru_cache(maxsize=64)  # every step of a training asks for the same
def _sliding(alpha: float, beta: float, valid_only: bool, scale: float) -> Windows:
    count = window_count(alpha, beta)
    weight = 1.0 if valid_only else 1 / count
    return Windows(count, (0.0,) * count, (weight,) * count, alpha, beta, valid_only=valid_only, scale=scale)


def rungs(
    thresholds: Sequence[float], margins: Sequence[float], weights: Sequence[float], *, scale: float = 1.0
) -> Windows:
    """The rungs of the ladder loss, without its triplet part.

    Args:
        thresholds: Ascending, one for each rung.
        margins: One for each rung.
        weights: One for each rung.
        scale: Factor of the sum.

    Raises:
        ValueError: If the lists differ in length, are empty, or the thresholds do not ascend.
    """
    levels = check_numbers("thresholds", thresholds, "labels lie in [-1, 1]")
    if not levels:
        fail("thresholds", "at least one", thresholds, "labels lie in [-1, 1]")
    steps = check_numbers("margins", margins, "one for each threshold", count=len(levels))
    shares = check_numbers("weights", weights, "one for each threshold", count=len(levels))
    return Windows(len(levels), tuple(steps), tuple(shares), thresholds=tuple(levels), exclude_same=True, scale=scale)


@lru_cache(maxsize=64)
def numbers_on(windows: Windows, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Edges, margins and weights on a device, kept there: sending them costs more than a small batch's whole loss.

    Returns:
        float64 ``(1 + tolerance, 1 / beta, alpha / beta)``, or the thresholds in float32; margins and weights ``(W,)``.
    """
    if windows.thresholds:
        edges = torch.tensor(windows.thresholds, dtype=torch.float32)
    else:
        edges = torch.tensor([1 + EDGE, 1 / windows.beta, windows.alpha / windows.beta], dtype=torch.float64)
    return edges.to(device), torch.tensor(windows.margins).to(device), torch.tensor(windows.weights).to(device)
