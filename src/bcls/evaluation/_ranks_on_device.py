"""Ranks of gold items counted where the scores are: on a GPU a matrix that fits it is looked at in one go."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bcls.evaluation._inputs import counts_in_place
from bcls.evaluation._targets import Ids, Targets

if TYPE_CHECKING:
    from torch import Tensor

# Elements that are compared at once: masks of a byte each, two at a time.
_AT_ONCE = 1 << 28


def counts_there(similarity: "Tensor", rows: "slice | Ids", columns: "slice | Ids") -> bool:
    """Whether all of a matrix is asked for, and it lies on a device that counts; one with NaN is left to the CPU."""
    if not counts_in_place(similarity):
        return False
    parts = zip((rows, columns), similarity.shape, strict=True)
    whole = all(isinstance(part, slice) and range(size)[part] == range(size) for part, size in parts)
    return whole and similarity.numel() <= _AT_ONCE and bool(similarity.isfinite().all())


def counted_there(
    similarity: "Tensor", of_images: Sequence[Targets], of_captions: Sequence[Targets]
) -> tuple[list[Ids], list[Ids]]:
    """As :func:`bcls.evaluation._ranks.count_above`, for all of a finite matrix."""
    by_image = [_above(similarity, target) for target in of_images]
    by_caption = [_above(similarity.T, target) for target in of_captions]
    return by_image, by_caption


def _above(scores: "Tensor", target: Targets) -> Ids:
    """Items of each row above its target; of equals the lower index comes first."""
    import torch

    gold = torch.from_numpy(np.ascontiguousarray(target.score)).to(scores)[:, None]
    item = torch.from_numpy(target.item).to(scores.device)[:, None]
    place = torch.arange(scores.shape[1], device=scores.device)
    above = (scores > gold).sum(1) + ((scores == gold) & (place < item)).sum(1)
    ranks: Ids = above.cpu().numpy()
    return ranks
