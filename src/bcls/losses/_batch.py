"""The checked input of every loss: one similarity matrix, its labels, whose image each row is."""

from typing import NamedTuple

import torch
from torch import Tensor

from bcls._checks import fail

#: Labels this close to 1 say "the same": cosines of equal captions round to 0.9999999.
SAME = 1e-4
#: How far labels may lie outside [-1, 1] through rounding; they are clamped.
ROUNDING = 1e-4


class Batch(NamedTuple):
    """Inputs after the checks: floating point of at least 32 bits, finite, square."""

    similarity: Tensor
    relevance: Tensor | None
    image_ids: Tensor | None
    lowest: float  #: no label lies below; -1 where values cannot be read

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
                "a (B, B) matrix of labels in [-1, 1]",
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

    Values are not read inside ``torch.compile`` and ``torch.func.vmap``, where reading them is not possible.

    Args:
        similarity: ``(B, B)`` float; rows are images, columns are captions.
        relevance: ``(B, B)`` float, or None.
        image_ids: ``(B,)`` integers, or None.
        bounded: Whether ``relevance`` must lie in [-1, 1].

    Raises:
        ValueError: If a shape, dtype, device or value is wrong.
    """
    _check_matrix("similarity", similarity)
    if similarity.shape[0] != similarity.shape[1] or similarity.shape[0] == 0:
        fail(
            "similarity",
            "a square matrix (B, B), one row an image, one column a caption, pairs on the diagonal",
            f"shape {tuple(similarity.shape)}",
            "give each caption of the batch its image's row (an image may come twice: say so with image_ids)",
        )
    _read_range("similarity", similarity, "look for a diverged model or a zero vector normalised without epsilon")
    ids = None if image_ids is None else _check_ids(image_ids, similarity)
    lowest = -1.0
    if relevance is not None:
        relevance, lowest = _check_relevance(relevance, similarity, bounded=bounded)
    return Batch(_at_least_float32(similarity), relevance, ids, lowest)


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


def _check_relevance(relevance: Tensor, similarity: Tensor, *, bounded: bool) -> tuple[Tensor, float]:
    """The labels and the lowest of them."""
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
    relevance = _at_least_float32(relevance.detach())
    low, high = _read_range("relevance", relevance, "look for an empty caption in the label encoder's input") or (
        -1.0,
        1.0,
    )
    if not bounded:
        return relevance, low
    if low < -1 - ROUNDING or high > 1 + ROUNDING:
        fail(
            "relevance",
            "labels in [-1, 1]",
            f"values from {low:.6g} to {high:.6g}",
            "rescale them (cosines need unit vectors; for CIDEr-like scales use SAMLoss)",
        )
    return relevance.clamp(-1, 1), max(low, -1.0)


def _check_ids(image_ids: Tensor, similarity: Tensor) -> Tensor:
    ids = torch.as_tensor(image_ids, device=similarity.device)
    if ids.shape != similarity.shape[:1] or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        fail(
            "image_ids",
            f"{similarity.shape[0]} integers, one for each row",
            f"shape {tuple(ids.shape)} of {ids.dtype}",
            "number the images of the dataset and pass the numbers of this batch",
        )
    return ids


def _at_least_float32(matrix: Tensor) -> Tensor:
    return matrix if matrix.dtype == torch.float64 else matrix.float()


def _read_range(argument: str, matrix: Tensor, remedy: str) -> tuple[float, float] | None:
    """Smallest and largest value; None where values cannot be read; an error where one is not finite."""
    if torch.compiler.is_compiling():
        return None
    try:
        low, high = (bound.item() for bound in torch.aminmax(matrix.detach()))
    except RuntimeError as error:
        if "vmap" in str(error):
            return None
        raise
    if low - low != 0 or high - high != 0:  # NaN and infinity alike
        bad = (~torch.isfinite(matrix)).nonzero()[0].tolist()
        value = matrix[bad[0], bad[1]].item()
        fail(argument, "finite numbers", f"{value} at row {bad[0]}, column {bad[1]}", remedy)
    return low, high
