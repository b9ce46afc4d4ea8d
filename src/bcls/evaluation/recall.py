"""Recall at K and ranks of the best relevant item of each query.

The relevant items of an image are its captions, the relevant item of a caption is its image. No row is sorted: the rank
of an item is one more than the number of items with a higher score, or an equal score and a lower index.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import bcls.evaluation.inputs as inputs
from bcls._core.errors import check_whole, fail
from bcls.evaluation.inputs import Floats, Ids, Matrix

if TYPE_CHECKING:
    from torch import Tensor


# Elements read at a time: a megabyte of float32, which stays in the cache for all passes over it.
_BLOCK = 1 << 18
# Rows of a block, so that column counts fit into uint8, whose sums are fast.
_ROWS = 255
# Elements compared at a time on a GPU: two masks of one byte per element.
_DEVICE_BLOCK = 1 << 28


class QueryRanks(NamedTuple):
    """Rank of the best relevant item of each query, from 1; 0 for an image without captions, which is not a query."""

    #: ``(N,)`` rank of the best caption of each image.
    i2t: Ids
    #: ``(C,)`` rank of the image of each caption.
    t2i: Ids


def recalls(
    similarity: Matrix, image_of_caption: object, ks: Sequence[int] = (1, 5, 10), folds: int = 1
) -> dict[str, float]:
    r"""Compute recall at K of both directions and their sum.

    .. math::
        R@K = \frac{100}{|Q|} \sum_{q \in Q} [\min_{g \in G_q} \mathrm{rank}_q(g) \le K]

    where :math:`G_q` are the captions of image :math:`q` (image to text, over the images that have captions) or the
    image of caption :math:`q` (text to image). Ties rank the lower index first, as ``argsort(-s, kind="stable")``
    does.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor, any scale.
        image_of_caption: ``(C,)`` integers, the row of each caption's image. An image may have any number of
            captions; an image without captions is not a query, but stays in the gallery.
        ks: The cut-offs K.
        folds: Average over this many consecutive folds of the images, each with its own captions only (COCO 1K is
            ``folds=5`` on the 5K test split).

    Returns:
        Percentages ``i2t_r{k}`` and ``t2i_r{k}`` for each K, and their sum ``rsum``.

    Raises:
        ValueError: If shapes, indices, ``ks`` or ``folds`` do not match, or a score is not finite.

    Example:
        >>> similarity = np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2]])
        >>> recalls(similarity, [0, 1, 1], ks=(1, 2))
        {'i2t_r1': 50.0, 'i2t_r2': 100.0, 't2i_r1': 66.6..., 't2i_r2': 100.0, 'rsum': 316.6...}
    """
    cut_offs = check_ks(ks)
    return recalls_from_ranks(fold_ranks(similarity, image_of_caption, folds), cut_offs)


def query_ranks(similarity: Matrix, image_of_caption: object) -> QueryRanks:
    r"""Compute the rank of the best relevant item of each query; recalls and paired tests are computed from these.

    .. math::
        \mathrm{rank}_q = 1 + \min_{g \in G_q} |\{j : s_{qj} > s_{qg} \text{ or } s_{qj} = s_{qg}, j < g\}|

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor, any scale.
        image_of_caption: ``(C,)`` integers, the row of each caption's image.

    Returns:
        ``i2t``, ``(N,)`` ranks for the images, and ``t2i``, ``(C,)`` ranks for the captions; 0 for an image without
        captions.

    Raises:
        ValueError: If shapes or indices do not match, or a score is not finite.

    Example:
        >>> query_ranks(np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2]]), [0, 1, 1])
        QueryRanks(i2t=array([1, 2]), t2i=array([1, 1, 2]))
    """
    return fold_ranks(similarity, image_of_caption)[0]


def median_rank(similarity: Matrix, image_of_caption: object) -> dict[str, float]:
    """Compute median and mean of the ranks of the best relevant items, over the queries of each direction.

    The median is rounded down, as in published tables.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor, any scale.
        image_of_caption: ``(C,)`` integers, the row of each caption's image; an image without captions is not a query.

    Returns:
        ``i2t_median_rank``, ``i2t_mean_rank``, ``t2i_median_rank`` and ``t2i_mean_rank``; the best rank is 1.

    Raises:
        ValueError: If shapes or indices do not match, or a score is not finite.

    Example:
        >>> median_rank(np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2]]), [0, 1, 1])
        {'i2t_median_rank': 1.0, 'i2t_mean_rank': 1.5, 't2i_median_rank': 1.0, 't2i_mean_rank': 1.33...}
    """
    i2t, t2i = query_ranks(similarity, image_of_caption)
    metrics = {}
    for direction, ranks in (("i2t", i2t[i2t > 0]), ("t2i", t2i)):
        metrics[f"{direction}_median_rank"] = float(np.floor(np.median(ranks)))
        metrics[f"{direction}_mean_rank"] = float(ranks.mean())
    return metrics


def fold_ranks(similarity: Matrix, image_of_caption: object, folds: int = 1) -> list[QueryRanks]:
    """Compute :func:`query_ranks` of each of some consecutive folds of the images; see :func:`recalls`."""
    inputs.check_matrix("similarity", similarity)
    images, captions = similarity.shape
    owner = inputs.check_image_of_caption(image_of_caption, images, captions)
    parts = _split_folds(owner, images, check_whole("folds", folds, least=1))
    of_images = gold_targets(similarity, owner, np.arange(captions), query="image")
    of_captions = gold_targets(similarity, owner, np.arange(captions), query="caption")
    ranks = []
    for rows, columns in parts:
        (by_image,), (by_caption,) = count_above(similarity, rows, columns, [of_images], [of_captions])
        ranks.append(QueryRanks(np.where(of_images.exists()[rows], by_image + 1, 0), by_caption + 1))
    return ranks


def recalls_from_ranks(folds: Sequence[QueryRanks], ks: Sequence[int]) -> dict[str, float]:
    """Compute the result of :func:`recalls` from the ranks of each fold.

    Example:
        >>> recalls_from_ranks([QueryRanks(np.array([1, 2]), np.array([1, 1, 2, 3]))], (1,))
        {'i2t_r1': 50.0, 't2i_r1': 50.0, 'rsum': 100.0}
    """
    metrics: dict[str, float] = {}
    for direction, name in enumerate(QueryRanks._fields):
        shares = [shares_within(fold[direction], ks) for fold in folds]
        metrics |= {f"{name}_r{k}": sum(one[k] for one in shares) / len(folds) for k in ks}
    return metrics | {"rsum": sum(metrics.values())}


def shares_within(ranks: Ids, ks: Iterable[int]) -> dict[int, float]:
    """Compute the percentage of ranks that are at most K, for each K; rank 0 does not count, and without ranks nan.

    Example:
        >>> shares_within(np.array([1, 3, 0, 7, 2]), (1, 5))
        {1: 25.0, 5: 75.0}
    """
    kept = ranks[ranks > 0]
    return {k: 100.0 * int(np.count_nonzero(kept <= k)) / len(kept) if len(kept) else float("nan") for k in ks}


def check_ks(ks: object) -> list[int]:
    """Check that the cut-offs are distinct positive integers.

    Example:
        >>> check_ks((1, 5))
        [1, 5]
    """
    given = list(ks) if isinstance(ks, Sequence | np.ndarray) else []
    if not given or isinstance(ks, str):
        fail("ks", "a list of whole numbers above 0", repr(ks), "the usual ones are (1, 5, 10)")
    numbers = [check_whole("ks", k, least=1) for k in given]
    if len(set(numbers)) < len(numbers):
        fail("ks", "different numbers", repr(ks), "give each cut-off once")
    return numbers


class Targets(NamedTuple):
    """Best relevant item of each query: its score, or infinity for a query without one, and its index, or -1."""

    score: NDArray[Any]
    item: Ids

    def exists(self) -> NDArray[np.bool_]:
        """Which queries have a relevant item."""
        return self.item >= 0


def gold_targets(similarity: Matrix, image: Ids, caption: Ids, *, query: str) -> Targets:
    """Find the best relevant item of each image or caption, from relevant pairs given by row and column."""
    scores = inputs.take(similarity, image, caption)
    if query == "image":
        return best_targets(scores, image, caption, similarity.shape[0])
    return best_targets(scores, caption, image, similarity.shape[1])


def best_targets(scores: Floats, query: Ids, item: Ids, queries: int) -> Targets:
    """Find the best relevant item of each query: the one with the highest score, and of ties the first.

    Args:
        scores: ``(P,)`` scores of the relevant pairs.
        query: ``(P,)`` their queries.
        item: ``(P,)`` their items.
        queries: The number of queries.

    Example:
        >>> best_targets(np.array([0.5, 0.7, 0.7]), np.array([1, 1, 1]), np.array([0, 8, 4]), 2)
        Targets(score=array([inf, 0.7]), item=array([-1,  4]))
    """
    best = np.full(queries, -np.inf, dtype=scores.dtype)
    np.fmax.at(best, query, scores)  # a NaN score raises an error when its row is read
    leading = np.flatnonzero(scores == best[query])
    none = np.iinfo(np.int64).max
    first = np.full(queries, none)
    np.minimum.at(first, query[leading], item[leading])
    missing = first == none
    best[missing], first[missing] = np.inf, -1
    return Targets(best, first)


def count_above(
    similarity: Matrix, rows: slice | Ids, columns: slice | Ids, of_images: list[Targets], of_captions: list[Targets]
) -> tuple[list[Ids], list[Ids]]:
    """Count the items that rank above the targets within a part of the matrix, in one pass over it.

    Ties rank the lower index first. A query without a target gets 0, see :meth:`Targets.exists`.

    Args:
        similarity: ``(N, C)`` checked matrix.
        rows: The images of the part. Indices must be ascending; their values are then not checked.
        columns: The captions of the part, likewise.
        of_images: Any number of targets of all N images.
        of_captions: Any number of targets of all C captions.

    Returns:
        For each of ``of_images`` one count per image of the part, and for each of ``of_captions`` one per caption.

    Raises:
        ValueError: If a value is not finite; whole rows are checked, also outside of the columns.
    """
    if inputs.is_tensor(similarity) and _counts_on_device(similarity, rows, columns):
        by_image = [_count_above_on_device(similarity, target) for target in of_images]
        return by_image, [_count_above_on_device(similarity.T, target) for target in of_captions]
    row_ids, column_ids = np.arange(similarity.shape[0])[rows], np.arange(similarity.shape[1])[columns]
    by_image = [np.zeros(len(row_ids), dtype=np.int64) for _ in of_images]
    by_caption = [np.zeros(len(column_ids), dtype=np.int64) for _ in of_captions]
    captions = [Targets(target.score[columns], target.item[columns]) for target in of_captions]
    for part in inputs.blocks(len(row_ids), min(_ROWS, _BLOCK // similarity.shape[1])):
        here = row_ids[part]
        if isinstance(rows, slice):
            block = inputs.read_rows("similarity", similarity, slice(int(here[0]), int(here[-1]) + 1))[:, columns]
        else:
            block = inputs.take(similarity, here, slice(None))[:, columns]
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


def _equal(block: Floats, gold: Floats, mask: NDArray[np.bool_]) -> tuple[Ids, Ids]:
    """Find where the block equals the target scores; these positions are few."""
    np.equal(block, gold, out=mask)
    line, column = np.divmod(np.flatnonzero(mask), block.shape[1])
    return line, column


def _counts_on_device(similarity: "Tensor", rows: "slice | Ids", columns: "slice | Ids") -> bool:
    """Whether to count on the GPU: the whole matrix is used, it fits, and it is finite (else the CPU path raises)."""
    if not inputs.computes_in_place(similarity):
        return False
    parts = zip((rows, columns), similarity.shape, strict=True)
    whole = all(isinstance(part, slice) and range(size)[part] == range(size) for part, size in parts)
    return whole and similarity.numel() <= _DEVICE_BLOCK and bool(similarity.isfinite().all())


def _count_above_on_device(scores: "Tensor", target: Targets) -> Ids:
    """Count the items of each row that rank above its target."""
    import torch

    gold = torch.from_numpy(np.ascontiguousarray(target.score)).to(scores)[:, None]
    item = torch.from_numpy(target.item).to(scores.device)[:, None]
    column = torch.arange(scores.shape[1], device=scores.device)
    above = (scores > gold).sum(1) + ((scores == gold) & (column < item)).sum(1)
    ranks: Ids = above.cpu().numpy()
    return ranks


def _split_folds(owner: Ids, images: int, folds: int) -> list[tuple[slice, slice]]:
    """Split the images, with their captions, into consecutive folds of equal numbers of images."""
    if folds == 1:
        return [(slice(None), slice(None))]
    if images % folds:
        fail("folds", f"a divisor of the {images} images", folds, "use folds=1 for the whole gallery")
    size = images // folds
    fold_of_caption = owner // size
    backwards = np.flatnonzero(np.diff(fold_of_caption) < 0)
    if backwards.size:
        got = f"caption {backwards[0] + 1} of an earlier fold than caption {backwards[0]}"
        fail("image_of_caption", "captions grouped by fold", got, "sort the columns by image, or use folds=1")
    starts = np.searchsorted(fold_of_caption, np.arange(folds + 1))
    empty = np.flatnonzero(np.diff(starts) == 0)
    if empty.size:
        fail("folds", "captions in every fold", f"fold {empty[0]} without any", "use fewer folds")
    return [(slice(f * size, (f + 1) * size), slice(int(starts[f]), int(starts[f + 1]))) for f in range(folds)]
