"""Hard pairs of the window losses: the hardest positive and negative of every window, without a loop over windows.

Window m spans ``[lower_m, upper_m]``. A label at or above the upper edge is positive, one below the lower edge is
negative, one inside is neither. Since the edges ascend, a label is positive in the windows before some index and
negative from some index on: two integers for each pair describe all windows.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bcls._core.errors import fail
from bcls.losses.definitions import EDGE, is_traced, window_count

LEAST, GREATEST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
CELL = 0xFFFFFFFF
#: Numbers processed at once on a CPU: what fits into its cache. Accelerators and compilers process everything at once.
_CACHED = 1 << 17
#: Rows of a tile: more rows mean fewer columns, whose bins have to stay in the cache.
_ROWS = 512
#: Number of windows from which finding runs is faster than reading every pair, as `make bench` shows.
_MANY = 64


class WindowBins(NamedTuple):
    """Of W windows, a pair is positive in all but the last ``beyond``, and negative from ``negative`` on; int64."""

    beyond: Tensor
    negative: Tensor


def wide(tensor: Tensor) -> torch.dtype:
    """float64 if the device supports it, else float32."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def empty_windows(lowest: float, beta: float) -> int:
    """Number of windows, counted from the lowest, without any negative; they contribute nothing.

    Example:
        >>> empty_windows(-0.25, 0.1)  # the windows from -0.9 to -0.3
        7
    """
    return math.floor((lowest + 1 + EDGE) / beta)


def sliding_bins(relevance: Tensor, alpha: float, beta: float, skipped: int = 0) -> WindowBins:
    """Bins of the windows of the paper: ``lower_m = -1 + m * beta``, ``upper_m = lower_m + alpha``, m = 1 .. M.

    The edges are equally spaced, so a division gives the bin; in float64, so that it is the right one.

    Args:
        relevance: Labels, any shape.
        alpha: Width of a window.
        beta: Stride.
        skipped: Number of windows to leave out at the lower end; the next one gets index 0.
    """
    windows = window_count(alpha, beta) - skipped
    steps = relevance.to(wide(relevance), copy=True).add_(1 + EDGE - skipped * beta).div_(beta)
    beyond = (windows + alpha / beta - steps).ceil_().long().clamp(0, windows)
    return WindowBins(beyond, steps.floor_().long().clamp(0, windows))


def threshold_bins(relevance: Tensor, thresholds: Tensor) -> WindowBins:
    """Bins of windows of width 0, one at each threshold, as in the ladder loss.

    Args:
        relevance: ``(A, B)`` labels, rows are anchors.
        thresholds: ``(W,)`` ascending, or ``(A, W)`` for each anchor.
    """
    bins = torch.searchsorted(thresholds.contiguous(), relevance.contiguous(), right=True)
    return WindowBins(thresholds.shape[-1] - bins, bins)


#: Bins of a tile (rows, columns), with rows as anchors and with columns as anchors.
Binner = Callable[[slice, slice], tuple[WindowBins, WindowBins]]


class HardPairs(NamedTuple):
    """One pair of cells for each anchor and window, as keys of :func:`cell_keys`."""

    positive: Tensor  #: (A, W) int64, the least similar positive; the greatest integer if there is none
    negative: Tensor  #: (A, W) int64, the most similar negative; the least integer if there is none

    @property
    def valid(self) -> Tensor:
        """(A, W) bool, False if the window has no positive or no negative."""
        return (self.negative != LEAST) & (self.positive != GREATEST)

    @property
    def wrong(self) -> Tensor:
        """(A, W) bool, True if both exist and the negative is more similar than the positive."""
        return (self.negative >> 32) > (self.positive >> 32)


