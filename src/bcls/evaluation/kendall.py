"""Kendall's tau between the scores of a model and graded labels, for every query of both directions."""

import numpy as np
from numpy.typing import NDArray

from bcls.evaluation._inputs import Floats, Matrix, counts_in_place, is_tensor
from bcls.evaluation._inversions import count_inversions
from bcls.evaluation._order import order_keys
from bcls.evaluation._pairs_on_device import counts_on_device
from bcls.evaluation._queries import BLOCK, by_query, check_labels, mean

_BLOCK = BLOCK


def kendall(similarity: Matrix, relevance: Matrix) -> dict[str, float]:
    r"""Compute the mean over queries of Kendall's tau between scores and labels.

    .. math::
        \tau_a = \frac{C - D}{P}, \qquad \tau_b = \frac{C - D}{\sqrt{(P - T_s)(P - T_r)}}, \qquad P = n(n - 1)/2

    where of the :math:`P` pairs of a query's :math:`n` items :math:`C` are ordered alike by scores and labels,
    :math:`D` are ordered the other way round, and :math:`T_s`, :math:`T_r` have equal scores or equal labels.

    A query whose scores or whose labels are all equal has no tau-b and is left out of that mean; its tau-a is 0. A
    query with one item has neither. The mean of nothing is nan. A query takes O(n log² n), and all cores are used.
    Where ``similarity`` is on a CUDA device the pairs are counted there, O(n log n) a query, with the same result.

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
    check_labels(similarity, relevance)
    if is_tensor(similarity) and counts_in_place(similarity):
        by_image, by_caption = counts_on_device(similarity, relevance)
        i2t, t2i = _taus(by_image, similarity.shape[1]), _taus(by_caption, similarity.shape[0])
    else:
        i2t, t2i = by_query(taus, taus, similarity, relevance, block=_BLOCK)
    return {
        "i2t_tau_a": mean(i2t[0]),
        "t2i_tau_a": mean(t2i[0]),
        "i2t_tau_b": mean(i2t[1]),
        "t2i_tau_b": mean(t2i[1]),
    }


def taus(scores: Floats, labels: Floats, _part: slice = slice(0)) -> NDArray[np.float64]:
    """Compute tau-a and tau-b, ``(2, Q)``, of Q queries given as rows; nan where there is none."""
    if scores.shape[1] < 2:
        return np.full((2, len(scores)), np.nan)
    return _taus(np.stack(concordance(scores, labels)), scores.shape[1])


def _taus(counts: NDArray[np.int64], items: int) -> NDArray[np.float64]:
    """Compute tau-a and tau-b from counts of pairs: concordant less discordant, equal scores, equal labels."""
    net, equal_scores, equal_labels = counts
    pairs = items * (items - 1) // 2
    if not pairs:
        return np.full((2, len(net)), np.nan)
    weight = np.sqrt(pairs - equal_labels, dtype=np.float64) * np.sqrt(pairs - equal_scores, dtype=np.float64)
    tau_b = np.divide(net, weight, out=np.full(len(net), np.nan), where=weight > 0)
    return np.stack([net / pairs, np.clip(tau_b, -1.0, 1.0)])


def concordance(scores: Floats, labels: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Count, for each row, concordant less discordant pairs, pairs of equal scores and pairs of equal labels."""
    items = scores.shape[1]
    score_keys, label_keys = order_keys(scores), order_keys(labels)
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
    pairs = items * (items - 1) // 2
    net = pairs - equal_labels - equal_scores + _tied_pairs(by_label) - 2 * discordant
    return net, equal_scores, equal_labels


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
