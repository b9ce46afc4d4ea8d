"""The checked input of every loss: one similarity matrix, its labels, whose image each row is."""

from typing import NamedTuple

import torch
from torch import Tensor

from bcls._core.errors import fail
from bcls.kernels import values
from bcls.kernels.settings import SAME


class Batch(NamedTuple):
    """Inputs after the checks: floating point of at least 32 bits, finite, square."""

    similarity: Tensor
    relevance: Tensor | None
    image_ids: Tensor | None
    lowest: float  #: no label lies below; -1 where values are not read
    raw: bool = False  #: whether values are yet to be looked at and labels to be clamped

    @property
    def size(self) -> int:
        """Number of images and captions, B."""
        return self.similarity.shape[0]

    @property
    def labels(self) -> Tensor:
        """The relevance, for losses that cannot do without it."""
        if self.relevance is None:
            fail(
                "relevance",
                "a (B, B) matrix of labels",
                None,
                "this loss learns from continuous labels: make them with bcls.labels.relevance, or use a triplet loss",
            )
        return self.relevance

    @property
    def directions(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Scores and labels with anchors as rows: image to text, then text to image, of the same two matrices."""
        return (
            (self.similarity, self.labels.contiguous()),
            (self.similarity.T, self.labels.T.contiguous()),
        )

    @property
    def same_image(self) -> Tensor:
        """(B, B) bool: the diagonal, and pairs with equal ``image_ids``; never negatives, whatever the label."""
        own = torch.eye(self.size, dtype=torch.bool, device=self.similarity.device)
        if self.image_ids is None:
            return own
        return own | (self.image_ids[:, None] == self.image_ids[None, :])

    @property
    def negatives(self) -> Tensor:
        """(B, B) bool: pairs that the binary losses push apart, ``r < 1`` and not of one image."""
        if self.relevance is None:
            return ~self.same_image
        return ~self.same_image & (self.relevance < 1 - SAME)


def check_batch(
    similarity: Tensor, relevance: Tensor | None = None, image_ids: Tensor | None = None, *, bounded: bool = True
) -> Batch:
    """Check shapes, devices and values once, and bring the numbers to at least float32.

    Values are not read inside ``torch.compile`` and ``torch.func.vmap``, where reading them is not possible, nor on a
    CUDA device with Triton, where it would wait: that batch is raw, see :func:`look_later`.

    Args:
        similarity: ``(B, B)`` float; rows are images, columns are captions.
        relevance: ``(B, B)`` float, or None.
        image_ids: ``(B,)`` integers, or None.
        bounded: Whether ``relevance`` must lie in [-1, 1].

    Raises:
        ValueError: If a shape, dtype, device or value is wrong, here or on the device in an earlier call.
    """
    _check_matrix("similarity", similarity)
    if similarity.shape[0] != similarity.shape[1] or similarity.shape[0] == 0:
        fail(
            "similarity",
            "a square matrix (B, B), one row an image, one column a caption, pairs on the diagonal",
            f"shape {tuple(similarity.shape)}",
            "give each caption of the batch its image's row (an image may come twice: say so with image_ids)",
        )
    ids = None if image_ids is None else _check_ids(image_ids, similarity)
    if relevance is not None:
        relevance = _check_relevance(relevance, similarity)
    if values.defers(similarity):
        values.refuse_earlier(similarity.device)
        return Batch(values.at_least_float32(similarity), relevance, ids, -1.0, raw=True)
    lowest = values.check_values(similarity, relevance, bounded=bounded)
    return Batch(values.at_least_float32(similarity), _clamped(relevance, bounded=bounded), ids, lowest)


def look_later(batch: Batch, *, bounded: bool) -> Batch:
    """A raw batch with its labels clamped; the device looks at its values, and the next call raises what it finds."""
    values.look(batch.similarity.detach(), batch.relevance, bounded=bounded)
    return batch._replace(relevance=_clamped(batch.relevance, bounded=bounded), raw=False)


def _clamped(relevance: Tensor | None, *, bounded: bool) -> Tensor | None:
    return relevance.clamp(-1, 1) if relevance is not None and bounded else relevance


def _check_matrix(argument: str, matrix: Tensor) -> None:
    if not isinstance(matrix, Tensor):
        fail(argument, "a torch.Tensor", type(matrix).__name__, "convert it with torch.as_tensor")
    if matrix.ndim != 2 or not matrix.is_floating_point():
        fail(
            argument,
            "a matrix (B, B) of floating point numbers",
            f"shape {tuple(matrix.shape)} of {matrix.dtype}",
            "rows are images, columns are captions",
        )


def _check_relevance(relevance: Tensor, similarity: Tensor) -> Tensor:
    _check_matrix("relevance", relevance)
    if relevance.shape != similarity.shape:
        fail(
            "relevance",
            f"the shape of `similarity`, {tuple(similarity.shape)}",
            f"{tuple(relevance.shape)}",
            "make the labels from the captions of this very batch, in the same order",
        )
    if relevance.device != similarity.device:
        fail("relevance", f"a tensor on {similarity.device}", f"one on {relevance.device}", "move it with .to(...)")
    # Labels teach, they are not taught; and half precision is too coarse to tell windows apart.
    return values.at_least_float32(relevance.detach())


def _check_ids(image_ids: Tensor, similarity: Tensor) -> Tensor:
    try:
        ids = torch.as_tensor(image_ids, device=similarity.device)
    except (TypeError, ValueError, RuntimeError) as error:
        fail("image_ids", f"{similarity.shape[0]} integers", repr(image_ids), f"torch says: {error}")
    if ids.shape != similarity.shape[:1] or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        fail(
            "image_ids",
            f"{similarity.shape[0]} integers, one for each row",
            f"shape {tuple(ids.shape)} of {ids.dtype}",
            "number the images of the dataset and pass the numbers of this batch",
        )
    return ids
