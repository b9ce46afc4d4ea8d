"""Padded batches: items of different lengths in one tensor."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Padded:
    """A batch of vectors, or of sequences padded to the longest; the input and output type of models.

    Attributes:
        values: ``(N, ...)``: token ids ``(N, W)``, vectors ``(N, D)``, regions or words ``(N, L, D)``, pixels
            ``(N, 3, H, W)``.
        lengths: ``(N,)`` int64, the number of real entries among the L of each item; ``None`` if all are real, or if
            an item is one vector or one image.

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
        """``(N, L)`` bool, true for real entries."""
        return torch.arange(self.values.shape[1], device=self.values.device) < self.full_lengths[:, None]

    @property
    def full_lengths(self) -> Tensor:
        """``(N,)`` lengths, also where :attr:`lengths` is ``None``."""
        if self.lengths is None:
            return torch.full(self.values.shape[:1], self.values.shape[1], device=self.values.device)
        return self.lengths

    def to(self, device: torch.device | str) -> "Padded":
        """Copy the batch to a device."""
        # A non-blocking copy to the CPU may not be complete when it is read.
        non_blocking = torch.device(device).type != "cpu"
        lengths = None if self.lengths is None else self.lengths.to(device, non_blocking=non_blocking)
        return Padded(self.values.to(device, non_blocking=non_blocking), lengths)

    def float(self) -> "Padded":
        """The batch in float32."""
        return Padded(self.values.float(), self.lengths)

    def take(self, rows: Tensor | slice) -> "Padded":
        """Select items."""
        return Padded(self.values[rows], None if self.lengths is None else self.lengths[rows])


def pad(rows: list[Tensor]) -> Padded:
    """Batch sequences of different lengths, padded with zeros.

    Args:
        rows: At least one tensor, each ``(L_i, ...)``.

    Example:
        >>> pad([torch.tensor([1, 2]), torch.tensor([3])]).values
        tensor([[1, 2],
                [3, 0]])
    """
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    return Padded(nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths)


def trimmed(items: Padded) -> Padded:
    """Remove columns that are padding in every row."""
    if items.lengths is None or not len(items):
        return items
    return Padded(items.values[:, : int(items.lengths.max())], items.lengths)


def joined(batches: list[Padded]) -> Padded:
    """Concatenate batches, padded to the longest."""
    longest = max(batch.values.shape[1] for batch in batches)
    values = torch.cat([widen(batch.values, longest) for batch in batches])
    if all(batch.lengths is None and batch.values.shape[1] == longest for batch in batches):
        return Padded(values)
    return Padded(values, torch.cat([batch.full_lengths for batch in batches]))


def widen(values: Tensor, longest: int) -> Tensor:
    """Pad sequences ``(N, L, ...)`` with zeros to a length."""
    missing = longest - values.shape[1]
    return nn.functional.pad(values, (0, 0) * (values.ndim - 2) + (0, missing)) if missing else values
