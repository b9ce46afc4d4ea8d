"""The hardest positive and the hardest negative of every window at once, without a loop over windows."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bcls._core.errors import fail
from bcls.losses._windows import WindowBins

LEAST, GREATEST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
CELL = 0xFFFFFFFF
#: Numbers worked on at once on a CPU: what its cache holds. Accelerators and compilers want everything at once.
_CACHED = 1 << 17

#: Rows of a tile: more of them mean fewer columns, whose bins are the ones that must stay in the cache.
_ROWS = 512

#: Bins of a tile, rows and columns, for rows as anchors and for columns as anchors.
Binner = Callable[[slice, slice], tuple[WindowBins, WindowBins]]


class HardPairs(NamedTuple):
    """One pair of cells for each anchor and window, as the keys of :func:`cell_keys`."""

    positive: Tensor  #: (A, W) int64, the least similar positive; the greatest integer where there is none
    negative: Tensor  #: (A, W) int64, the most similar negative; the least integer where there is none

    @property
    def valid(self) -> Tensor:
        """(A, W) bool, False where the window has no positive or no negative."""
        return (self.negative != LEAST) & (self.positive != GREATEST)

    @property
    def wrong(self) -> Tensor:
        """(A, W) bool, True where the negative is more similar than the positive; not where one is missing."""
        return (self.negative >> 32) > (self.positive >> 32)


def mine(similarity: Tensor, bins_of: Binner, windows: int) -> Iterator[HardPairs]:
    """Extrema of every window in O(B^2 + B W): one scatter into bins, then a running maximum and minimum.

    Args:
        similarity: ``(B, B)``, without gradient.
        bins_of: Gives the bins of a tile.
        windows: Their number, W.

    Yields:
        Pairs of a block of anchors: first all rows (image to text), then all columns (text to image).
    """
    size = similarity.shape[0]
    ranks = cell_ranks(similarity)
    # As many bins as windows and one more, for pairs that are in none; like `similarity` so that vmap can batch them.
    blank = torch.empty_like(similarity[:1, :1], dtype=torch.int64).expand(2 * size, windows + 1)
    hardest, easiest = torch.full_like(blank, LEAST), torch.full_like(blank, GREATEST)
    for rows, columns in _tiles(size, similarity):
        keys = cell_keys(similarity, ranks, rows, columns)
        along_row, along_column = bins_of(rows, columns)
        hardest[rows].scatter_reduce_(1, along_row.negative, keys, "amax")
        easiest[rows].scatter_reduce_(1, along_row.beyond, keys, "amin")
        hardest[size:][columns].T.scatter_reduce_(0, along_column.negative, keys, "amax")
        easiest[size:][columns].T.scatter_reduce_(0, along_column.beyond, keys, "amin")
    for anchors in blocks(2 * size, windows + 1, similarity):
        # Negatives of a window: the bins up to its own. Positives: likewise, counted from the last window back.
        negative = hardest[anchors, :-1].cummax(1).values
        positive = easiest[anchors, :-1].cummin(1).values.flip(1)
        yield HardPairs(positive, negative)


def blocks(size: int, width: int, like: Tensor) -> Iterator[slice]:
    """Slices of ``size`` anchors with ``width`` numbers each."""
    cached = like.device.type == "cpu" and not torch.compiler.is_compiling()
    step = max(1, _CACHED // width) if cached else size
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def _tiles(size: int, like: Tensor) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the tiles of a ``(size, size)`` matrix."""
    for rows in blocks(size, _CACHED // _ROWS, like):
        for columns in blocks(size, min(size, _ROWS), like):
            yield rows, columns


def cell_ranks(similarity: Tensor) -> Tensor | None:
    """Ranks of numbers that do not fit into 32 bits, equal for equal numbers; None for float32."""
    short = similarity.dtype == torch.float32
    largest = 65_536 if short else 46_340  # rank and cell share 64 bits
    if similarity.shape[0] > largest:
        fail("similarity", f"at most {largest} pairs of {similarity.dtype}", similarity.shape[0], "use a smaller batch")
    return None if short else torch.unique(similarity, return_inverse=True)[1]


def cell_keys(
    similarity: Tensor, ranks: Tensor | None, rows: slice = slice(None), columns: slice = slice(None)
) -> Tensor:
    """Integers that sort as the similarities do and carry their cell: ``rank << 32 | flat position``.

    One integer maximum then finds value and place together, for rows and for columns.

    Args:
        similarity: ``(B, B)``.
        ranks: From :func:`cell_ranks`; the bits of a float32 are rank enough.
        rows: Rows to make keys of.
        columns: Columns to make keys of.
    """
    places = torch.arange(similarity.shape[0], device=similarity.device)
    cells = places[rows, None] * similarity.shape[1] + places[columns]
    if ranks is None:
        bits = similarity[rows, columns].contiguous().view(torch.int32)
        # The bits of a negative float are its magnitude behind the sign; so -0.0 and 0.0 rank alike.
        return (torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits).long() << 32) | cells
    return (ranks[rows, columns] << 32) | cells
