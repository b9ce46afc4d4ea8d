"""Active pairs of the dense Kendall loss from ranks, without comparing pairs: O(B^2 log B) time, O(B^2) memory.

For one anchor, let p be the rank of a candidate by label and v its rank by score, equal scores in the order of their
labels. Candidate k should score below those with ``p >= high_k`` and above those with ``p < low_k``. Of the former,
those with ``v < reach_k`` are active, of the latter those with ``v >= start_k``. So two numbers are needed for each k:
how many candidates have ``v < reach_k`` and ``p < high_k``, and how many have ``v < start_k`` and ``p < low_k``.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

#: Candidates of a block, one bit of an int32 each, and branches of a node of the tree.
_LANES, _BITS = 32, 5


def count_by_ranks(scores: Tensor, labels: Tensor, alpha: float, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """Count the pairs (j, k) with ``r_j > r_k + alpha`` and ``s_j < s_k + margin``.

    Args:
        scores: ``(A, B)``, rows are anchors.
        labels: ``(A, B)``.
        alpha: Relaxation, at least 0.
        margin: Margin, at least 0.

    Returns:
        ``(A, B)`` int32, active pairs in which a candidate scores too high, minus those in which too low; the number
        of active pairs; the number of pairs whose labels differ by more than alpha.
    """
    by_label = order_rows(labels)
    ascending = labels.gather(1, by_label)
    # The sums are rounded as those of the comparison above, and keep the order.
    high = torch.searchsorted(ascending, ascending + alpha, right=True)
    low = _conjugate(high)
    scores = scores.gather(1, by_label)
    p = order_rows(scores)
    # Now in the order of the scores. A candidate is not its own partner: high >= 1 and low < B; but for NaN, which is
    # reported later and must stay in range.
    high, low = high.to(torch.int32).gather(1, p).clamp_(min=1), low.gather(1, p).clamp_(max=p.shape[1] - 1)
    if margin == 0:
        # Equal scores are in the order of their labels, so that neither side counts them.
        reach = start = torch.arange(p.shape[1], dtype=torch.int32, device=p.device)[None]
    else:
        ascending = scores.gather(1, p)
        bounds = torch.searchsorted(ascending, ascending + margin)
        reach, start = bounds.to(torch.int32), _conjugate(bounds)
    inside, below = count_below(p, [(reach, high - 1), (start, low)])
    too_high = reach - inside
    net = torch.empty_like(low).scatter_(1, by_label.gather(1, p), too_high - low + below)
    return net, too_high.sum(), low.sum()


def order_rows(values: Tensor) -> Tensor:
    """Stable ``argsort`` of each row; on a CPU NumPy sorts numbers and positions in one integer, four times as fast."""
    if values.dtype == torch.float64 or not _on_host(values):
        return values.sort(dim=1, stable=True).indices
    place = torch.arange(values.shape[1], dtype=torch.int32)
    keys = torch.stack((place.expand_as(values), codes(values)), 2).view(torch.int64)[..., 0]
    keys.numpy().sort(axis=1)
    return keys & 0xFFFFFFFF


def _conjugate(bounds: Tensor) -> Tensor:
    """How many of the bounds of a row are at most 0, at most 1, ..., as many numbers as there are bounds; int32."""
    width = bounds.shape[1]
    histogram = bounds.new_zeros((len(bounds), width + 1), dtype=torch.int32)
    histogram.scatter_add_(1, bounds, torch.ones_like(bounds, dtype=torch.int32))
    return histogram[:, :width].cumsum(1, dtype=torch.int32)


def count_below(order: Tensor, queries: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """How many of the first values of a permutation are small, for two sets of queries.

    A wavelet tree with 32 branches. Each level keeps the candidates of a node (a range of values) in their order. For
    each block of 32 candidates and each branch it has a mask of the candidates in that branch, a mask of those in lower
    branches, and the counts of both in the blocks before. A query follows the digits of its limit in base 32 and counts
    what is in lower branches. All values occur, so the node of the values from ``n`` on starts at position ``n``.

    Args:
        order: ``(A, B)`` int64, each row a permutation of 0 .. B - 1.
        queries: Two pairs of prefix lengths and limits, int32 that broadcast to ``(A, B)``. The first counts values up
            to its limit, the second values below it; limits are less than B.
    """
    rows, given = order.shape
    size = -(-given // _LANES) * _LANES
    place = torch.arange(size, dtype=torch.int32, device=order.device)
    if size > given:
        order = torch.cat((order, place[given:].expand(rows, -1)), 1)
    values, block = order.to(torch.int32), place >> _BITS
    bits = torch.ones_like(place[:_LANES]) << place[:_LANES]
    first = torch.cat((bits - 1, bits[:1] - 2))  # masks of the first 0 .. 32 lanes
    own_bits, own_first = bits.repeat(size // _LANES), first[:_LANES].repeat(size // _LANES)
    # Positions are relative to the start of the node.
    ends, counts = [prefix for prefix, _ in queries], [torch.zeros_like(limit) for _, limit in queries]
    lanes = place[:_LANES].repeat(size // _LANES)[None]
    digits = -(-(size - 1).bit_length() // _BITS)
    for shift in range((digits - 1) * _BITS, 0, -_BITS):
        node = shift + _BITS
        own = ((values >> shift & _LANES - 1) + block * _LANES).long()
        same = values.new_zeros((rows, size + _LANES))
        same.scatter_add_(1, own, own_bits.expand(rows, size))
        cells = same.view(rows, -1, _LANES)
        lower = (cells.cumsum(2, dtype=torch.int32) - cells).flatten(1)
        cells = _ones(cells)
        cells = cells.cumsum(1, dtype=torch.int32) - cells
        same_before, lower_before = cells.flatten(1), (cells.cumsum(2, dtype=torch.int32) - cells).flatten(1)
        for number, (_, limit) in enumerate(queries):
            end, digit = ends[number], limit >> shift & _LANES - 1
            start = limit >> node << shift  # candidates of each branch in the nodes before
            mask = bits[:1] << (end & _LANES - 1)
            mask -= 1
            cell = (((end >> _BITS) + start) * _LANES + digit).long()
            counts[number] += lower_before.gather(1, cell) + _ones(lower.gather(1, cell) & mask) - start * digit
            ends[number] = same_before.gather(1, cell) + _ones(same.gather(1, cell) & mask) - start
        lanes = same_before.gather(1, own) + _ones(same.gather(1, own) & own_first) - (values >> node << shift)
        if shift > _BITS:
            target = (values >> shift << shift) + lanes
            values = torch.empty_like(values).scatter_(1, target.long(), values)
            order = values.long()
    masks = torch.empty_like(values).scatter_(1, order, (bits[:1] << (lanes & _LANES - 1)).expand(rows, size))
    up_to = masks.view(rows, -1, _LANES).cumsum(2, dtype=torch.int32).view(rows, size)
    for number, (table, (_, limit)) in enumerate(zip((up_to, up_to - masks), queries, strict=True)):
        mask = first.expand(rows, -1).gather(1, ends[number].expand_as(limit).long())
        counts[number] += _ones(table.gather(1, limit.long()) & mask)
    return counts[0], counts[1]


def _ones(masks: Tensor) -> Tensor:
    """Number of bits set in each int32."""
    if _on_host(masks) and hasattr(np, "bitwise_count"):
        return torch.from_numpy(np.bitwise_count(masks.numpy().view(np.uint32))).int()
    masks = masks - ((masks >> 1) & 0x55555555)
    masks = (masks & 0x33333333) + ((masks >> 2) & 0x33333333)
    return ((masks + (masks >> 4) & 0x0F0F0F0F) * 0x01010101) >> 24


def codes(values: Tensor) -> Tensor:
    """Integers in the order of the numbers, equal for -0.0 and 0.0."""
    codes = (values.float() + 0.0).view(torch.int32)
    return codes ^ (codes >> 31 & 0x7FFFFFFF)


def _on_host(tensor: Tensor) -> bool:
    """Whether NumPy may read the tensor."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()
