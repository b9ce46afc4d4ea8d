"""Weighted sums of hinges over all ordered pairs of candidates, from integer counts of active pairs.

Both Kendall losses without mining have the form ``sum over (j, k) of w_jk [s_k - s_j + m]_+`` for each anchor. It is
linear in s as long as the set of active pairs stays the same, so integer counts of active pairs are sufficient:
``sum over k of c_k s_k + m * (number of active pairs)``, where c_k is the number of active pairs in which k is wrongly
the higher one, minus those in which it is wrongly the lower one. The counts are also the gradient.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bcls.losses._torch.mining import blocks, wide
from bcls.losses._torch.ranks import count_by_ranks

#: Batch size from which counting by ranks is faster, as `make bench` shows.
RANKS_FROM = {"cpu": 64, "cuda": 1024}
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

    def count(rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        net, pairs, compared = count_by_ranks(scores[rows], labels[rows], alpha, margin)
        return net, _hinges(scores[rows], net, pairs, margin), compared

    cpu = device == "cpu"
    parts = blocks(len(scores), size, scores) if cpu else _slices(len(scores), max(1, _RANKED // size))
    nets, hinges, triples = zip(*_in_threads(count, list(parts), device), strict=True)
    return Active(torch.cat(nets), torch.stack(hinges).sum(), torch.stack(triples).sum())


def _in_threads(count: Callable[[slice], Any], parts: list[slice], device: str) -> list[Any]:
    """Call a function for each part, on a CPU in several threads, each with a single torch thread.

    The operations on a part are so short that two torch threads take longer than one.
    """
    # torch.compile has a single part, and cannot trace `get_num_threads`.
    threads = torch.get_num_threads() if device == "cpu" and len(parts) > 1 else 1
    if threads == 1:
        return [count(part) for part in parts]
    try:
        with ThreadPoolExecutor(min(threads, len(parts)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(count, parts))
    finally:
        torch.set_num_threads(threads)  # threads that are started later take the number that was set last


def _mapped(*matrices: Tensor) -> bool:
    """Whether ``torch.func.vmap`` maps over one of the matrices: it has no search in sorted rows."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return not torch.compiler.is_compiling() and any(wrapped(matrix) for matrix in matrices)


def _slices(size: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, size, step))


def count_weighted(scores: Tensor, reach: Tensor, floor: Tensor, windows: int) -> Active:
    """Count pairs (j, k) with ``s_j < s_k``, weighted by the number of windows in ``floor_k .. reach_j - 1``.

    ``reach`` and ``floor`` are integers from 0 to ``windows``. With more windows than candidates it compares all pairs.
    """
    if windows > scores.shape[1] or _mapped(scores, reach):
        return count_in_blocks(scores, reach, floor, 0.0, graded=True)
    return count_by_windows(scores, reach, floor, windows)


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


def count_by_windows(scores: Tensor, reach: Tensor, floor: Tensor, windows: int) -> Active:
    """See :func:`count_weighted`; O(B^2 W) time and O(B^2) memory, by one sort and two running counts per window."""
    parts = blocks(len(scores), len(scores), scores)
    net = torch.cat([_net(scores[rows], reach[rows], floor[rows], windows) for rows in parts])
    return Active(net, _hinges(scores, net, net.new_zeros(()), 0.0))


def _net(scores: Tensor, reach: Tensor, floor: Tensor, windows: int) -> Tensor:
    """The counts of a block of anchors."""
    ascending, order = scores.sort(1)
    reach, floor = reach.gather(1, order), floor.gather(1, order)
    below = torch.searchsorted(ascending, ascending)  # candidates with a lower score
    up_to = torch.searchsorted(ascending, ascending, right=True)  # and with at most the same score
    net = torch.zeros_like(order)
    for window in range(windows):
        positive, negative = reach > window, floor <= window
        positives, negatives = (functional.pad(side.cumsum(1), (1, 0)) for side in (positive, negative))
        net += negative * positives.gather(1, below) - positive * (negatives[:, -1:] - negatives.gather(1, up_to))
    return torch.empty_like(net).scatter_(1, order, net)
