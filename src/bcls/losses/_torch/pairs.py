"""Weighted sums of hinges over all ordered pairs of candidates, from integer counts of active pairs.

Both Kendall losses without mining have the form ``sum over (j, k) of w_jk [s_k - s_j + m]_+`` for each anchor. It is
linear in s as long as the set of active pairs stays the same, so integer counts of active pairs are sufficient:
``sum over k of c_k s_k + m * (number of active pairs)``, where c_k is the number of active pairs in which k is wrongly
the higher one, minus those in which it is wrongly the lower one. The counts are also the gradient.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bcls.losses._torch.mining import blocks, wide
from bcls.losses._torch.ranks import count_by_ranks

#: Batch size from which the sub-cubic counts are faster, as `make bench` shows: by ranks, and of weighted pairs.
RANKS_FROM = {"cpu": 64, "cuda": 1024}
PREFIX_FROM = {"cpu": 512, "cuda": 1024}
#: Cells of the (block, B, B) cube held at once: what fits into the cache of a CPU. An accelerator can use more.
_CELLS = 1 << 20
_MORE = 64
#: Cells of a block of anchors whose pairs are counted by ranks, on an accelerator: about 150 bytes each.
_RANKED = 1 << 24


class Active(NamedTuple):
    """Active pairs of one direction, weighted."""

    net: Tensor  #: (B, B), pairs in which the candidate scores too high, minus those in which it scores too low
    hinges: Tensor  #: sum of the hinges
    triples: Tensor | None = None  #: number of pairs whose labels differ by more than alpha, if it was counted


def dense_kendall(similarity: Tensor, relevance: Tensor, alpha: float, margin: float, *, per_triple: bool) -> Tensor:
    """Sum of hinges over all pairs whose labels differ by more than alpha, both directions (L_K).

    Args:
        similarity: ``(B, B)``, rows are images.
        relevance: ``(B, B)`` labels.
        alpha: Relaxation.
        margin: Margin of the hinges.
        per_triple: Divide each direction by the number of its triples with ``r_ij > r_ik + alpha``, multiply by B.
    """
    directions = []
    for scores, labels in ((similarity.detach(), relevance), (similarity.detach().T, relevance.T)):
        labels = labels.contiguous()
        active = count_pairs(scores.contiguous(), labels, alpha, margin)
        if per_triple:
            triples = count_triples(labels, alpha) if active.triples is None else active.triples
            factor = len(labels) / triples.clamp(min=1).to(active.hinges.dtype)
            active = Active(active.net * factor, active.hinges * factor)
        directions.append(active)
    return hinge_sum(similarity, *directions)


def count_triples(labels: Tensor, alpha: float) -> Tensor:
    """Number of triples with ``r_ij > r_ik + alpha``; rows are anchors."""
    labels = labels.contiguous()
    above = torch.searchsorted(labels.sort(1).values, labels + alpha, right=True)
    return (labels.shape[1] - above).sum()


def hinge_sum(similarity: Tensor, rows: Active, columns: Active) -> Tensor:
    """The hinges of both directions, differentiable in ``similarity``; ``columns`` has one row for each column."""
    # The counts are the gradient: their product with zeros attaches it to the value.
    slopes = (rows.net + columns.net.T).to(torch.promote_types(similarity.dtype, torch.float32))
    attached = (slopes * (similarity - similarity.detach())).sum()
    return (rows.hinges + columns.hinges + attached).to(similarity.dtype)


def _hinges(scores: Tensor, net: Tensor, pairs: Tensor, margin: float) -> Tensor:
    """Sum of the hinges of some anchors."""
    exact = wide(scores)
    # The counts of an anchor add up to 0, so a common offset of its scores cancels: subtract it to keep precision.
    centred = scores.to(exact) - scores.to(exact).mean(1, keepdim=True)
    return (centred * net).sum() + margin * pairs.to(exact)


def count_pairs(scores: Tensor, labels: Tensor, alpha: float, margin: float) -> Active:
    """Count active pairs (j, k): ``r_j > r_k + alpha`` and ``s_j < s_k + margin``, with the faster algorithm."""
    device, size = scores.device.type, scores.shape[1]
    if _mapped(scores, labels) or size < RANKS_FROM.get(device, RANKS_FROM["cuda"]):
        return count_in_blocks(scores, labels, labels + alpha, margin, graded=False)
    nets, hinges, triples = [], [], []
    for rows in blocks(len(scores), size, scores) if device == "cpu" else _slices(len(scores), max(1, _RANKED // size)):
        net, pairs, compared = count_by_ranks(scores[rows], labels[rows], alpha, margin)
        nets.append(net)
        hinges.append(_hinges(scores[rows], net, pairs, margin))
        triples.append(compared)
    return Active(torch.cat(nets), torch.stack(hinges).sum(), torch.stack(triples).sum())


def _mapped(*matrices: Tensor) -> bool:
    """Whether ``torch.func.vmap`` maps over one of the matrices: it has no search in sorted rows."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return not torch.compiler.is_compiling() and any(wrapped(matrix) for matrix in matrices)


def _slices(size: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, size, step))


