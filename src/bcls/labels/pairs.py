"""Relevance of given pairs only, for judging labels by what people said of them."""

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_choice
from bcls.labels.relevance import AGGREGATES

# Pairs at a time: 4,096 of them with five references each hold 30 MB.
_BLOCK = 4096


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
    for first in range(0, len(images), _BLOCK):
        block = slice(first, first + _BLOCK)
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