def mine(similarity: Tensor, bins_of: Binner, windows: int) -> Iterator[HardPairs]:
    """Extrema of every window in O(B^2 + B W): one scatter into bins, then a running maximum and minimum.

    Args:
        similarity: ``(B, B)``, without gradient.
        bins_of: Returns the bins of a tile.
        windows: Number of windows, W.

    Yields:
        Pairs of a block of anchors: first all rows (image to text), then all columns (text to image).
    """
    size = similarity.shape[0]
    ranks = cell_ranks(similarity)
    # One bin more than windows, for pairs that are in none; like `similarity` so that vmap can batch them.
    blank = torch.empty_like(similarity[:1, :1], dtype=torch.int64).expand(2 * size, windows + 1)
    hardest, easiest = torch.full_like(blank, LEAST), torch.full_like(blank, GREATEST)
    for rows in blocks(size, _CACHED // _ROWS, similarity):
        for columns in blocks(size, min(size, _ROWS), similarity):
            keys = cell_keys(similarity, ranks, rows, columns)
            along_row, along_column = bins_of(rows, columns)
            hardest[rows].scatter_reduce_(1, along_row.negative, keys, "amax")
            easiest[rows].scatter_reduce_(1, along_row.beyond, keys, "amin")
            hardest[size:][columns].T.scatter_reduce_(0, along_column.negative, keys, "amax")
            easiest[size:][columns].T.scatter_reduce_(0, along_column.beyond, keys, "amin")
    for anchors in blocks(2 * size, windows + 1, similarity):
        # Negatives of a window: the bins up to its own. Positives: the same, counted from the last window.
        negative = hardest[anchors, :-1].cummax(1).values
        positive = easiest[anchors, :-1].cummin(1).values.flip(1)
        yield HardPairs(positive, negative)


def blocks(size: int, width: int, like: Tensor) -> Iterator[slice]:
    """Slices of ``size`` anchors with ``width`` numbers each."""
    cached = like.device.type == "cpu" and not torch.compiler.is_compiling()
    step = max(1, _CACHED // width) if cached else size
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def cell_ranks(similarity: Tensor) -> Tensor | None:
    """Ranks of numbers that do not fit into 32 bits, equal for equal numbers; None for float32, whose bits suffice."""
    short = similarity.dtype == torch.float32
    largest = 65_536 if short else 46_340  # rank and cell share 64 bits
    if similarity.shape[0] > largest:
        fail("similarity", f"at most {largest} pairs of {similarity.dtype}", similarity.shape[0], "use a smaller batch")
    return None if short else torch.unique(similarity, return_inverse=True)[1]


def cell_keys(
    similarity: Tensor, ranks: Tensor | None, rows: slice = slice(None), columns: slice = slice(None)
) -> Tensor:
    """Integers that sort like the similarities and carry their cell: ``rank << 32 | flat position``.

    One integer maximum then gives value and position together, for rows and for columns.

    Args:
        similarity: ``(B, B)``.
        ranks: From :func:`cell_ranks`.
        rows: Rows to return keys of.
        columns: Columns to return keys of.
    """
    places = torch.arange(similarity.shape[0], device=similarity.device)
    cells = places[rows, None] * similarity.shape[1] + places[columns]
    if ranks is None:
        bits = similarity[rows, columns].contiguous().view(torch.int32)
        # The bits of a negative float are a sign and its magnitude; this also gives -0.0 and 0.0 the same rank.
        return (torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits).long() << 32) | cells
    return (ranks[rows, columns] << 32) | cells


def limit_pairs(keys: Tensor, relevance: Tensor, alpha: float) -> tuple[HardPairs, Tensor]:
    """Hard pairs at all window positions in [-1, 1 - alpha]: the limit of the sliding windows as the stride tends to 0.

    The hinge of a window is piecewise constant in its position x (the lower edge): the negatives ``r < x`` change at
    the labels, the positives ``r >= x + alpha`` at the labels minus alpha. Between neighboring breakpoints the hard
    pair stays the same, so the mean over all positions is a finite sum weighted by the lengths of these intervals.

    Args:
        keys: ``(B, B)`` from :func:`cell_keys`; rows are anchors.
        relevance: ``(B, B)``, contiguous.
        alpha: Width of the windows.

    Returns:
        Pairs of 2 B intervals per anchor, and the lengths of the intervals, ``(B, 2 B)``; 0 without a pair.
    """
    size = relevance.shape[1]
    labels, order = relevance.sort(dim=1)
    ordered = keys.gather(1, order)
    highest = functional.pad(ordered.cummax(1).values, (1, 0), value=LEAST)  # of negatives, a prefix of the order
    lowest = functional.pad(ordered.flip(1).cummin(1).values, (1, 0), value=GREATEST)  # of positives, a suffix
    enters = labels.clamp(-1, 1 - alpha)  # from here on the label is negative
    leaves = (labels - alpha).clamp(min=-1)  # from here on it is no longer positive

    points, order = torch.cat((enters, leaves), 1).sort(dim=1, stable=True)
    entered = (order < size).cumsum(1)
    stayed = size - (torch.arange(1, 2 * size + 1, device=relevance.device) - entered)
    # There is no positive after the last point, so the last interval never counts.
    lengths = functional.pad(points.diff(dim=1), (0, 1))
    pairs = HardPairs(positive=lowest.gather(1, stayed), negative=highest.gather(1, entered))
    return pairs, lengths * pairs.valid


def hinge_terms(pairs: HardPairs, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted hinges without margin, ``sum of weight * [s_negative - s_positive]_+``, as a weighted sum of cells.

    Args:
        pairs: Mined pairs.
        weight: Weight of each pair ``(A, W)``, of each anchor ``(A, 1)``, or ``(1, 1)``.

    Returns:
        Flat positions of the cells, ``(K,)`` int64, and their coefficients, ``(K,)``.
    """
    if pairs.negative.shape[1] >= _MANY and not is_traced(pairs.negative):  # the number of runs depends on the data
        pairs, weight = runs(pairs, weight)
    wrong = pairs.wrong
    cells = torch.stack((pairs.negative, pairs.positive)).where(wrong, 0) & CELL
    weights = torch.where(wrong, weight, 0.0)
    return cells.flatten(), torch.stack((weights, -weights)).flatten()


def runs(pairs: HardPairs, weight: Tensor) -> tuple[HardPairs, Tensor]:
    """The same sum with one pair for each run of neighboring windows that share it, and the total weight of the run.

    Running extrema over W windows change only O(log W) times, so few pairs remain if there are many windows.
    """
    windows = pairs.negative.shape[1]
    changes = (pairs.negative[:, 1:] != pairs.negative[:, :-1]) | (pairs.positive[:, 1:] != pairs.positive[:, :-1])
    last = functional.pad(changes, (0, 1), value=True).flatten().nonzero()[:, 0]
    if weight.shape[1] == 1:
        whole = last.diff(prepend=last.new_full((1,), -1))  # the last window of an anchor always ends a run
        whole = whole * (weight[0] if len(weight) == 1 else weight[:, 0].index_select(0, last // windows))
    else:
        summed = weight.to(wide(weight)).flatten().cumsum(0)[last]
        whole = summed.diff(prepend=summed.new_zeros(1))
    return HardPairs(*(extrema.flatten().index_select(0, last) for extrema in pairs)), whole


def add_up(similarity: Tensor, terms: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The sum of all :func:`hinge_terms`: one gather, whose gradient is one scatter of as many numbers.

    Plain indexing can be differentiated twice and works with ``torch.func``.
    """
    exact = wide(similarity)
    cells, coefficients = (torch.cat(parts) for parts in zip(*terms, strict=True))
    return (similarity.flatten().gather(0, cells).to(exact) * coefficients.to(exact)).sum().to(similarity.dtype)


def hinges_with_margin(similarity: Tensor, pairs: HardPairs, weight: Tensor, margin: Tensor) -> Tensor:
    """``sum of weight * [s_negative - s_positive + margin]_+``: which hinges are active depends on the values."""
    valid = pairs.valid
    cells = torch.stack((pairs.negative, pairs.positive)).where(valid, 0) & CELL
    scores = similarity.flatten().gather(0, cells.flatten()).view(cells.shape)
    return ((scores[0] - scores[1] + margin).relu() * torch.where(valid, weight, 0.0)).sum()