def count_weighted(scores: Tensor, reach: Tensor, floor: Tensor) -> Active:
    """Count pairs (j, k) with ``reach_j > floor_k`` and ``s_j < s_k``, weighted by ``reach_j - floor_k``; integers."""
    if scores.shape[1] >= PREFIX_FROM.get(scores.device.type, PREFIX_FROM["cuda"]):
        return count_by_prefix(scores.detach(), reach, floor)
    return count_in_blocks(scores.detach(), reach, floor, 0.0, graded=True)


def count_in_blocks(scores: Tensor, reach: Tensor, floor: Tensor, margin: float, *, graded: bool) -> Active:
    """Count pairs (j, k) with ``reach_j > floor_k`` and ``s_j < s_k + margin``; O(B^3) time, O(B^2) memory.

    Args:
        scores: ``(B, B)``, rows are anchors.
        reach: ``(B, B)``; j should rank above every k whose floor is below its reach.
        floor: ``(B, B)``.
        margin: By how much j should score higher.
        graded: Whether a pair has the weight ``reach_j - floor_k`` instead of 1; for integers.
    """
    size = scores.shape[1]
    step = max(1, _CELLS * (1 if scores.device.type == "cpu" else _MORE) // size**2)
    # Allocated once: small results between large temporaries would keep the memory of all blocks in use.
    # Shaped like a sum of both inputs, so that vmap can batch either.
    net, pairs = (torch.empty_like(scores + reach, dtype=torch.int64) for _ in range(2))
    for block in _slices(len(scores), step):
        low, high = scores[block, :, None], scores[block, None, :] + margin  # (block, j, 1), (block, 1, k)
        active = (reach[block, :, None] > floor[block, None, :]) & (low < high)
        weight = torch.where(active, reach[block, :, None] - floor[block, None, :], 0) if graded else active
        pairs[block] = weight.sum(1)
        net[block] = pairs[block] - weight.sum(2)
    return Active(net, _hinges(scores, net, pairs.sum(), margin))


def count_by_prefix(scores: Tensor, reach: Tensor, floor: Tensor) -> Active:
    """See :func:`count_weighted`; O(B^2 log B) time and O(B^2) memory, by a sort and a wavelet tree."""
    net = torch.cat(
        [_net(scores[rows], reach[rows], floor[rows]) for rows in blocks(len(scores), scores.shape[1], scores)]
    )
    return Active(net, _hinges(scores, net, net.new_zeros(()), 0.0))


def _net(scores: Tensor, reach: Tensor, floor: Tensor) -> Tensor:
    """The counts of a block of anchors.

    Ordered by reach, the partners of k are a prefix; among these, the scores below ``s_k`` are counted.
    """
    order = reach.argsort(1, descending=True)
    partners = _below(-reach.gather(1, order), -floor)
    count, weight = dominated(scores.gather(1, order), partners, scores, reach.gather(1, order), inclusive=False)
    higher = weight - floor * count

    order = floor.argsort(1)
    payload = floor.gather(1, order)
    partners = _below(payload, reach)
    count, weight = dominated(scores.gather(1, order), partners, scores, payload, inclusive=True)
    before = functional.pad(payload.cumsum(1), (1, 0))
    # The others: s_j < s_k.
    lower = reach * (partners - count) - (before.gather(1, partners) - weight)
    return higher - lower


def _below(ascending: Tensor, values: Tensor) -> Tensor:
    """How many numbers of each sorted row are strictly below each value."""
    return torch.searchsorted(ascending.contiguous(), values.contiguous(), right=False)


def dominated(
    values: Tensor, prefix: Tensor, limit: Tensor, payload: Tensor, *, inclusive: bool
) -> tuple[Tensor, Tensor]:
    """Among the first ``prefix`` values of a row, count those below ``limit`` (or equal to it, if inclusive).

    A wavelet tree over the ranks 0 .. B - 1 of the values: they are split bit by bit from the highest, each node
    moving its zeros to the front in their order; a query follows the bits of its limit and counts the zeros it passes.
    All ranks occur, so the node of the ranks from ``n`` on starts at position ``n``, with ``n / 2`` zeros before it.

    Args:
        values: ``(A, B)``, in the order that ``prefix`` refers to.
        prefix: ``(A, Q)`` lengths.
        limit: ``(A, Q)``.
        payload: ``(A, B)`` integers to sum over the counted values.
        inclusive: Whether a value equal to the limit counts.

    Returns:
        Counts and payload sums, ``(A, Q)`` int64.
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
        sums = functional.pad((payload * (1 - one)).cumsum(1), (1, 0))
        weight = weight + right * (sums.gather(1, here) - sums.gather(1, node))
        here = torch.where(right.bool(), (1 << bit) + here - before + node // 2, node // 2 + before)
        if bit > 0:
            node = ranks >> (bit + 1) << (bit + 1)
            target = torch.where(one.bool(), (1 << bit) + places - zeros[:, :-1] + node // 2, node // 2 + zeros[:, :-1])
            ranks = torch.empty_like(ranks).scatter_(1, target, ranks)
            payload = torch.empty_like(payload).scatter_(1, target, payload)
    return count, weight
