"""Batches of sequences: several one behind the other, and without padding that no row needs."""

import torch
from torch import Tensor, nn

from bcls._padded import Padded


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
