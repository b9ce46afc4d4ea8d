"""The label of a pair: how close a caption is to the captions that the image already has."""

from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_choice, fail
from bcls.labels._inputs import check_embeddings, check_images, unit_rows

if TYPE_CHECKING:
    import torch

Vectors: TypeAlias = "NDArray[Any] | torch.Tensor"
#: How an image's captions may be put together.
AGGREGATES = ("max", "mean", "paired")

# Elements of the largest temporary: 64 MB of float32.
_BLOCK = 1 << 24


@overload
def relevance(
    reference: NDArray[Any],
    captions: Vectors,
    reference_image: object,
    caption_image: object = None,
    aggregate: str = "max",
) -> NDArray[np.float32]: ...
@overload
def relevance(
    reference: "torch.Tensor",
    captions: Vectors,
    reference_image: object,
    caption_image: object = None,
    aggregate: str = "max",
) -> "torch.Tensor": ...
def relevance(
    reference: Vectors,
    captions: Vectors,
    reference_image: object,
    caption_image: object = None,
    aggregate: str = "max",
) -> Vectors:
    r"""Compute the relevance of every caption to every image from text embeddings.

    .. math::
        r_{ij} = \max_{k : \mathrm{image}(k) = i} \cos(x_k, y_j)

    with ``aggregate="max"``; ``"mean"`` averages the cosines instead, and ``"paired"`` takes the one caption that
    goes with the image, as when a batch holds one sampled caption an image. Values are clamped to [-1, 1].

    Args:
        reference: ``(K, d)`` embeddings of the images' own captions, array or tensor, float16 and up; rows need not
            have unit length.
        captions: ``(C, d)`` embeddings of the candidates.
        reference_image: ``(K,)`` integers 0..N-1, the image of each reference row, in any order.
        caption_image: ``(C,)`` integers 0..N-1, the image of each candidate. Where given, a caption's own image gets
            exactly 1.
        aggregate: ``"max"``, ``"mean"`` or ``"paired"``.

    Returns:
        ``(N, C)`` float32, an array where ``reference`` is an array, else a tensor on its device, without gradient.

    Raises:
        ValueError: If shapes or indices do not fit together, an image has no reference row (or not exactly one, with
            ``"paired"``), or a row is zero or not finite.

    Example:
        >>> own = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> relevance(own, np.array([[2.0, 0.0], [0.0, 3.0]]), [0, 0, 1])
        array([[1. , 0.8],
               [0. , 1. ]], dtype=float32)
    """
    import torch

    check_choice("aggregate", aggregate, AGGREGATES)
    check_embeddings("reference", reference)
    check_embeddings("captions", captions)
    if captions.shape[1] != reference.shape[1]:
        expected = f"rows of length {reference.shape[1]}, as `reference`"
        fail("captions", expected, captions.shape[1], "use one encoder for both")
    if not len(reference):
        fail("reference", "at least one row", "none", "give the captions of the images")
    rows = unit_rows("reference", reference)
    owner = check_images("reference_image", reference_image, len(rows))
    counts = _count(owner, aggregate)
    images, columns = len(counts), len(captions)
    own = None if caption_image is None else check_images("caption_image", caption_image, columns, images)

    order = np.argsort(owner, kind="stable")
    rows = rows[torch.from_numpy(order).to(rows.device)]
    if aggregate == "mean":
        rows, counts = _mean_rows(rows, counts), np.ones_like(counts)
    result = torch.empty((images, columns), dtype=torch.float32, device=rows.device)
    step = max(1, _BLOCK // images)
    for start in range(0, columns, step):
        block = unit_rows("captions", captions[start : start + step], start).to(rows.device)
        result[:, start : start + step] = _highest(rows, counts, block)
    result.clamp_(-1.0, 1.0)
    if own is not None:
        place = torch.from_numpy(own).to(result.device)
        result[place, torch.arange(columns, device=result.device)] = 1.0
    return result.numpy() if isinstance(reference, np.ndarray) else result


def _count(owner: NDArray[np.int64], aggregate: str) -> NDArray[np.int64]:
    """Count the reference rows of each image, and see that the aggregate can use them."""
    present, counts = np.unique(owner, return_counts=True)
    missing = np.flatnonzero(present != np.arange(len(present)))
    if missing.size:
        got = f"none for image {missing[0]}"
        fail("reference_image", "at least one reference row for each image", got, "number the images 0..N-1 anew")
    several = np.flatnonzero(counts > 1)
    if aggregate == "paired" and several.size:
        got = f"{counts[several[0]]} for image {several[0]}"
        fail("reference_image", 'exactly one reference row an image with aggregate="paired"', got, 'use "max"')
    return counts


def _mean_rows(rows: "torch.Tensor", counts: NDArray[np.int64]) -> "torch.Tensor":
    """Average the unit rows of each image: the mean of the cosines is the dot product with their mean."""
    import torch

    sizes = torch.from_numpy(counts).to(rows.device)
    sums = torch.zeros((len(counts), rows.shape[1]), dtype=rows.dtype, device=rows.device)
    sums.index_add_(0, torch.repeat_interleave(sizes), rows)
    return sums / sizes[:, None]


def _highest(rows: "torch.Tensor", counts: NDArray[np.int64], block: "torch.Tensor") -> "torch.Tensor":
    """Take the highest cosine over each image's rows, which lie together, for a block of captions.

    The n-th rows of all images that have that many are compared at once: one product of the result's size at a time,
    where one with all the rows would be as many times larger as an image has captions.
    """
    import torch

    starts = np.cumsum(counts) - counts
    highest = rows[torch.from_numpy(starts).to(rows.device)] @ block.T
    for turn in range(1, int(counts.max())):
        images = np.flatnonzero(counts > turn)
        cosines = rows[torch.from_numpy(starts[images] + turn).to(rows.device)] @ block.T
        if len(images) == len(counts):
            torch.maximum(highest, cosines, out=highest)
        else:
            place = torch.from_numpy(images).to(rows.device)
            highest[place] = torch.maximum(highest[place], cosines)
    return highest
