"""Ranks of gold items without a sort: the rank is the number of items above it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bcls.evaluation._inputs import Floats, Matrix, blocks, is_tensor, read_rows, take, to_floats
from bcls.evaluation._ranks_on_device import counted_there, counts_there
from bcls.evaluation._targets import Ids, Targets

# Elements read at once: a megabyte of float32, which stays in the cache for the passes over it.
_BLOCK = 1 << 18
# Rows in a block, so that a count of them fits the uint8 that makes the column sums fast.
_ROWS = 255


def pick(matrix: Matrix, rows: Ids, columns: Ids) -> Floats:
    """Read single elements."""
    if is_tensor(matrix):
        import torch

        place = matrix.device
        return to_floats(matrix[torch.from_numpy(rows).to(place), torch.from_numpy(columns).to(place)])
    return to_floats(matrix[rows, columns])


def best_targets(scores: Floats, query: Ids, item: Ids, queries: int) -> Targets:
    """Find the best gold item of each query: the highest, and of equals the first.

    Args:
        scores: ``(P,)`` scores of the gold pairs.
        query: ``(P,)`` their queries.
        item: ``(P,)`` their items.
        queries: How many queries there are.

    Example:
        >>> best_targets(np.array([0.5, 0.7, 0.7]), np.array([1, 1, 1]), np.array([0, 8, 4]), 2)
        Targets(score=array([inf, 0.7]), item=array([-1,  4]))
    """
    best = np.full(queries, -np.inf, dtype=scores.dtype)
    np.fmax.at(best, query, scores)  # a score that is nan is reported when its row is read
    leading = np.flatnonzero(scores == best[query])
    none = np.iinfo(np.int64).max
    first = np.full(queries, none)
    np.minimum.at(first, query[leading], item[leading])
    missing = first == none
    best[missing], first[missing] = np.inf, -1
    return Targets(best, first)


def gold_targets(similarity: Matrix, image: Ids, caption: Ids, *, query: str) -> Targets:
    """Find the best gold item of each image or caption, from gold pairs given by row and column."""
    scores = pick(similarity, image, caption)
    if query == "image":
        return best_targets(scores, image, caption, similarity.shape[0])
    return best_targets(scores, caption, image, similarity.shape[1])


def count_above(
    similarity: Matrix,
    rows: slice | Ids,
    columns: slice | Ids,
    of_images: Sequence[Targets],
    of_captions: Sequence[Targets],
) -> tuple[list[Ids], list[Ids]]:
    """Count the items that rank above the targets, within a part of the matrix, in one pass over it.

    Ties rank the lower index first. A query without a target gets 0: look at :meth:`Targets.asked`.

    Args:
        similarity: ``(N, C)`` checked matrix.
        rows: The images of the part; as indices in ascending order, and then without a check of the values.
        columns: The captions of the part, likewise.
        of_images: Targets of all N images, as often as wanted.
        of_captions: Targets of all C captions.

    Returns:
        For each of ``of_images`` one count an image of the part, and for each of ``of_captions`` one a caption.

    Raises:
        ValueError: If a value is not finite; whole rows are looked at, also outside the columns.
    """
    if is_tensor(similarity) and counts_there(similarity, rows, columns):
        return counted_there(similarity, of_images, of_captions)
    row_ids, column_ids = np.arange(similarity.shape[0])[rows], np.arange(similarity.shape[1])[columns]
    by_image = [np.zeros(len(row_ids), dtype=np.int64) for _ in of_images]
    by_caption = [np.zeros(len(column_ids), dtype=np.int64) for _ in of_captions]
    captions = [Targets(target.score[columns], target.item[columns]) for target in of_captions]
    for part in blocks(len(row_ids), max(1, min(_ROWS, _BLOCK // similarity.shape[1]))):
        here = row_ids[part]
        block = _read(similarity, rows, here)[:, columns]
        above = np.empty(block.shape, dtype=bool)
        for ranks, target in zip(by_image, of_images, strict=True):
            score, item = target.score[here, None], target.item[here]
            np.greater(block, score, out=above)
            ranks[part] = [np.count_nonzero(line) for line in above]
            line, column = _equal(block, score, above)
            np.add.at(ranks, part.start + line[column_ids[column] < item[line]], 1)
        for ranks, target in zip(by_caption, captions, strict=True):
            np.greater(block, target.score, out=above)
            ranks += above.view(np.uint8).sum(axis=0, dtype=np.uint8)
            line, column = _equal(block, target.score, above)
            np.add.at(ranks, column[here[line] < target.item[column]], 1)
    return by_image, by_caption


def _read(similarity: Matrix, rows: slice | Ids, here: Ids) -> Floats:
    if isinstance(rows, slice):
        return read_rows("similarity", similarity, slice(int(here[0]), int(here[-1]) + 1))
    return take(similarity, here, axis=0)


def _equal(block: Floats, gold: Floats, mask: NDArray[np.bool_]) -> tuple[Ids, Ids]:
    """Find where the block equals the gold scores: few places, so that their order is cheap to look at."""
    np.equal(block, gold, out=mask)
    line, column = np.divmod(np.flatnonzero(mask), block.shape[1])
    return line, column
