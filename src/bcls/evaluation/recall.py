"""Recall at K, as the field counts it: a query is a hit when any gold item is among its first K."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls.evaluation._inputs import (
    Floats,
    Matrix,
    blocks,
    check_image_of_caption,
    check_matrix,
    is_tensor,
    read_rows,
    to_floats,
)

# Elements read at once: a megabyte of float32, which stays in the cache for the passes over it.
_BLOCK = 1 << 18
# Rows in a block, so that a count of them fits the uint8 that makes the column sums fast.
_ROWS = 255


def recalls(
    similarity: Matrix, image_of_caption: object, ks: Sequence[int] = (1, 5, 10), folds: int = 1
) -> dict[str, float]:
    r"""Compute the recalls at K of both directions and their sum.

    .. math::
        R@K = \frac{100}{|Q|} \sum_{q \in Q} [\min_{g \in G_q} \mathrm{rank}_q(g) \le K]

    where :math:`G_q` are the captions of image :math:`q` (image to text, over the images that have any) or the one
    image of caption :math:`q` (text to image). Ties rank the lower index first, as ``argsort(-s, kind="stable")``
    does. Nothing is sorted: the rank of the best gold item is one more than the number of items above it.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor, any scale.
        image_of_caption: ``(C,)`` integers, the row of each caption's image. An image may have any number of
            captions; one without captions is no query, but stays in the gallery.
        ks: The cut-offs K.
        folds: Average over this many consecutive folds of the images, each with its captions alone (COCO 1K is
            ``folds=5`` on the 5K test split).

    Returns:
        Percentages ``i2t_r{k}`` and ``t2i_r{k}`` for each K, and ``rsum``, the sum of them all.

    Raises:
        ValueError: If shapes, indices, ``ks`` or ``folds`` do not fit together, or a score is not finite.

    Example:
        >>> similarity = np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2]])
        >>> recalls(similarity, [0, 1, 1], ks=(1, 2))
        {'i2t_r1': 50.0, 'i2t_r2': 100.0, 't2i_r1': 66.6..., 't2i_r2': 100.0, 'rsum': 316.6...}
    """
    check_matrix("similarity", similarity)
    images, captions = similarity.shape
    owner = check_image_of_caption(image_of_caption, images, captions)
    _check_ks(ks)
    cuts = _cut_folds(owner, images, folds)
    ranks = [_gold_ranks(similarity, owner, rows, columns) for rows, columns in cuts]
    figures = {}
    for direction, name in enumerate(("i2t", "t2i")):
        for k in ks:
            shares = [100.0 * int(np.count_nonzero(fold[direction] < k)) / len(fold[direction]) for fold in ranks]
            figures[f"{name}_r{k}"] = sum(shares) / folds
    return figures | {"rsum": sum(figures.values())}


def _check_ks(ks: Sequence[int]) -> None:
    good = len(ks) > 0 and all(isinstance(k, int | np.integer) and k > 0 for k in ks) and len(set(ks)) == len(ks)
    if not good:
        fail("ks", "different whole numbers above 0", repr(ks), "the field prints (1, 5, 10)")


def _cut_folds(owner: NDArray[np.int64], images: int, folds: int) -> list[tuple[slice, slice]]:
    """Cut the images, and the captions with them, into consecutive folds of equally many images."""
    if folds < 1 or images % folds:
        fail("folds", f"a divisor of the {images} images", folds, "use folds=1 for the whole gallery")
    size = images // folds
    fold_of_caption = owner // size
    backwards = np.flatnonzero(np.diff(fold_of_caption) < 0)
    if folds > 1 and backwards.size:
        got = f"caption {backwards[0] + 1} of an earlier fold than caption {backwards[0]}"
        fail("image_of_caption", "captions grouped by fold", got, "sort the columns by image, or use folds=1")
    # With one fold there is nothing to group: all captions belong to it, in any order.
    starts = np.searchsorted(fold_of_caption, np.arange(folds + 1)) if folds > 1 else np.array([0, len(owner)])
    empty = np.flatnonzero(np.diff(starts) == 0)
    if empty.size:
        fail("folds", "folds with captions in each", f"fold {empty[0]} without any", "use fewer folds")
    return [(slice(f * size, (f + 1) * size), slice(int(starts[f]), int(starts[f + 1]))) for f in range(folds)]


def _gold_ranks(
    similarity: Matrix, owner: NDArray[np.int64], rows: slice, columns: slice
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the items that rank above the best gold item of each query, in the given part of the matrix.

    Returns:
        The counts of the images that have captions, and the counts of the captions, 0 for a gold item in front.
    """
    images, captions = rows.stop - rows.start, columns.stop - columns.start
    owner = owner[columns] - rows.start
    gold = _pick(similarity, owner + rows.start, np.arange(columns.start, columns.stop))
    # The best caption of an image is its highest, and of equals the first.
    best = np.full(images, -np.inf, dtype=gold.dtype)
    np.maximum.at(best, owner, gold)
    leading = np.flatnonzero(gold == best[owner])
    best_column = np.full(images, captions)
    np.minimum.at(best_column, owner[leading], leading)
    asked = best_column < captions

    image_rank, caption_rank = np.zeros(images, dtype=np.int64), np.zeros(captions, dtype=np.int64)
    for part in blocks(images, max(1, min(_ROWS, _BLOCK // similarity.shape[1]))):
        # Whole rows are read, also outside the fold's columns, so that a bad value anywhere is reported.
        here = slice(rows.start + part.start, rows.start + part.stop)
        block = read_rows("similarity", similarity, here)[:, columns]
        above = block > best[part, None]
        image_rank[part] = [np.count_nonzero(line) for line in above]
        np.greater(block, gold, out=above)
        caption_rank += above.view(np.uint8).sum(axis=0, dtype=np.uint8)
        line, column = _equal(block, best[part, None])
        np.add.at(image_rank, part.start + line[column < best_column[part][line]], 1)
        line, column = _equal(block, gold)
        np.add.at(caption_rank, column[part.start + line < owner[column]], 1)
    return image_rank[asked], caption_rank


def _equal(block: Floats, gold: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find where the block equals the gold scores: few places, so that their order is cheap to look at."""
    line, column = np.divmod(np.flatnonzero(block == gold), block.shape[1])
    return line, column


def _pick(matrix: Matrix, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Floats:
    """Read single elements."""
    if is_tensor(matrix):
        import torch

        place = matrix.device
        return to_floats(matrix[torch.from_numpy(rows).to(place), torch.from_numpy(columns).to(place)])
    return to_floats(matrix[rows, columns])
