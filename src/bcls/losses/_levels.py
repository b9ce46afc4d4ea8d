"""Levels of relevance by k-means on the labels of each anchor; k is chosen by the silhouette.

Labels are numbers on a line, so clusters are intervals of the sorted labels: cluster sums are differences of prefix
sums, and a step of k-means moves k - 1 cuts. Everything runs over all anchors at once and is deterministic.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bcls.kernels.values import is_recorded
from bcls.losses._windows import wide

#: Far more steps than k-means on a line needs; it stops early when no cut moves.
_STEPS = 100


class Line(NamedTuple):
    """Sorted labels of each anchor, those that do not count at the end."""

    points: Tensor  #: (A, n) ascending; 0 where they do not count
    sums: Tensor  #: (A, n + 1) prefix sums
    number: Tensor  #: (A, 1) how many count


def level_thresholds(labels: Tensor, counted: Tensor, fewest: int, most: int) -> Tensor:
    """Thresholds between the levels of each anchor.

    Args:
        labels: ``(A, n)``, rows are anchors.
        counted: ``(A, n)`` bool, the labels to cluster.
        fewest: Smallest number of levels to try.
        most: Largest number of levels to try.

    Returns:
        ``(A, most - 1)`` ascending, padded in front with -inf: nothing lies below, so such a rung is empty.
    """
    values = labels.to(wide(labels)).masked_fill(~counted, torch.inf).sort(1).values
    points = values.masked_fill(values == torch.inf, 0)
    line = Line(points, functional.pad(points.cumsum(1), (1, 0)), counted.sum(1, keepdim=True))
    best = points.new_full((points.shape[0], most - 1), -torch.inf)
    best_score = points.new_full((points.shape[0], 1), -torch.inf)
    for levels in range(fewest, most + 1):
        cuts, centres = kmeans(line, levels)
        score = silhouette(line, cuts)
        thresholds = functional.pad((centres[:, 1:] + centres[:, :-1]) / 2, (most - levels, 0), value=-torch.inf)
        better = score > best_score  # of equal scores the fewer levels stay
        best, best_score = torch.where(better, thresholds, best), torch.where(better, score, best_score)
    return best.to(labels.dtype)


def kmeans(line: Line, levels: int) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm from equal quantiles: cuts ``(A, k + 1)`` into the sorted labels, centres ``(A, k)``."""
    steps = torch.arange(levels + 1, device=line.points.device)
    cuts = (line.number * steps) // levels
    centres = _means(line, cuts, line.points[:, :1].expand(-1, levels))
    padded = line.points.masked_fill(torch.arange(line.points.shape[1], device=steps.device) >= line.number, torch.inf)
    for _ in range(_STEPS):
        middles = ((centres[:, 1:] + centres[:, :-1]) / 2).contiguous()
        # A point in the middle goes to the upper cluster, as a label on a threshold does.
        inner = torch.searchsorted(padded, middles, right=False)
        moved = torch.cat((cuts[:, :1], inner, cuts[:, -1:]), 1)
        # A recording takes all steps; those too many move nothing.
        if not is_recorded(cuts) and torch.equal(moved, cuts):
            break
        cuts = moved
        centres = _means(line, cuts, centres)
    return cuts, centres


def _means(line: Line, cuts: Tensor, empty: Tensor) -> Tensor:
    """Mean of each cluster; an empty one keeps its old centre."""
    sizes = cuts.diff(dim=1)
    return torch.where(sizes > 0, line.sums.gather(1, cuts).diff(dim=1) / sizes.clamp(min=1), empty)


def silhouette(line: Line, cuts: Tensor) -> Tensor:
    """Mean silhouette of each anchor's clusters, ``(A, 1)``; -inf where a cluster is empty.

    A point's silhouette is ``(b - a) / max(a, b)``: a is its mean distance to its own cluster, b that to the nearest
    other one; 0 for a cluster of one point.
    """
    points, sums, number = line
    where = torch.arange(points.shape[1], device=points.device).expand_as(points).contiguous()
    levels = cuts.shape[1] - 1
    own = torch.searchsorted(cuts[:, 1:-1].contiguous(), where, right=True)  # cluster of each point
    sizes, totals = cuts.diff(dim=1), sums.gather(1, cuts).diff(dim=1)
    start, stop = cuts.gather(1, own), cuts.gather(1, own + 1)
    left = points * (where - start) - (sums[:, :-1] - sums.gather(1, start))
    right = (sums.gather(1, stop) - sums[:, 1:]) - points * (stop - where - 1)
    inside = (left + right) / (stop - start - 1).clamp(min=1)

    # (A, n, levels): mean distance of each point to each cluster; clusters are intervals, so one sign serves each.
    far = (points[:, :, None] - (totals / sizes.clamp(min=1))[:, None, :]).abs()
    cluster = torch.arange(levels, device=points.device)
    far = far.masked_fill((cluster == own[:, :, None]) | (sizes[:, None, :] == 0), torch.inf)
    outside = far.amin(2)
    larger = torch.maximum(inside, outside)
    width = torch.where((stop - start > 1) & (larger > 0), (outside - inside) / larger.clamp(min=1e-30), 0.0)
    mean = width.masked_fill(where >= number, 0).sum(1, keepdim=True) / number.clamp(min=1)
    return mean.masked_fill((sizes == 0).any(1, keepdim=True), -torch.inf)
