"""Definitions that all backends share: tolerances, windows over the labels, settings of the fused losses."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from bcls._core import check_number, fail

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


class SoftNegatives(NamedTuple):
    """Settings of the binary term, ``scale * sum of [soft maximum - own + margin]_+`` over both directions (L_T-SN)."""

    margin: float = 0.2  #: between the score of the matching pair and the soft maximum of the negatives
    gamma: float = 50.0  #: hardness of the log-sum-exp
    average: bool = False  #: whether ``log(number of negatives) / gamma`` is subtracted
    scale: float = 1.0  #: factor of the sum: 1 for the equation of the paper, 1 / B for the mean

    @property
    def sharpness(self) -> float:
        """``gamma`` for powers of 2 instead of e, which are faster to compute."""
        return self.gamma * LOG2_E


@dataclass(frozen=True)
class Windows:
    """Settings of the continuous term, ``scale * sum of [hardest negative - hardest positive]_+`` over W windows."""

    alpha: float  #: width of a window
    beta: float  #: stride
    valid_only: bool  #: whether to divide by the number of non-empty windows of the anchor instead of W
    scale: float  #: factor of the sum: 1 for the sum of the paper, 1 / B for the mean, times the weight of the term

    @property
    def count(self) -> int:
        """Number of windows, W."""
        return window_count(self.alpha, self.beta)


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
    return Windows(alpha, beta, valid_only, check_number("scale", scale, "use 1 for the sum, 1 / B for the mean"))


@lru_cache(maxsize=64)
def window_tensors(windows: Windows, device: torch.device) -> tuple[Tensor, Tensor]:
    """Edges and weights on a device. Cached: the copy takes longer than the whole loss of a small batch.

    Returns:
        float64 ``(1 + tolerance, 1 / beta, alpha / beta)``, and the weight of each window, ``(W,)``.
    """
    edges = torch.tensor([1 + EDGE, 1 / windows.beta, windows.alpha / windows.beta], dtype=torch.float64)
    weights = torch.full((windows.count,), 1.0 if windows.valid_only else 1 / windows.count)
    return edges.to(device), weights.to(device)
