"""What the rank of a query is the rank of.

Ranks of gold items counted where the scores are: on a GPU a matrix that fits it is looked at in one go.

Ranks of gold items without a sort: the rank is the number of items above it.

The rank of the best gold item of each query, and the median and the mean of these ranks.

Recall at K, as the field counts it: a query is a hit when any gold item is among its first K.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import check_whole, fail
from bcls.evaluation.inputs import (
    Floats,
    Matrix,
    blocks,
    check_image_of_caption,
    check_matrix,
    counts_in_place,
    is_tensor,
    read_rows,
    take,
    to_floats,
)

if TYPE_CHECKING:
    from torch import Tensor

Ids: TypeAlias = NDArray[np.int64]


class Targets(NamedTuple):
    """The best gold item of each query: its score, plus infinity for a query without one, and its index or -1."""

    score: NDArray[Any]
    item: Ids

    def asked(self) -> NDArray[np.bool_]:
        """Tell which queries have a gold item."""
        return self.item >= 0


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
    """As :func:`bcls.evaluation.recall.count_above`, for all of a finite matrix."""
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


class QueryRanks(NamedTuple):
    """Ranks from 1 on; 0 for an image without captions, which is no query."""

    #: ``(N,)`` rank of the best caption of each image.
    i2t: NDArray[np.int64]
    #: ``(C,)`` rank of the image of each caption.
    t2i: NDArray[np.int64]


def shares_within(ranks: NDArray[np.int64], ks: Iterable[int]) -> dict[int, float]:
    """Compute the percentage of ranks that are at most K, for each K; rank 0 is no query, and of none it is nan.

    Example:
        >>> shares_within(np.array([1, 3, 0, 7, 2]), (1, 5))
        {1: 25.0, 5: 75.0}
    """
    asked = ranks[ranks > 0]
    return {k: 100.0 * int(np.count_nonzero(asked <= k)) / len(asked) if len(asked) else float("nan") for k in ks}


def recalls_of_ranks(folds: Sequence[QueryRanks], ks: Sequence[int]) -> dict[str, float]:
    """Compute what :func:`bcls.evaluation.recalls` gives, from the ranks of each fold.

    Example:
        >>> recalls_of_ranks([QueryRanks(np.array([1, 2]), np.array([1, 1, 2, 3]))], (1,))
        {'i2t_r1': 50.0, 't2i_r1': 50.0, 'rsum': 100.0}
    """
    figures: dict[str, float] = {}
    for direction, name in enumerate(QueryRanks._fields):
        shares = [shares_within(fold[direction], ks) for fold in folds]
        figures |= {f"{name}_r{k}": sum(one[k] for one in shares) / len(folds) for k in ks}
    return figures | {"rsum": sum(figures.values())}


def query_ranks(similarity: Matrix, image_of_caption: object) -> QueryRanks:
    r"""Compute the rank of the best gold item of every query, what recalls and tests between models are made of.

    .. math::
        \mathrm{rank}_q = 1 + \min_{g \in G_q} |\{j : s_{qj} > s_{qg} \text{ or } s_{qj} = s_{qg}, j < g\}|

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor, any scale.
        image_of_caption: ``(C,)`` integers, the row of each caption's image.

    Returns:
        ``(N,)`` ranks of the images and ``(C,)`` of the captions, ``i2t`` and ``t2i``; 0 for an image without captions.

    Raises:
        ValueError: If shapes or indices do not fit together, or a score is not finite.

    Example:
        >>> query_ranks(np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2]]), [0, 1, 1])
        QueryRanks(i2t=array([1, 2]), t2i=array([1, 1, 2]))
    """
    check_matrix("similarity", similarity)
    owner = check_image_of_caption(image_of_caption, *similarity.shape)
    captions = np.arange(len(owner))
    of_images = gold_targets(similarity, owner, captions, query="image")
    of_captions = gold_targets(similarity, owner, captions, query="caption")
    (i2t,), (t2i,) = count_above(similarity, slice(None), slice(None), [of_images], [of_captions])
    return QueryRanks(np.where(of_images.asked(), i2t + 1, 0), t2i + 1)


def median_rank(similarity: Matrix, image_of_caption: object) -> dict[str, float]:
    """Compute the median and the mean rank of the best gold item, over the queries of each direction.

    The median is rounded down, as in the tables of the field.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor, any scale.
        image_of_caption: ``(C,)`` integers, the row of each caption's image; an image without captions is no query.

    Returns:
        ``i2t_median_rank``, ``i2t_mean_rank``, ``t2i_median_rank`` and ``t2i_mean_rank``, 1 for a gold item in front.

    Raises:
        ValueError: If shapes or indices do not fit together, or a score is not finite.

    Example:
        >>> median_rank(np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2]]), [0, 1, 1])
        {'i2t_median_rank': 1.0, 'i2t_mean_rank': 1.5, 't2i_median_rank': 1.0, 't2i_mean_rank': 1.33...}
    """
    i2t, t2i = query_ranks(similarity, image_of_caption)
    figures = {}
    for direction, ranks in (("i2t", i2t[i2t > 0]), ("t2i", t2i)):
        figures[f"{direction}_median_rank"] = float(np.floor(np.median(ranks)))
        figures[f"{direction}_mean_rank"] = float(ranks.mean())
    return figures


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
    cut_offs = check_ks(ks)
    cuts = _cut_folds(owner, images, check_whole("folds", folds, least=1))
    of_images = gold_targets(similarity, owner, np.arange(captions), query="image")
    of_captions = gold_targets(similarity, owner, np.arange(captions), query="caption")
    ranks = []
    for rows, columns in cuts:
        (by_image,), (by_caption,) = count_above(similarity, rows, columns, [of_images], [of_captions])
        ranks.append(QueryRanks(np.where(of_images.asked()[rows], by_image + 1, 0), by_caption + 1))
    return recalls_of_ranks(ranks, cut_offs)


def check_ks(ks: object) -> list[int]:
    """Check that the cut-offs are different whole numbers above 0.

    Example:
        >>> check_ks((1, 5))
        [1, 5]
    """
    given = list(ks) if isinstance(ks, Sequence | np.ndarray) else []
    if not given or isinstance(ks, str):
        fail("ks", "a list of whole numbers above 0", repr(ks), "the field prints (1, 5, 10)")
    numbers = [check_whole("ks", k, least=1) for k in given]
    if len(set(numbers)) < len(numbers):
        fail("ks", "different numbers", repr(ks), "name each cut-off once")
    return numbers


def _cut_folds(owner: NDArray[np.int64], images: int, folds: int) -> list[tuple[slice, slice]]:
    """Cut the images, and the captions with them, into consecutive folds of equally many images."""
    if images % folds:
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
