"""Kendall's tau between the scores of a model and graded labels, for every query of both directions."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls.evaluation._inputs import Floats, Matrix, blocks, check_matrix, cores, read_rows, to_floats
from bcls.evaluation._inversions import count_inversions

# Elements that one thread works on at once: a few megabytes with everything made from them.
_BLOCK = 1 << 16


def kendall(similarity: Matrix, relevance: Matrix) -> dict[str, float]:
    r"""Compute the mean over queries of Kendall's tau between scores and labels.

    .. math::
        \tau_a = \frac{C - D}{P}, \qquad \tau_b = \frac{C - D}{\sqrt{(P - T_s)(P - T_r)}}, \qquad P = n(n - 1)/2

    where of the :math:`P` pairs of a query's :math:`n` items :math:`C` are ordered alike by scores and labels,
    :math:`D` are ordered the other way round, and :math:`T_s`, :math:`T_r` have equal scores or equal labels.

    A query whose scores or whose labels are all equal has no tau-b and is left out of that mean; its tau-a is 0. A
    query with one item has neither. The mean of nothing is nan. A query takes O(n log² n), and all cores are used.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        relevance: ``(N, C)`` labels of the same pairs, array or tensor, any scale.

    Returns:
        ``i2t_tau_a`` and ``i2t_tau_b``, means over the rows, ``t2i_tau_a`` and ``t2i_tau_b``, means over the columns.

    Raises:
        ValueError: If the two are not matrices of one shape, or a value is not finite.

    Example:
        >>> similarity = np.array([[0.9, 0.3, 0.1], [0.2, 0.8, 0.5]])
        >>> relevance = np.array([[1.0, 0.1, 0.4], [0.2, 1.0, 0.6]])
        >>> kendall(similarity, relevance)
        {'i2t_tau_a': 0.66..., 't2i_tau_a': 1.0, 'i2t_tau_b': 0.66..., 't2i_tau_b': 1.0}
    """
    check_matrix("similarity", similarity)
    check_matrix("relevance", relevance)
    if tuple(similarity.shape) != tuple(relevance.shape):
        expected = f"the shape of `similarity`, {tuple(similarity.shape)}"
        fail("relevance", expected, tuple(relevance.shape), "give one label for each score")
    images, captions = similarity.shape

    def image_queries(part: slice) -> NDArray[np.float64]:
        return _taus(read_rows("similarity", similarity, part), read_rows("relevance", relevance, part))

    def caption_queries(part: slice) -> NDArray[np.float64]:
        # Already found to be finite, row by row, in the other direction.
        return _taus(to_floats(similarity[:, part]).T, to_floats(relevance[:, part]).T)

    i2t = _means(image_queries, images, captions)
    t2i = _means(caption_queries, captions, images)
    return {"i2t_tau_a": i2t[0], "t2i_tau_a": t2i[0], "i2t_tau_b": i2t[1], "t2i_tau_b": t2i[1]}


def _means(taus: Callable[[slice], NDArray[np.float64]], queries: int, items: int) -> list[float]:
    """Average each kind of tau over the queries that have it."""
    parts = list(blocks(queries, max(1, _BLOCK // items)))
    # Threads, for the sorts that take the time run outside the interpreter's lock. In order, so that the first bad
    # row is the one that is reported.
    with ThreadPoolExecutor(min(cores(), len(parts))) as pool:
        values = np.concatenate(list(pool.map(taus, parts)), axis=1)
    kept = [kind[~np.isnan(kind)] for kind in values]
    return [float(kind.mean()) if kind.size else float("nan") for kind in kept]


def _taus(scores: Floats, labels: Floats) -> NDArray[np.float64]:
    """Compute tau-a and tau-b, ``(2, Q)``, of Q queries given as rows; nan where there is none."""
    queries, items = scores.shape
    pairs = items * (items - 1) // 2
    if not pairs:
        return np.full((2, queries), np.nan)
    score_keys, label_keys = _order_keys(scores), _order_keys(labels)
    low = np.uint64(0xFFFFFFFF)
    # By label, and within equal labels by score, so that the pairs of equal labels add no inversion below.
    by_label = (label_keys.astype(np.uint64) << np.uint64(32)) | score_keys
    by_label.sort(axis=1)
    # Then by score, and within equal scores by the place in that order, so that these pairs add none either. The
    # places in this order are a permutation with exactly one inversion for each discordant pair.
    by_score = (by_label << np.uint64(32)) | np.arange(items, dtype=np.uint64)
    by_score.sort(axis=1)
    discordant = count_inversions((by_score & low).astype(np.int32))
    equal_labels, equal_scores = _tied_pairs(by_label >> np.uint64(32)), _tied_pairs(by_score >> np.uint64(32))
    # C + D leaves out the pairs with equal labels or equal scores; those with both are in either count.
    net = pairs - equal_labels - equal_scores + _tied_pairs(by_label) - 2 * discordant
    weight = np.sqrt(pairs - equal_labels, dtype=np.float64) * np.sqrt(pairs - equal_scores, dtype=np.float64)
    tau_b = np.divide(net, weight, out=np.full(queries, np.nan), where=weight > 0)
    return np.stack([net / pairs, np.clip(tau_b, -1.0, 1.0)])


def _order_keys(values: Floats) -> NDArray[np.uint32]:
    """Map each row to unsigned integers that are ordered, and equal, exactly as its values are."""
    if values.dtype == np.float32:
        # The bits of positive floats are ordered as they are, those of negative ones backwards. Adding zero makes
        # -0.0, which equals 0.0, the same bits.
        bits = np.add(values, np.float32(0), order="C").view(np.int32)
        flip: NDArray[np.uint32] = (bits >> 31).view(np.uint32) | np.uint32(0x80000000)
        return bits.view(np.uint32) ^ flip
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    dense = np.zeros(values.shape, dtype=np.uint32)
    np.cumsum(ordered[:, 1:] != ordered[:, :-1], axis=1, out=dense[:, 1:])
    keys = np.empty_like(dense)
    np.put_along_axis(keys, order, dense, axis=1)
    return keys


def _tied_pairs(ordered: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Count the pairs of equal values in each row; the rows are sorted."""
    rows, length = ordered.shape
    first = np.ones((rows, length), dtype=bool)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=first[:, 1:])
    starts = np.flatnonzero(first)
    sizes = np.diff(starts, append=ordered.size)
    pairs = np.zeros(rows, dtype=np.int64)
    tied = sizes > 1
    np.add.at(pairs, starts[tied] // length, sizes[tied] * (sizes[tied] - 1) // 2)
    return pairs
