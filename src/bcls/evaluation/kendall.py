"""Kendall's tau between scores and graded labels, for all queries of both directions.

Concordant, discordant and tied pairs are counted exactly, for many rows at a time: with numpy's sorts on the CPU, or
with sorts, prefix sums and scatters of torch on a CUDA device. Both give the same integers.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import bcls.evaluation.inputs as inputs
from bcls.evaluation.inputs import BLOCK, Floats, Ids, Matrix, Values

if TYPE_CHECKING:
    import torch

#: Per row: concordant minus discordant pairs, pairs of equal scores, and pairs of equal labels.
PairCounts: TypeAlias = "tuple[Ids, Ids, Ids]"

_BLOCK = BLOCK
# Elements that a GPU processes at a time; up to 1.5 GB with all intermediate tensors.
_DEVICE_BLOCK = 1 << 24
# Inversions within runs of this length are counted by comparing all pairs, which is faster than sorting.
_RUN = 8


def kendall(similarity: Matrix, relevance: Matrix) -> dict[str, float]:
    r"""Compute the mean over queries of Kendall's tau between scores and labels.

    .. math::
        \tau_a = \frac{C - D}{P}, \qquad \tau_b = \frac{C - D}{\sqrt{(P - T_s)(P - T_r)}}, \qquad P = n(n - 1)/2

    where of the :math:`P` pairs of a query's :math:`n` items :math:`C` are ordered alike by scores and labels,
    :math:`D` are ordered differently, and :math:`T_s`, :math:`T_r` have equal scores or equal labels.

    A query whose scores or labels are all equal has no tau-b and is left out of that mean; its tau-a is 0. A query
    with one item has neither. The mean over no queries is nan. A query takes O(n log² n), and all cores are used. If
    ``similarity`` is on a CUDA device, pairs are counted there in O(n log n) per query, with the same result.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        relevance: ``(N, C)`` labels of the same pairs, array or tensor, any scale.

    Returns:
        ``i2t_tau_a`` and ``i2t_tau_b``, means over the rows, ``t2i_tau_a`` and ``t2i_tau_b``, means over the columns.

    Raises:
        ValueError: If the two are not matrices of the same shape, or a value is not finite.

    Example:
        >>> similarity = np.array([[0.9, 0.3, 0.1], [0.2, 0.8, 0.5]])
        >>> relevance = np.array([[1.0, 0.1, 0.4], [0.2, 1.0, 0.6]])
        >>> kendall(similarity, relevance)
        {'i2t_tau_a': 0.66..., 't2i_tau_a': 1.0, 'i2t_tau_b': 0.66..., 't2i_tau_b': 1.0}
    """
    inputs.check_labels(similarity, relevance)
    block = _BLOCK
    floats: Callable[[Matrix], Any] = inputs.to_floats
    if inputs.is_tensor(similarity) and inputs.computes_in_place(similarity):
        block, floats = _DEVICE_BLOCK, partial(inputs.to_tensor, device=similarity.device)
    i2t, t2i = inputs.by_query(taus, block=block, floats=floats, similarity=similarity, relevance=relevance)
    return inputs.direction_means(("tau_a", "tau_b"), i2t, t2i)


def taus(scores: Any, labels: Any, *_ids: Ids) -> Values:
    """Compute tau-a and tau-b, ``(2, Q)``, of Q queries given as rows of floats; nan where undefined."""
    count = concordance_on_device if inputs.is_tensor(scores) else concordance
    net, equal_scores, equal_labels = count(scores, labels)
    items = scores.shape[1]
    pairs = items * (items - 1) // 2
    if not pairs:
        return np.full((2, len(net)), np.nan)
    weight = np.sqrt(pairs - equal_labels, dtype=np.float64) * np.sqrt(pairs - equal_scores, dtype=np.float64)
    tau_b = np.divide(net, weight, out=np.full(len(net), np.nan), where=weight > 0)
    return np.stack([net / pairs, np.clip(tau_b, -1.0, 1.0)])


def concordance(scores: Floats, labels: Floats) -> PairCounts:
    """Count, for each row, concordant minus discordant pairs, pairs of equal scores and pairs of equal labels."""
    items = scores.shape[1]
    high = np.uint64(32)
    # Sort by label, and equal labels by score, so that pairs of equal labels add no inversion below.
    by_label = (inputs.order_keys(labels).astype(np.uint64) << high) | inputs.order_keys(scores)
    by_label.sort(axis=1)
    # Then sort by score, and equal scores by their position in the first order, so that these pairs add none either.
    # The positions in this order are a permutation with exactly one inversion for each discordant pair.
    by_score = (by_label << high) | np.arange(items, dtype=np.uint64)
    by_score.sort(axis=1)
    discordant = count_inversions((by_score & np.uint64(0xFFFFFFFF)).astype(np.int32))
    equal_labels, equal_scores = _tied_pairs(by_label >> high), _tied_pairs(by_score >> high)
    # C + D excludes pairs with equal labels or equal scores; pairs with both equal are in either count.
    net = items * (items - 1) // 2 - equal_labels - equal_scores + _tied_pairs(by_label) - 2 * discordant
    return net, equal_scores, equal_labels


def count_inversions(permutations: NDArray[np.int32]) -> Ids:
    r"""Count the inversions of each row.

    .. math::
        I = |\{(i, j) : i < j, p_i > p_j\}|

    This is a bottom-up merge sort of all rows at once. Each level sorts blocks of two neighboring runs whose keys are
    marked in the lowest bit; the final positions of the left run's keys give the number of keys that passed them.

    Args:
        permutations: ``(R, n)`` distinct integers in each row, 0 to :math:`2^{30} - 1`.

    Returns:
        ``(R,)`` int64 counts.

    Example:
        >>> count_inversions(np.array([[0, 1, 2], [2, 0, 1], [2, 1, 0]], dtype=np.int32))
        array([0, 2, 3])
    """
    rows, length = permutations.shape
    keys = permutations << 1
    total = np.zeros(rows, dtype=np.int64)
    whole = length - length % _RUN
    runs, rest = keys[:, :whole].reshape(rows, -1, _RUN), keys[:, whole:]
    for gap in range(1, _RUN):
        total += np.count_nonzero(runs[:, :, :-gap] > runs[:, :, gap:], axis=(1, 2))
        total += np.count_nonzero(rest[:, :-gap] > rest[:, gap:], axis=1)
    width = _RUN
    while width < length:
        whole = length - length % (2 * width)
        if whole:
            pairs = keys[:, :whole].reshape(rows, -1, 2 * width)
            total += _merge(pairs, width)
            keys[:, :whole] = pairs.reshape(rows, whole)
        # The remainder holds at most one full and one partial run; a single run is merged at a later level.
        if length - whole > width:
            total += _merge(keys[:, None, whole:], width)
        width *= 2
    return total


def _merge(pairs: NDArray[np.int32], width: int) -> Ids:
    """Sort blocks of a left run of ``width`` and a right run, in place, and count the inversions between the two."""
    pairs &= -2
    pairs[:, :, :width] |= 1
    pairs.sort(axis=2)
    # A left key at position p with l left keys before it has p - l right keys before it. The l sum to 0 + 1 + ...
    left = (pairs & 1).sum(axis=1, dtype=np.int32)
    places: Ids = left @ np.arange(pairs.shape[2], dtype=np.int64)
    places -= pairs.shape[1] * (width * (width - 1) // 2)
    return places


def _tied_pairs(ordered: NDArray[np.uint64]) -> Ids:
    """Count the pairs of equal values in each row; the rows are sorted."""
    places = np.arange(ordered.shape[1], dtype=np.int32)
    starts = np.broadcast_to(places, ordered.shape).copy()
    starts[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = 0
    np.maximum.accumulate(starts, axis=1, out=starts)
    # Each item forms a pair with every item between the start of its run and itself.
    pairs: Ids = (places - starts).sum(axis=1, dtype=np.int64)
    return pairs


def concordance_on_device(scores: "torch.Tensor", labels: "torch.Tensor") -> PairCounts:
    """Count as :func:`concordance` does, in the same order of steps, on the device of the tensors.

    Args:
        scores: ``(Q, n)`` float32 or float64, finite.
        labels: The same.
    """
    items = scores.shape[1]
    by_score = scores.argsort(dim=1, stable=True)
    labels, by_label = labels.gather(1, by_score).sort(dim=1, stable=True)
    scores = scores.gather(1, by_score).gather(1, by_label)
    ascending, permutation = scores.sort(dim=1, stable=True)
    same_label, same_score = (values[:, 1:] == values[:, :-1] for values in (labels, scores))
    equal_labels, equal_both = _tied_pairs_on_device(same_label), _tied_pairs_on_device(same_label & same_score)
    equal_scores = _tied_pairs_on_device(ascending[:, 1:] == ascending[:, :-1])
    discordant = inversions(permutation.int())
    net = items * (items - 1) // 2 - equal_labels - equal_scores + equal_both - 2 * discordant
    return net.cpu().numpy(), equal_scores.cpu().numpy(), equal_labels.cpu().numpy()


def inversions(permutations: "torch.Tensor") -> "torch.Tensor":
    r"""Count the inversions of each row, one bit of the values after another.

    From the highest bit down, the values form groups that agree in all higher bits. A pair within a group whose bits
    differ is an inversion if the 1 comes first; a prefix sum over the bits counts these. The group is then split into
    its zeros and its ones, each in their order. Since each row holds every value from 0 to n - 1, the start of each
    group and the number of ones before it are known. :math:`O(n \log n)` per row, without sorting.

    Args:
        permutations: ``(Q, n)`` int32, each row a permutation of 0 to n - 1.

    Returns:
        ``(Q,)`` int64 counts.

    Example:
        >>> import torch
        >>> inversions(torch.tensor([[0, 1, 2], [2, 0, 1], [2, 1, 0]], dtype=torch.int32))
        tensor([0, 2, 3])
    """
    import torch

    rows, length = permutations.shape
    values = permutations
    total = torch.zeros(rows, dtype=torch.int64, device=values.device)
    for level in reversed(range((length - 1).bit_length())):
        bit = (values >> level) & 1
        group = values >> (level + 1)
        # Ones of the same group before each position; each group before it has 2**level ones.
        ones = torch.cumsum(bit, dim=1, dtype=torch.int32) - bit - (group << level)
        total += (ones * (1 - bit)).sum(dim=1, dtype=torch.int64)
        if level:
            place = torch.arange(length, dtype=torch.int32, device=values.device)
            # A group that has a one has all of its 2**level zeros.
            place = torch.where(bit.bool(), (group << (level + 1)) + (1 << level) + ones, place - ones)
            values = torch.empty_like(values).scatter_(1, place.long(), values)
    return total


def _tied_pairs_on_device(same: "torch.Tensor") -> "torch.Tensor":
    """Count the pairs of equal values in each row; ``same`` tells which items of a sorted row equal the one before."""
    import torch

    places = torch.arange(1, same.shape[1] + 1, dtype=torch.int32, device=same.device).expand(same.shape)
    # Each item forms a pair with every item between the start of its run and itself.
    return (places - places.masked_fill(same, 0).cummax(dim=1).values).sum(dim=1, dtype=torch.int64)
