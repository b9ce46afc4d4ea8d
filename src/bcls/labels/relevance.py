"""What the labels accept: embeddings of numpy or torch and integers that name images.

The label of a pair: how close a caption is to the captions that the image already has.

Relevance of given pairs only, for judging labels by what people said of them.
"""

from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import check_choice, fail

if TYPE_CHECKING:
    import torch


def check_embeddings(argument: str, value: Any) -> None:
    """Check that ``value`` is an array or tensor ``(n, d)`` of real numbers; n may be 0.

    Args:
        argument: Name of the argument, for the message.
        value: What came.

    Raises:
        ValueError: If it is anything else.

    Example:
        >>> check_embeddings("captions", np.zeros(4))
        Traceback (most recent call last):
        ...
        ValueError: `captions`: expected a matrix (texts, dimensions), got shape (4,); give one embedding a text
    """
    import torch

    expected = "a matrix (texts, dimensions)"
    if not isinstance(value, np.ndarray | torch.Tensor):
        fail(argument, expected, type(value).__name__, "give a numpy array or a torch tensor")
    if len(value.shape) != 2 or not value.shape[1]:
        fail(argument, expected, f"shape {tuple(value.shape)}", "give one embedding a text")
    real = not value.is_complex() if isinstance(value, torch.Tensor) else value.dtype.kind in "fiu"
    if not real:
        fail(argument, "real numbers", f"dtype {value.dtype}", "give float16, float32 or float64")


def unit_rows(argument: str, value: Any, offset: int = 0) -> "torch.Tensor":
    """Copy embeddings to float32 rows of unit length.

    Args:
        argument: Name of the argument, for the message.
        value: ``(n, d)`` checked array or tensor.
        offset: What to add to a row's number in a message, for a block of a larger matrix.

    Returns:
        ``(n, d)`` float32 tensor without gradient, on the device of ``value``.

    Raises:
        ValueError: If a row is zero or not finite.
    """
    import torch

    if isinstance(value, np.ndarray):
        # A copy also where nothing is converted: torch warns about arrays it may not write to, such as mapped files.
        rows = torch.from_numpy(value.astype(np.float32))
    else:
        rows = value.detach().to(torch.float32)
    largest = rows.abs().amax(dim=1, keepdim=True)
    _refuse(argument, ~largest.isfinite(), offset, "finite numbers", "NaN or infinity", "encode it again")
    remedy = "an empty caption, most likely: drop it"
    _refuse(argument, largest == 0, offset, "vectors with a direction", "a zero vector", remedy)
    # Divided by the largest first, so that the squares of very large or small numbers stay in range.
    return torch.nn.functional.normalize(rows / largest, dim=1)


def _refuse(argument: str, bad: "torch.Tensor", offset: int, expected: str, got: str, remedy: str) -> None:
    if bool(bad.any()):
        fail(argument, expected, f"{got} in row {offset + int(bad.flatten().int().argmax())}", remedy)


def check_images(argument: str, value: Any, length: int, images: int | None = None) -> NDArray[np.int64]:
    """Check integers that name the image of each row.

    Args:
        argument: Name of the argument, for the message.
        value: ``(length,)`` integers from 0; array, tensor or sequence.
        length: How many there must be.
        images: How many images there are, where that is known.

    Returns:
        int64 array.

    Raises:
        ValueError: If they are not that many integers, or one of them names no image.

    Example:
        >>> check_images("caption_image", [0, 2], 2, images=2)
        Traceback (most recent call last):
        ...
        ValueError: `caption_image`: expected integers 0 to 1, got 2 at index 1; give `reference` a row for that image
    """
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if array.shape != (length,) or array.dtype.kind not in "iu":
        got = f"shape {array.shape} of {array.dtype}"
        fail(argument, f"{length} integers, the image of each row", got, "give one for each embedding")
    wrong = np.flatnonzero((array < 0) | (array >= images if images is not None else False))
    if wrong.size:
        expected = "integers from 0" if images is None else f"integers 0 to {images - 1}"
        got = f"{array[wrong[0]]} at index {wrong[0]}"
        fail(argument, expected, got, "give `reference` a row for that image")
    return array.astype(np.int64)


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


# Pairs at a time: 4,096 of them with five references each hold 30 MB.
_BLOCK_PAIRS = 4096


def pair_relevance(
    vectors: NDArray[np.float32],
    image_of_caption: NDArray[np.int64],
    images: NDArray[np.int64],
    captions: NDArray[np.int64],
    aggregate: str = "max",
) -> NDArray[np.float32]:
    r"""Relevance of the pairs (image, caption), from the captions that the image has.

    .. math::
        r_{ij} = \max_{k : \mathrm{image}(k) = i} \cos(x_k, x_j)

    with ``aggregate="max"``; ``"mean"`` averages the cosines, ``"paired"`` takes the one caption that came with
    the image: the caption itself where it is the image's own, else the image's first. An image's own caption gets
    exactly 1, but not with ``"mean"``: there :func:`bcls.labels.relevance` says 1 and this the average, which people's
    judgements are compared with.

    Args:
        vectors: ``(C, d)`` unit rows, one for each caption.
        image_of_caption: ``(C,)`` integers, whose caption each is.
        images: ``(P,)`` the image of each pair, in the numbers of ``image_of_caption``.
        captions: ``(P,)`` the caption of each pair, as a row of ``vectors``.
        aggregate: ``"max"``, ``"mean"`` or ``"paired"``.

    Returns:
        ``(P,)`` float32.

    Example:
        >>> vectors = np.eye(3, dtype=np.float32)[[0, 1, 1]]
        >>> owners = np.array([0, 0, 1])
        >>> pair_relevance(vectors, owners, np.array([0, 1]), np.array([2, 0]))
        array([1., 0.], dtype=float32)
    """
    check_choice("aggregate", aggregate, AGGREGATES)
    order = np.argsort(image_of_caption, kind="stable")
    owners = image_of_caption[order]
    start = np.searchsorted(owners, images, side="left")
    count = np.searchsorted(owners, images, side="right") - start
    if aggregate == "paired":
        count = np.minimum(count, 1)
    result = np.empty(len(images), dtype=np.float32)
    for first in range(0, len(images), _BLOCK_PAIRS):
        block = slice(first, first + _BLOCK_PAIRS)
        # The n-th references of all pairs at once; images have few captions, pairs are many.
        best = np.full(len(images[block]), -np.inf if aggregate != "mean" else 0.0, dtype=np.float32)
        for turn in range(int(count[block].max(initial=0))):
            has = count[block] > turn
            rows = order[start[block][has] + turn]
            cosine = np.einsum("pd,pd->p", vectors[rows], vectors[captions[block][has]])
            best[has] = best[has] + cosine if aggregate == "mean" else np.maximum(best[has], cosine)
        result[block] = best / np.maximum(count[block], 1) if aggregate == "mean" else best
    if aggregate != "mean":  # a caption is as close to itself as can be, whatever the rounding says
        result[image_of_caption[captions] == images] = 1.0
    return result.clip(-1, 1)
