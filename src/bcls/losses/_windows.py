"""Sliding windows over the labels: which windows count a pair as positive, and which as negative.

Window m spans ``[lower_m, upper_m]``. A label at or above the upper edge is positive there, one below the lower edge
negative, one inside is neither. Since edges ascend, a label is positive in the windows before some number and negative
from some number on: two integers a pair say everything, and no loop over windows is needed.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bcls.kernels.settings import EDGE, window_count


class WindowBins(NamedTuple):
    """Of W windows, a pair is positive in all but the last ``beyond``, and negative from ``negative`` on; int64."""

    beyond: Tensor
    negative: Tensor


def wide(tensor: Tensor) -> torch.dtype:
    """float64, where the device has it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def empty_windows(lowest: float, beta: float) -> int:
    """How many windows, from the lowest one, no label can be a negative of; they contribute nothing.

    Example:
        >>> empty_windows(-0.25, 0.1)  # the windows from -0.9 to -0.3
        7
    """
    return math.floor((lowest + 1 + EDGE) / beta)


def sliding_bins(relevance: Tensor, alpha: float, beta: float, skipped: int = 0) -> WindowBins:
    """Bins of the paper's windows: ``lower_m = -1 + m * beta``, ``upper_m = lower_m + alpha``, m = 1 .. M.

    The edges are equally spaced, so a division finds the bin; in float64, so that it finds the right one.

    Args:
        relevance: Labels, any shape.
        alpha: Width of a window.
        beta: Stride.
        skipped: Windows left out in front; the next one is number 0.
    """
    windows = window_count(alpha, beta) - skipped
    steps = relevance.to(wide(relevance), copy=True).add_(1 + EDGE - skipped * beta).div_(beta)
    beyond = (windows + alpha / beta - steps).ceil_().long().clamp(0, windows)
    return WindowBins(beyond, steps.floor_().long().clamp(0, windows))


def threshold_bins(relevance: Tensor, thresholds: Tensor) -> WindowBins:
    """Bins of windows without width, one at each threshold: the rungs of a ladder.

    Args:
        relevance: ``(A, B)`` labels, rows are anchors.
        thresholds: ``(W,)`` ascending, or ``(A, W)`` for each anchor.
    """
    bins = torch.searchsorted(thresholds.contiguous(), relevance.contiguous(), right=True)
    return WindowBins(thresholds.shape[-1] - bins, bins)
