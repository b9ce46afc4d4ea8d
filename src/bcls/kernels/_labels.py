"""Labels made a few rows at a time from caption embeddings."""

from typing import NamedTuple

import torch
from torch import Tensor

from bcls._core.errors import fail
from bcls.kernels.values import ROUNDING


class LabelMaker(NamedTuple):
    """What makes the label of image i and caption j: ``r_ij = max over references k of image i of <k, j>``."""

    references: Tensor  #: (K, D) float32
    places: Tensor  #: (P, b), numbers of the references of each of this rank's images; the first one again as filling
    captions: Tensor  #: (B, D) float32, of all ranks
    image_ids: Tensor | None  #: (B,)
    first: int  #: number of this rank's first image in the whole batch

    def rows(self, start: int, stop: int) -> Tensor:
        """Labels of some of this rank's images and all captions, ``(stop - start, B)``, in [-1, 1].

        Own pairs and pairs of one image are exactly 1.
        """
        labels = self.references[self.places[0, start:stop]] @ self.captions.T
        for place in self.places[1:, start:stop]:
            torch.maximum(labels, self.references[place] @ self.captions.T, out=labels)
        labels.clamp_(-1, 1).diagonal(self.first + start).fill_(1)
        if self.image_ids is not None:
            mine = self.image_ids[self.first + start : self.first + stop]
            labels.masked_fill_(mine[:, None] == self.image_ids, 1)
        return labels


def is_whole(numbers: Tensor) -> bool:
    """Whether a tensor is of integers."""
    return not (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool)


def check_unit_rows(argument: str, rows: Tensor) -> None:
    """Check that label embeddings are unit rows, whose products are cosines; on a device this waits.

    Args:
        argument: Name of the argument, for the message.
        rows: ``(K, D)`` floating point.

    Raises:
        ValueError: If a row is not finite or not of length 1; the first one is named.

    Example:
        >>> check_unit_rows("captions", 2 * torch.eye(2))
        Traceback (most recent call last):
        ...
        ValueError: `captions`: expected rows of length 1, got length 2 in row 0; divide each row by its length
    """
    lengths = rows.detach().float().norm(dim=1)
    # Rows that were rounded to half precision have another length by as much as one number of theirs.
    odd = ~((lengths - 1).abs() <= max(ROUNDING, torch.finfo(rows.dtype).eps))  # a NaN is odd
    if bool(odd.any()):
        row = int(odd.int().argmax())
        remedy = "divide each row by its length" if lengths[row].isfinite() else "look for an empty caption"
        fail(argument, "rows of length 1", f"length {float(lengths[row]):g} in row {row}", remedy)


def reference_places(reference_image: Tensor, images: int) -> Tensor:
    """Numbers of the references of each image, ``(P, images)`` for at most P of them.

    Args:
        reference_image: ``(K,)`` row of the image that each reference belongs to.
        images: Their number.

    Raises:
        ValueError: If a number is out of range or an image has no reference.

    Example:
        >>> reference_places(torch.tensor([1, 0, 1]), 2)
        tensor([[1, 0],
                [1, 2]])
    """
    if reference_image.ndim != 1 or not is_whole(reference_image):
        got = f"shape {tuple(reference_image.shape)} of {reference_image.dtype}"
        fail("reference_image", "integers (K,), one for each reference", got, "number the images of this batch from 0")
    owner = reference_image.long()
    low, high = (int(owner.min()), int(owner.max())) if len(owner) else (0, -1)
    if low < 0 or high >= images:
        fail("reference_image", f"numbers from 0 to {images - 1}", f"{low} to {high}", "number this batch's images")
    counts = owner.bincount(minlength=images)
    if int(counts.min()) == 0:
        missing = int(counts.argmin())
        fail("reference_image", "a reference of every image", f"none of image {missing}", "add its own caption")
    order = owner.argsort(stable=True)
    place = torch.arange(int(counts.max()), device=owner.device)[:, None]
    return order[counts.cumsum(0) - counts + torch.minimum(place, counts - 1)]
