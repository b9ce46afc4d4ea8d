"""What passes between the passes of a loss, whoever does the work.

A key is an integer that sorts as a score does and carries its place: ``code << 32 | LATEST - place``, where the code
is the float32's bits with a negative one's magnitude inverted. A greater key is a greater score, and of equal scores
the one with the earlier place, so the outcome does not depend on the order of the work. Positives are kept with the
code inverted: their greatest key is the least similar one.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from bcls.kernels.settings import Halves, SoftNegatives, Windows

#: No key yet.
LEAST = torch.iinfo(torch.int64).min
LATEST = 0x7FFFFFFF
#: Planes of the soft sums: greatest exponent, sum of powers of 2 relative to it, number of negatives.
PLANES = 3


class Tile(NamedTuple):
    """Some rows of the batch with all its columns."""

    similarity: Tensor  #: (n, B)
    relevance: Tensor | None  #: (n, B)
    image_ids: Tensor | None  #: (B,), of the whole batch
    first: int  #: number of the first row in the whole batch


class Keys(NamedTuple):
    """Greatest keys by bin: of negatives at the first window they count in, of positives at the last one."""

    rows: Tensor  #: (2, A, W) int64, negatives and positives of the row anchors
    columns: Tensor  #: (2, W, B) int64, of the column anchors


class Soft(NamedTuple):
    """Sums over negatives in parts that are yet to be merged."""

    rows: Tensor  #: (3, parts, A)
    columns: Tensor  #: (3, parts, B)


class Finished(NamedTuple):
    """Anchors' shares of the loss and what the gradient needs; row anchors first, then column anchors."""

    values: Tensor  #: (2, A + B) float32, binary and continuous
    levels: Tensor  #: (A + B,) base-2 log-sum-exp of each anchor; infinity where its hinge is flat
    picks: Tensor  #: (2, A + B, W) int32, places of the hard negatives and positives; -1 where the hinge is flat
    shares: Tensor  #: (A + B,) factor of each anchor's windows


class Engine(Protocol):
    """The four passes of a loss."""

    def step(self, columns: int, *, made: bool) -> int:
        """Rows of a tile with this many columns; ``made`` says that tiles are made one by one, not cut from a whole."""

    def mine(self, tile: Tile, keys: Keys | None, asked: Halves) -> Soft | None:
        """Raise the keys to those of a tile (``keys.rows`` are the tile's rows) and give its soft sums."""

    def finish(self, keys: Keys | None, sums: Soft | None, own: tuple[Tensor, Tensor], asked: Halves) -> Finished:
        """Hinges of all anchors; ``own`` are the similarities of own pairs, by row and by column."""

    def slope(self, tile: Tile, levels: tuple[Tensor, Tensor], upstream: Tensor, soft: SoftNegatives) -> Tensor:
        """Gradient of the binary half at a tile, ``(n, B)`` float32."""

    def scatter(self, gradient: Tensor, finished: Finished, upstream: Tensor, windows: Windows) -> None:
        """Add the gradient of the continuous half to a whole ``(B, B)`` float32 matrix."""


def new_keys(rows: int, columns: int, windows: Windows | None, device: torch.device) -> Keys | None:
    """Keys of nothing yet, in one piece of memory."""
    if windows is None:
        return None
    split = 2 * windows.count * rows
    flat = torch.full((split + 2 * windows.count * columns,), LEAST, dtype=torch.int64, device=device)
    return Keys(flat[:split].view(2, rows, windows.count), flat[split:].view(2, windows.count, columns))


def merge(parts: Tensor) -> Tensor:
    """Merge the parts of soft sums, ``(3, parts, A)``, into one, ``(3, 1, A)``."""
    top = parts[0].amax(0)
    base = top.masked_fill(top == -torch.inf, 0)
    return torch.stack((top, (parts[1] * (parts[0] - base).exp2()).sum(0), parts[2].sum(0)))[:, None]
