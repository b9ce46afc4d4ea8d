"""Weighted sums of hinges over all ordered pairs of candidates, from integer counts of active pairs.

Both Kendall losses without mining have the form ``sum over (j, k) of w_jk [s_k - s_j + m]_+`` for each anchor. It is
linear in s as long as the set of active pairs stays the same, so integer counts of active pairs are sufficient:
``sum over k of c_k s_k + m * (number of active pairs)``, where c_k is the number of active pairs in which k is wrongly
the higher one, minus those in which it is wrongly the lower one. The counts are also the gradient.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bcls.losses._torch.mining import blocks, wide

#: Batch size from which the sub-cubic count is faster, as `make bench` shows.
PREFIX_FROM = {"cpu": 512, "cuda": 1024}
#: Cells of the (block, B, B) cube held at once: what fits into the cache of a CPU. An accelerator can use more.
_CELLS = 1 << 20
_MORE = 64


class Active(NamedTuple):
    """Weighted number of active pairs of each candidate."""

    higher: Tensor  #: (B, B) int64, pairs in which the candidate scores too high
    lower: Tensor  #: (B, B) int64, pairs in which it scores too low


def dense_kendall(similarity: Tensor, relevance: Tensor, alpha: float, margin: float, *, per_triple: bool) -> Tensor:
    """Sum of hinges over all pairs whose labels differ by more than alpha, both directions (L_K).

    Args:
        similarity: ``(B, B)``, rows are images.
        relevance: ``(B, B)`` labels.
        alpha: Relaxation.
        margin: Margin of the hinges.
        per_triple: Divide each direction by the number of its triples with ``r_ij > r_ik + alpha``, multiply by B.
    """
    value = similarity.new_zeros(())
    for scores, labels in ((similarity, relevance.contiguous()), (similarity.T, relevance.T.contiguous())):
        direction = hinge_sum(scores, count_active(scores, labels, labels + alpha, margin), margin)
        if per_triple:
            direction = direction * len(labels) / count_triples(labels, alpha)
        value = value + direction
    return value


def count_triples(labels: Tensor, alpha: float) -> Tensor:
    """Number of triples with ``r_ij > r_ik + alpha``, at least 1; rows are anchors."""
    labels = labels.contiguous()
    above = torch.searchsorted(labels.sort(1).values, labels + alpha, right=True)
    return (labels.shape[1] - above).sum().clamp(min=1)


def hinge_sum(scores: Tensor, active: Active, margin: float) -> Tensor:
    """The weighted hinges from the counts of active pairs, differentiable in ``scores``."""
    exact = wide(scores)
    counts = (active.higher - active.lower).to(exact)
    # The counts of an anchor add up to 0, so a common offset of its scores cancels: subtract it to keep precision.
    centred = scores.to(exact) - scores.detach().to(exact).mean(1, keepdim=True)
    return ((counts * centred).sum() + margin * active.higher.sum().to(exact)).to(scores.dtype)


def count_active(scores: Tensor, reach: Tensor, floor: Tensor, margin: float = 0.0, *, graded: bool = False) -> Active:
    """Count active pairs (j, k): ``reach_j > floor_k`` and ``s_j < s_k + margin``, with the faster algorithm.

    Args:
        scores: ``(B, B)``, rows are anchors.
        reach: ``(B, B)``; j should rank above every k whose floor is below its reach.
        floor: ``(B, B)``.
        margin: By how much j should score higher.
        graded: Whether a pair has the weight ``reach_j - floor_k`` instead of 1; for integers.
    """
    by_prefix = scores.shape[1] >= PREFIX_FROM.get(scores.device.type, PREFIX_FROM["cuda"])
    count = count_by_prefix if by_prefix else count_in_blocks
    return count(scores.detach(), reach, floor, margin, graded=graded)


def count_in_blocks(scores: Tensor, reach: Tensor, floor: Tensor, margin: float, *, graded: bool) -> Active:
    """See :func:`count_active`; O(B^3) time, O(B^2) memory."""
    size = scores.shape[1]
    step = max(1, _CELLS * (1 if scores.device.type == "cpu" else _MORE) // size**2)
    # Allocated once: small results between large temporaries would keep the memory of all blocks in use.
    # Shaped like a sum of both inputs, so that vmap can batch either.
    higher, lower = (torch.empty_like(scores + reach, dtype=torch.int64) for _ in range(2))
    for start in range(0, scores.shape[0], step):
        block = slice(start, start + step)
        low, high = scores[block, :, None], scores[block, None, :] + margin  # (block, j, 1), (block, 1, k)
        active = (reach[block, :, None] > floor[block, None, :]) & (low < high)
        weight = torch.where(active, reach[block, :, None] - floor[block, None, :], 0) if graded else active
        higher[block], lower[block] = weight.sum(1), weight.sum(2)
    return Active(higher, lower)


def count_by_prefix(scores: Tensor, reach: Tensor, floor: Tensor, margin: float, *, graded: bool) -> Active:
    """See :func:`count_active`; O(B^2 log B) time and O(B^2) memory, by a sort and a wavelet tree."""
    parts = [
        _count(scores[rows], reach[rows], floor[rows], margin, graded=graded)
        for rows in blocks(scores.shape[0], scores.shape[1], scores)
    ]
    return Active(*(torch.cat(counts) for counts in zip(*parts, strict=True)))


def _count(scores: Tensor, reach: Tensor, floor: Tensor, margin: float, *, graded: bool) -> Active:
    """The counts of a block of anchors.

    Ordered by reach, the partners of k are a prefix; among these, the scores below ``s_k + margin`` are counted.
    """
    raised = scores + margin
    order = reach.argsort(1, descending=True)
    partners = _below(-reach.gather(1, order), -floor)
    count, weight = dominated(
        scores.gather(1, order), partners, raised, reach.gather(1, order) if graded else None, inclusive=False
    )
    higher = weight - floor * count if graded else count

    order = floor.argsort(1)
    partners = _below(floor.gather(1, order), reach)
    payload = floor.gather(1, order) if graded else None
    count, weight = dominated(raised.gather(1, order), partners, scores, payload, inclusive=True)
    count = partners - count  # the others: s_j < s_k + margin
    if payload is not None:
        before = functional.pad(payload.cumsum(1), (1, 0))
        lower = reach * count - (before.gather(1, partners) - weight)
    else:
        lower = count
    return Active(higher, lower)


def _below(ascending: Tensor, values: Tensor) -> Tensor:
    """How many numbers of each sorted row are strictly below each value."""
    return torch.searchsorted(ascending.contiguous(), values.contiguous(), right=False)


def dominated(
    values: Tensor, prefix: Tensor, limit: Tensor, payload: Tensor | None, *, inclusive: bool
) -> tuple[Tensor, Tensor]:
    """Among the first ``prefix`` values of a row, count those below ``limit`` (or equal to it, if inclusive).

    A wavelet tree over the ranks 0 .. B - 1 of the values: they are split bit by bit from the highest, each node
    moving its zeros to the front in their order; a query follows the bits of its limit and counts the zeros it passes.
    All ranks occur, so the node of the ranks from ``n`` on starts at position ``n``, with ``n / 2`` zeros before it.

    Args:
        values: ``(A, B)``, in the order that ``prefix`` refers to.
        prefix: ``(A, Q)`` lengths.
        limit: ``(A, Q)``.
        payload: ``(A, B)`` integers to sum over the counted values, or None.
        inclusive: Whether a value equal to the limit counts.

    Returns:
        Counts and payload sums (0 without payload), ``(A, Q)`` int64.
    """
    size = values.shape[1]
    ascending, order = values.sort(1)
    places = torch.arange(size, device=values.device)
    ranks = torch.empty_like(order).scatter_(1, order, places.expand_as(order))
    bound = torch.searchsorted(ascending, limit.contiguous(), right=inclusive)
    count, weight, here = torch.zeros_like(prefix), torch.zeros_like(prefix), prefix
    # A bound may be equal to the size, which may need one bit more than the ranks.
    for bit in reversed(range(size.bit_length())):
        one = (ranks >> bit) & 1
        zeros = functional.pad((1 - one).cumsum(1), (1, 0))
        node = bound >> (bit + 1) << (bit + 1)
        before, right = zeros.gather(1, here), (bound >> bit) & 1
        count = count + right * (before - node // 2)
        if payload is not None:
            sums = functional.pad((payload * (1 - one)).cumsum(1), (1, 0))
            weight = weight + right * (sums.gather(1, here) - sums.gather(1, node))
        here = torch.where(right.bool(), (1 << bit) + here - before + node // 2, node // 2 + before)
        if bit > 0:
            node = ranks >> (bit + 1) << (bit + 1)
            target = torch.where(one.bool(), (1 << bit) + places - zeros[:, :-1] + node // 2, node // 2 + zeros[:, :-1])
            ranks = torch.empty_like(ranks).scatter_(1, target, ranks)
            if payload is not None:
                payload = torch.empty_like(payload).scatter_(1, target, payload)
    return count, weight
