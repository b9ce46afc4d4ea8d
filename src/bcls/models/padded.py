"""Rows of different lengths in one tensor.

Batches of sequences: several one behind the other, and without padding that no row needs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Padded:
    """Items side by side: vectors, or sequences padded to the longest; what models take and give.

    Attributes:
        values: ``(N, ...)``: token numbers ``(N, W)``, vectors ``(N, D)``, regions or words ``(N, L, D)``, pixels
            ``(N, 3, H, W)``.
        lengths: ``(N,)`` int64, how many of an item's L entries are real; ``None`` where all are, or where an item is
            one vector or one picture.

    Example:
        >>> words = Padded(torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([3, 1]))
        >>> words.mask
        tensor([[ True,  True,  True],
                [ True, False, False]])
        >>> words.take(torch.tensor([1])).values
        tensor([[8, 0, 0]])
    """

    values: Tensor
    lengths: Tensor | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mask(self) -> Tensor:
        """``(N, L)`` bool, true where an entry is real."""
        rows, longest = self.values.shape[:2]
        if self.lengths is None:
            return torch.ones(rows, longest, dtype=torch.bool, device=self.values.device)
        return torch.arange(longest, device=self.values.device) < self.lengths[:, None]

    def to(self, device: torch.device | str) -> "Padded":
        """The same on another device."""
        ahead = torch.device(device).type != "cpu"  # a copy to the CPU that is not waited for may not be there yet
        lengths = None if self.lengths is None else self.lengths.to(device, non_blocking=ahead)
        return Padded(self.values.to(device, non_blocking=ahead), lengths)

    def take(self, rows: Tensor | slice) -> "Padded":
        """Some of the items."""
        return Padded(self.values[rows], None if self.lengths is None else self.lengths[rows])


def pad(rows: list[Tensor]) -> Padded:
    """Put sequences of different lengths side by side, zeros behind the shorter ones.

    Args:
        rows: Each ``(L_i, ...)``, at least one.

    Example:
        >>> pad([torch.tensor([1, 2]), torch.tensor([3])]).values
        tensor([[1, 2],
                [3, 0]])
    """
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    return Padded(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths)


def trimmed(items: Padded) -> Padded:
    """The same without columns that are padding in every row."""
    if items.lengths is None or not len(items):
        return items
    return Padded(items.values[:, : int(items.lengths.max())], items.lengths)


def joined(batches: list[Padded]) -> Padded:
    """Batches one behind the other, padded to the longest."""
    longest = max(batch.values.shape[1] for batch in batches)
    values = torch.cat([_wider(batch.values, longest) for batch in batches])
    if all(batch.lengths is None and batch.values.shape[1] == longest for batch in batches):
        return Padded(values)
    lengths = [
        torch.full((len(one),), one.values.shape[1], device=values.device) if one.lengths is None else one.lengths
        for one in batches
    ]
    return Padded(values, torch.cat(lengths))


def _wider(values: Tensor, longest: int) -> Tensor:
    missing = longest - values.shape[1]
    return nn.functional.pad(values, (0, 0) * (values.ndim - 2) + (0, missing)) if missing else values
