"""Relevance labels: how similar a caption is to the captions of an image."""

import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import check_choice, fail

if TYPE_CHECKING:
    import torch

Ids = NDArray[np.int64]
Vectors = TypeVar("Vectors", "NDArray[Any]", "torch.Tensor")
#: How the cosines with the captions of an image are combined.
AGGREGATES = ("max", "mean", "paired")

# Elements of the largest temporary array: 64 MB of float32.
_BLOCK = 1 << 24


def relevance(
    reference: Vectors,
    captions: "NDArray[Any] | torch.Tensor",
    reference_image: object,
    caption_image: object = None,
    aggregate: str = "max",
) -> Vectors:
    r"""Compute the relevance of every caption to every image from text embeddings.

    .. math::
        r_{ij} = \max_{k : \mathrm{image}(k) = i} \cos(x_k, y_j)

    with ``aggregate="max"``; ``"mean"`` averages the cosines instead, and ``"paired"`` uses the only caption of the
    image, for batches with one sampled caption per image. Values are clamped to [-1, 1].

    Args:
        reference: ``(K, d)`` embeddings of the images' own captions, array or tensor, float16 and up; rows need not
            have unit length.
        captions: ``(C, d)`` embeddings of the candidates.
        reference_image: ``(K,)`` integers 0..N-1, the image of each reference row, in any order.
        caption_image: ``(C,)`` integers 0..N-1, the image of each candidate. If given, the relevance of a caption to
            its own image is exactly 1.
        aggregate: ``"max"``, ``"mean"`` or ``"paired"``.

    Returns:
        ``(N, C)`` float32, an array if ``reference`` is an array, else a tensor on its device, without gradient.

    Raises:
        ValueError: Shapes or indices do not match, an image has no reference row (or not exactly one, with
            ``"paired"``), or a row is zero or not finite.

    Example:
        >>> own = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> relevance(own, np.array([[2.0, 0.0], [0.0, 3.0]]), [0, 0, 1])
        array([[1. , 0.8],
               [0. , 1. ]], dtype=float32)
    """
    check_choice("aggregate", aggregate, AGGREGATES)
    check_embeddings("reference", reference)
    check_embeddings("captions", captions)
    if captions.shape[1] != reference.shape[1]:
        expected = f"rows of length {reference.shape[1]}, as `reference`"
        fail("captions", expected, captions.shape[1], "use one encoder for both")
    if not len(reference):
        fail("reference", "at least one row", "none", "pass the captions of the images")
    xp: Any = np if isinstance(reference, np.ndarray) else sys.modules["torch"]
    rows = _unit_rows(xp, "reference", _like(reference, reference))
    owner = check_images("reference_image", reference_image, len(rows))
    counts = _count(owner, aggregate)
    images, columns = len(counts), len(captions)
    own = None if caption_image is None else check_images("caption_image", caption_image, columns, images)

    rows = rows[np.argsort(owner, kind="stable")]
    starts = np.cumsum(counts) - counts
    if aggregate == "mean":  # the mean of the cosines is the dot product with the mean of the unit rows
        rows = _combine(lambda n, _: rows[n], starts, counts, operator.add) / _like(reference, counts[:, None])
        starts, counts = np.arange(images), np.ones_like(counts)
    result: Any = np.empty((images, columns), np.float32) if xp is np else rows.new_empty((images, columns))
    step = max(1, _BLOCK // images)
    for start in range(0, columns, step):
        block: Any = _unit_rows(xp, "captions", _like(reference, captions[start : start + step]), start).T

        def cosines(chosen: Ids, _: Any, candidates: Any = block) -> Any:
            return rows[chosen] @ candidates

        result[:, start : start + step] = _combine(cosines, starts, counts, xp.maximum)
    xp.clip(result, -1.0, 1.0, out=result)
    if own is not None:
        result[own, np.arange(columns)] = 1.0
    return result  # type: ignore[no-any-return]


def pair_relevance(
    vectors: NDArray[np.float32], image_of_caption: Ids, images: Ids, captions: Ids, aggregate: str = "max"
) -> NDArray[np.float32]:
    r"""Compute the relevance of given pairs (image, caption).

    .. math::
        r_{ij} = \max_{k : \mathrm{image}(k) = i} \cos(x_k, x_j)

    with ``aggregate="max"``; ``"mean"`` averages the cosines, ``"paired"`` uses one caption of the image: the caption
    itself if it is the image's own, else the image's first. The relevance of an image's own caption is exactly 1,
    except with ``"mean"``: there it is the average, which is compared with human judgements, whereas
    :func:`bcls.labels.relevance` returns 1.

    Args:
        vectors: ``(C, d)`` unit rows, one for each caption.
        image_of_caption: ``(C,)`` integers, the image of each caption.
        images: ``(P,)`` the image of each pair, a value of ``image_of_caption``.
        captions: ``(P,)`` the caption of each pair, a row number of ``vectors``.
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
    starts = np.searchsorted(owners, images, side="left")
    counts = np.searchsorted(owners, images, side="right") - starts
    if aggregate == "paired":
        counts = np.ones_like(counts)
    result = np.empty(len(images), dtype=np.float32)
    for first in range(0, len(images), _PAIRS):
        block = slice(first, first + _PAIRS)

        def cosines(rows: Ids, pairs: Any, chosen: Any = captions[block]) -> Any:
            return np.einsum("pd,pd->p", vectors[order[rows]], vectors[chosen[pairs]])

        result[block] = _combine(cosines, starts[block], counts[block], np.add if aggregate == "mean" else np.maximum)
    if aggregate == "mean":
        result /= counts
    else:  # the cosine of a caption with itself is 1, up to rounding
        result[image_of_caption[captions] == images] = 1.0
    return result.clip(-1, 1)


# Pairs at a time: 4,096 of them with five references each need 30 MB.
_PAIRS = 4096


def check_embeddings(argument: str, value: Any) -> None:
    """Check that ``value`` is an array or tensor ``(n, d)`` of real numbers; n may be 0.

    Args:
        argument: Name of the argument, for the message.
        value: The value to check.

    Raises:
        ValueError: It is anything else.

    Example:
        >>> check_embeddings("captions", np.zeros(4))
        Traceback (most recent call last):
        ...
        ValueError: `captions`: expected a matrix (texts, dimensions), got shape (4,); pass one embedding per text
    """
    expected = "a matrix (texts, dimensions)"
    torch = sys.modules.get("torch")  # a tensor can only exist if torch is imported
    tensor = torch is not None and isinstance(value, torch.Tensor)
    if not tensor and not isinstance(value, np.ndarray):
        fail(argument, expected, type(value).__name__, "pass a numpy array or a torch tensor")
    if len(value.shape) != 2 or not value.shape[1]:
        fail(argument, expected, f"shape {tuple(value.shape)}", "pass one embedding per text")
    if value.is_complex() if tensor else value.dtype.kind not in "fiu":
        fail(argument, "real numbers", f"dtype {value.dtype}", "pass float16, float32 or float64")


def check_images(argument: str, value: Any, length: int, images: int | None = None) -> Ids:
    """Check the image numbers of rows.

    Args:
        argument: Name of the argument, for the message.
        value: ``(length,)`` integers from 0; array, tensor or sequence.
        length: Number of rows.
        images: Number of images, if it is known.

    Returns:
        int64 array.

    Raises:
        ValueError: The number of integers is wrong, or one of them is not the number of an image.

    Example:
        >>> check_images("caption_image", [0, 2], 2, images=2)
        Traceback (most recent call last):
        ...
        ValueError: `caption_image`: expected integers 0 to 1, got 2 at index 1; add a row for that image to `reference`
    """
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if array.shape != (length,) or array.dtype.kind not in "iu":
        got = f"shape {array.shape} of {array.dtype}"
        fail(argument, f"{length} integers, the image of each row", got, "pass one integer per embedding")
    wrong = np.flatnonzero((array < 0) | (array >= images if images is not None else False))
    if wrong.size:
        expected = "integers from 0" if images is None else f"integers 0 to {images - 1}"
        got = f"{array[wrong[0]]} at index {wrong[0]}"
        fail(argument, expected, got, "add a row for that image to `reference`")
    return array.astype(np.int64)


def _like(reference: Any, value: Any) -> Any:
    """Convert to float32 without gradient, as an array or as a tensor on the device of ``reference``."""
    if isinstance(value, np.ndarray):
        # A copy even of float32: torch warns about arrays that are not writable, such as memory-mapped files.
        value = value.astype(np.float32)
        if isinstance(reference, np.ndarray):
            return value
        return sys.modules["torch"].from_numpy(value).to(reference.device)
    value = value.detach().float()
    return value.cpu().numpy() if isinstance(reference, np.ndarray) else value.to(reference.device)


def _unit_rows(xp: Any, argument: str, rows: Any, offset: int = 0) -> Any:
    """Normalize rows of an array (``xp`` is numpy) or tensor (torch); ``offset`` is the number of the first row."""
    largest = xp.amax(xp.abs(rows), axis=1, keepdims=True)
    problems = (
        (~xp.isfinite(largest), "finite numbers", "NaN or infinity", "encode that text again"),
        (largest == 0, "vectors other than zero", "a zero vector", "remove that caption, which is probably empty"),
    )
    for wrong, expected, got, hint in problems:
        if wrong.any():
            fail(argument, expected, f"{got} in row {offset + wrong.ravel().tolist().index(True)}", hint)
    # Divided by the largest value first, so that squares of very large or small numbers stay in range.
    scaled = rows / largest
    return scaled / xp.linalg.norm(scaled, axis=1, keepdims=True)


def _count(owner: Ids, aggregate: str) -> Ids:
    """Count the reference rows of each image and check them."""
    present, counts = np.unique(owner, return_counts=True)
    missing = np.flatnonzero(present != np.arange(len(present)))
    if missing.size:
        got = f"none for image {missing[0]}"
        fail("reference_image", "at least one reference row for each image", got, "number the images 0..N-1")
    several = np.flatnonzero(counts > 1)
    if aggregate == "paired" and several.size:
        got = f"{counts[several[0]]} for image {several[0]}"
        fail("reference_image", 'exactly one reference row per image with aggregate="paired"', got, 'use "max"')
    return counts


def _combine(values: Callable[[Ids, Any], Any], starts: Ids, counts: Ids, operation: Callable[[Any, Any], Any]) -> Any:
    """Combine values of the rows ``starts[i] .. starts[i] + counts[i] - 1`` for each i.

    The n-th rows of all i are processed at a time: counts are small, and the i are many.

    Args:
        values: Computes the values of given rows; the second argument selects the i that they belong to.
        starts: First row of each i.
        counts: Number of rows of each i, at least 1.
        operation: Combines two arrays of values.
    """
    result = values(starts, slice(None))
    for turn in range(1, int(counts.max())):
        chosen = np.flatnonzero(counts > turn)
        result[chosen] = operation(result[chosen], values(starts[chosen] + turn, chosen))
    return result
