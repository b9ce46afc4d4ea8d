"""The same counts as :mod:`bcls.losses._pairs` in O(B log B) an anchor: a sort and a prefix structure."""

import torch
from torch import Tensor
from torch.nn import functional

from bcls.losses._extrema import blocks
from bcls.losses._pairs import Active


def count_by_prefix(scores: Tensor, reach: Tensor, floor: Tensor, margin: float, *, graded: bool) -> Active:
    """See :func:`bcls.losses._pairs.count_in_blocks`; O(B^2 log B) time and O(B^2) memory."""
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
    """How many numbers of each sorted row lie strictly below each value."""
    return torch.searchsorted(ascending.contiguous(), values.contiguous(), right=False)


def dominated(
    values: Tensor, prefix: Tensor, limit: Tensor, payload: Tensor | None, *, inclusive: bool
) -> tuple[Tensor, Tensor]:
    """Among the first ``prefix`` values of a row, count those below ``limit`` (or equal, where inclusive).

    A wavelet tree over the values' ranks 0 .. B - 1: they are split bit by bit from the highest, each node moving its
    zeros to the front in their order; a query follows the bits of its limit and counts the zeros it leaves behind.
    All ranks occur, so the node of the ranks from ``n`` on starts at place ``n``, with ``n / 2`` zeros before it.

    Args:
        values: ``(A, B)``, in the order that ``prefix`` speaks of.
        prefix: ``(A, Q)`` lengths.
        limit: ``(A, Q)``.
        payload: ``(A, B)`` integers to add up over the counted values, or None.
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
    # A bound may be as large as the size itself, so one bit more than the ranks need may be asked for.
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
