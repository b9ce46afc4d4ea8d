"""Inversions of many permutations at once, with numpy's own sorts doing the merging.

Concordant, discordant and tied pairs of many rows at once, counted where tensors lie, such as on a GPU.

Everything here is sorts, prefix sums and scatters of whole blocks, which a GPU is fast at, and all counts are whole
numbers: they equal those of the path for arrays exactly.

Kendall's tau between the scores of a model and graded labels, for every query of both directions.
"""

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import fail
from bcls.evaluation.inputs import (
    BLOCK,
    Floats,
    Matrix,
    blocks,
    by_query,
    check_labels,
    counts_in_place,
    is_tensor,
    mean,
    order_keys,
)

if TYPE_CHECKING:
    import torch

# Runs this long are counted by comparing all their pairs: sorting anything shorter costs more in calls than in work.
_RUN = 8


def count_inversions(permutations: NDArray[np.int32]) -> NDArray[np.int64]:
    r"""Count the inversions of each row.

    .. math::
        I = |\{(i, j) : i < j, p_i > p_j\}|

    A merge sort from the bottom, one level for all rows together. Each level sorts blocks of two neighbouring runs
    that are marked in the lowest bit; the places where the left run lands tell how many of the right one passed it.

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
        # What is left over holds at most one run that is whole and one that is not; a lone run waits for its level.
        if length - whole > width:
            total += _merge(keys[:, None, whole:], width)
        width *= 2
    return total


def _merge(pairs: NDArray[np.int32], width: int) -> NDArray[np.int64]:
    """Sort each block of a left run of ``width`` and a right run, in place, and count the inversions between them."""
    pairs &= -2
    pairs[:, :, :width] |= 1
    pairs.sort(axis=2)
    # A left key at place p with l left keys before it has p - l right keys before it. The l add up to 0 + 1 + ...
    left = (pairs & 1).sum(axis=1, dtype=np.int32)
    places: NDArray[np.int64] = left @ np.arange(pairs.shape[2], dtype=np.int64)
    places -= pairs.shape[1] * (width * (width - 1) // 2)
    return places


#: Concordant less discordant pairs, pairs of equal scores and pairs of equal labels, of each row.
Counts: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor]"

# Elements worked on at once: up to 1.5 GB with everything made from them, and enough to fill a large GPU.
DEVICE_BLOCK = 1 << 24


def counts_on_device(
    similarity: "torch.Tensor", relevance: Matrix, block: int = DEVICE_BLOCK
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count pairs for the queries of both directions, on the device of ``similarity``.

    Args:
        similarity: ``(N, C)`` checked scores.
        relevance: ``(N, C)`` checked labels, array or tensor on any device; moved block by block.
        block: Elements worked on at once.

    Returns:
        ``(3, N)`` and ``(3, C)`` integers: concordant less discordant pairs, pairs of equal scores, pairs of equal
        labels.

    Raises:
        ValueError: If a value is not finite; the first such row is named.
    """
    import torch

    device = similarity.device
    images, captions = similarity.shape

    def rows(part: slice) -> "torch.Tensor":
        scores, labels = _floats(similarity[part], device), _floats(relevance[part], device)
        _check_finite("similarity", scores, part.start)
        _check_finite("relevance", labels, part.start)
        return torch.stack(pair_counts(scores, labels))

    def columns(part: slice) -> "torch.Tensor":
        # Already found to be finite, row by row, in the other direction.
        scores, labels = (_floats(one[:, part], device).T.contiguous() for one in (similarity, relevance))
        return torch.stack(pair_counts(scores, labels))

    with torch.no_grad():
        i2t = [rows(part) for part in blocks(images, max(1, block // captions))]
        t2i = [columns(part) for part in blocks(captions, max(1, block // images))]
        return torch.cat(i2t, dim=1).cpu().numpy(), torch.cat(t2i, dim=1).cpu().numpy()


def pair_counts(scores: "torch.Tensor", labels: "torch.Tensor") -> Counts:
    """Count concordant less discordant pairs, pairs of equal scores and of equal labels, ``(Q,)`` each.

    Args:
        scores: ``(Q, n)`` float32 or float64, finite.
        labels: The same.
    """
    import torch

    items = scores.shape[1]
    # By label, and within equal labels by score, so that the pairs of equal labels add no inversion below.
    by_label = (_order_keys(labels) << 32) | (_order_keys(scores) + (1 << 31))
    by_label = by_label.sort(dim=1).values
    equal_labels, equal_both = _tied_pairs(by_label >> 32), _tied_pairs(by_label)
    # Then by score, and within equal scores by the place in that order, so that these pairs add none either. The
    # places in this order are a permutation with exactly one inversion for each discordant pair.
    score_keys = (by_label & 0xFFFFFFFF) - (1 << 31)
    del by_label
    by_score = ((score_keys << 32) | torch.arange(items, device=scores.device)).sort(dim=1).values
    equal_scores = _tied_pairs(by_score >> 32)
    discordant = inversions((by_score & 0xFFFFFFFF).int())
    # C + D leaves out the pairs with equal labels or equal scores; those with both are in either count.
    net = items * (items - 1) // 2 - equal_labels - equal_scores + equal_both - 2 * discordant
    return net, equal_scores, equal_labels


def inversions(permutations: "torch.Tensor") -> "torch.Tensor":
    r"""Count the inversions of each row, one bit of the values after another.

    From the highest bit down, the values lie in groups that agree in all higher bits. A pair of one group whose bits
    differ is an inversion if the 1 comes first: a prefix sum over the bits counts those. The group is then split into
    its zeros and its ones, in their order. As each row holds every value from 0 to n - 1, where groups begin and how
    many ones lie before them is known without looking. :math:`O(n \log n)` a row, without a sort.

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
        # Ones of the own group before each place; the groups before it have 2**level each.
        ones = torch.cumsum(bit, dim=1, dtype=torch.int32) - bit - (group << level)
        total += (ones * (1 - bit)).sum(dim=1, dtype=torch.int64)
        if level:
            place = torch.arange(length, dtype=torch.int32, device=values.device)
            # A group with a one has all of its 2**level zeros.
            place = torch.where(bit.bool(), (group << (level + 1)) + (1 << level) + ones, place - ones)
            values = torch.empty_like(values).scatter_(1, place.long(), values)
    return total


def _order_keys(values: "torch.Tensor") -> "torch.Tensor":
    """Map each row to int64 from -2**31 to 2**31 - 1 that are ordered, and equal, exactly as its values are.

    Example:
        >>> import torch
        >>> _order_keys(torch.tensor([[0.5, -1.0, 0.5]], dtype=torch.float64))
        tensor([[1, 0, 1]])
    """
    import torch

    if values.dtype == torch.float32:
        # The bits of positive floats are ordered as they are, those of negative ones backwards. Adding zero makes
        # -0.0, which equals 0.0, the same bits.
        bits = (values + 0.0).view(torch.int32)
        return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    ordered, order = values.sort(dim=1)
    dense = torch.zeros(values.shape, dtype=torch.int64, device=values.device)
    torch.cumsum(ordered[:, 1:] != ordered[:, :-1], dim=1, out=dense[:, 1:])
    return torch.empty_like(dense).scatter_(1, order, dense)


def _tied_pairs(ordered: "torch.Tensor") -> "torch.Tensor":
    """Count the pairs of equal values in each row; the rows are sorted."""
    import torch

    length = ordered.shape[1]
    places = torch.arange(length, dtype=torch.int32, device=ordered.device).expand(ordered.shape)
    starts = places.clone()
    starts[:, 1:].masked_fill_(ordered[:, 1:] == ordered[:, :-1], 0)
    # Each item makes a pair with all that lie between it and the start of its run.
    return (places - starts.cummax(dim=1).values).sum(dim=1, dtype=torch.int64)


def _floats(block: Matrix, device: "torch.device") -> "torch.Tensor":
    """Bring a block to the device as float32 where that is exact, else as float64, so that no order is lost."""
    import torch

    tensor = block.detach() if is_tensor(block) else torch.from_numpy(_readable(block))
    wide = tensor.element_size() > (4 if tensor.is_floating_point() else 2)
    return tensor.to(device).to(torch.float64 if wide else torch.float32)


def _readable(block: "NDArray[np.generic]") -> "NDArray[np.generic]":
    """Copy what torch cannot take as it is: foreign byte orders, unsigned kinds, negative steps, read-only memory."""
    target = np.float32 if np.can_cast(block.dtype, np.float32) else np.float64
    return np.array(block, dtype=target, order="C")


def _check_finite(argument: str, block: "torch.Tensor", start: int) -> None:
    # The two extremes carry any NaN or infinity along and need no mask of the block's size.
    low, high = block.aminmax()
    if bool(low.isfinite() & high.isfinite()):
        return
    row = int((~block.isfinite()).any(dim=1).int().argmax())
    value = float(block[row][~block[row].isfinite()][0])
    fail(argument, "finite numbers", f"{value} in row {start + row}", "look for a division by zero before it")


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
    equal_labels, equal_scores = (
        _tied_pairs_kendall(by_label >> np.uint64(32)),
        _tied_pairs_kendall(by_score >> np.uint64(32)),
    )
    # C + D leaves out the pairs with equal labels or equal scores; those with both are in either count.
    pairs = items * (items - 1) // 2
    net = pairs - equal_labels - equal_scores + _tied_pairs_kendall(by_label) - 2 * discordant
    return net, equal_scores, equal_labels


def _tied_pairs_kendall(ordered: NDArray[np.uint64]) -> NDArray[np.int64]:
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
