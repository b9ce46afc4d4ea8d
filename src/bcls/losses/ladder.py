"""Ladder losses (CVSE++): a triplet loss and one more hinge for each level of relevance.

:class:`LadderLoss` has fixed thresholds between the levels, :class:`AdaptiveLadderLoss` finds them for each anchor by
k-means. Labels are numbers on a line, so clusters are intervals of the sorted labels: sums of clusters are differences
of prefix sums, and a step of k-means moves k - 1 cuts. All anchors are processed at once; the result is deterministic.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bcls._core.errors import check_number, check_numbers, check_whole, fail
from bcls.losses._torch.mining import HardPairs, WindowBins, hinges_with_margin, mine, threshold_bins, wide
from bcls.losses.base import Batch, Reduction, RetrievalLoss, as_function, numbers_like, reduce, total
from bcls.losses.definitions import is_captured
from bcls.losses.triplet import TripletHardLoss

#: Far more steps than k-means on a line needs; it stops as soon as no cut moves.
_STEPS = 100


class LadderLoss(RetrievalLoss):
    r"""Ladder loss: candidates above a threshold of relevance should rank above those below it.

    .. math::
        \mathcal{L} = \mathcal{L}_{T\text{-}HN}(m_0) + \sum_l w_l \sum_i
            [m_l - \min_{j: r_{ij} \ge \theta_l} s(V_i, T_j) + \max_{k: r_{ik} < \theta_l} s(V_i, T_k)]_+
            + \text{the same over columns}

    A threshold without candidates on one side contributes 0. Pairs of the same image are never negatives.

    Args:
        thresholds: :math:`\theta_l`, the thresholds between levels of relevance.
        margins: :math:`m_0` of the triplet loss, then :math:`m_l` of each threshold.
        weights: :math:`w_l` of each threshold.
        reduction: ``"sum"`` as in the equation, ``"mean"`` divides it by B.

    Inputs:
        As :class:`KendallLoss`, with ``image_ids`` used as in :class:`TripletLoss`.

    Relations: a threshold is a window of width 0 of :class:`KendallWindowLoss`, with a margin.
    :class:`AdaptiveLadderLoss` finds the thresholds from the labels.

    Raises:
        ValueError: If an argument or an input is wrong, or ``relevance`` is missing.

    Example:
        >>> import torch
        >>> similarity = torch.tensor([[0.9, 0.3], [0.6, 0.5]])
        >>> relevance = torch.tensor([[1.0, 0.2], [0.2, 1.0]])
        >>> LadderLoss(reduction="sum").terms(similarity, relevance)
        {'binary': tensor(0.3000), 'continuous': tensor(0.0275)}

    Reference: Ladder loss for coherent visual-semantic embedding (Zhou et al., 2020).
    """

    def __init__(
        self,
        thresholds: Sequence[float] = (0.4,),
        margins: Sequence[float] = (0.2, 0.01),
        weights: Sequence[float] = (0.25,),
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        levels = check_numbers("thresholds", thresholds, "labels lie in [-1, 1]", low=-1)
        count = len(levels)
        if count == 0 or max(levels) > 1:
            fail("thresholds", "at least one threshold, none above 1", thresholds, "the default is (0.4,)")
        steps = check_numbers("margins", margins, "the default is (0.2, 0.01)", count=count + 1, low=0)
        shares = check_numbers("weights", weights, "the default is (0.25,)", count=count, low=0)
        order = sorted(range(count), key=levels.__getitem__)
        self.thresholds = [levels[place] for place in order]
        self.margins = [steps[place + 1] for place in order]
        self.weights = [shares[place] for place in order]
        self.binary = TripletHardLoss(steps[0], reduction)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        thresholds = numbers_like(batch.labels, self.thresholds)
        margins, weights = (numbers_like(batch.similarity, values) for values in (self.margins, self.weights))
        return _ladder_terms(self.binary, batch, thresholds, thresholds, margins, weights)


ladder_loss = as_function(LadderLoss, "ladder_loss")


class AdaptiveLadderLoss(RetrievalLoss):
    r"""Ladder loss with levels of relevance found by k-means on the labels of each anchor.

    The labels of the negatives of an anchor are clustered, with the number of clusters in ``levels`` that has the best
    silhouette; the midpoints between neighboring centers are the thresholds of :class:`LadderLoss`. The highest
    threshold has the weight ``weight``, each lower one half of the one above.

    Args:
        levels: Smallest and largest number of levels, at least 2.
        margin: Margin of the triplet loss.
        rung_margin: Margin of every threshold.
        weight: Weight of the highest threshold.
        reduction: ``"sum"`` sums over anchors and directions, ``"mean"`` divides that by B.

    Inputs:
        As :class:`LadderLoss`.

    Relations: :class:`LadderLoss` has the same thresholds for all anchors. An anchor whose labels are all equal has
    no thresholds.

    Raises:
        ValueError: If an argument or an input is wrong, or ``relevance`` is missing.

    Example:
        >>> import torch
        >>> relevance = torch.tensor([[1.0, 0.7, 0.1, 0.1], [0.7, 1.0, 0.1, 0.1],
        ...                           [0.1, 0.1, 1.0, 0.7], [0.1, 0.1, 0.7, 1.0]])
        >>> similarity = relevance.clone()
        >>> float(AdaptiveLadderLoss()(similarity, relevance))  # ranked in the order of the labels
        0.0
        >>> similarity[0, 1], similarity[0, 2] = 0.2, 0.3  # row 0: the threshold between 0.1 and 0.7
        >>> terms = AdaptiveLadderLoss(reduction="sum").terms(similarity, relevance)
        >>> round(float(terms["continuous"]), 4)  # 0.25 * (0.3 - 0.2 + 0.01)
        0.0275

    Reference: Wang et al. (2021); the k-means here handles ties exactly and needs no random initialization.
    """

    def __init__(
        self,
        levels: tuple[int, int] = (2, 4),
        margin: float = 0.2,
        rung_margin: float = 0.01,
        weight: float = 0.25,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        if not isinstance(levels, Sequence) or len(levels) != 2:
            fail("levels", "the smallest and the largest number of levels", repr(levels), "the default is (2, 4)")
        fewest = check_whole("levels", levels[0], least=2)
        self.levels = (fewest, check_whole("levels", levels[1], least=fewest))
        self.rung_margin = check_number("rung_margin", rung_margin, "the default is 0.01", low=0)
        self.weight = check_number("weight", weight, "the default is 0.25", low=0)
        self.binary = TripletHardLoss(margin, reduction)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        most = self.levels[1] - 1
        weights = numbers_like(batch.similarity, [self.weight / 2**step for step in reversed(range(most))])
        margins = torch.full_like(weights, self.rung_margin)
        by_image = level_thresholds(batch.labels, batch.negatives, *self.levels)
        by_caption = level_thresholds(batch.labels.T, batch.negatives.T, *self.levels)
        return _ladder_terms(self.binary, batch, by_image, by_caption, margins, weights)


adaptive_ladder_loss = as_function(AdaptiveLadderLoss, "adaptive_ladder_loss")


def _ladder_terms(
    binary: TripletHardLoss, batch: Batch, by_image: Tensor, by_caption: Tensor, margins: Tensor, weights: Tensor
) -> dict[str, Tensor]:
    """The binary loss, and weighted hinges of all thresholds.

    Args:
        binary: The triplet loss, whose reduction is that of the hinges.
        batch: Checked input.
        by_image: Ascending thresholds of the image anchors, ``(W,)`` or ``(B, W)``.
        by_caption: The same of the caption anchors.
        margins: ``(W,)``.
        weights: ``(W,)``.
    """
    labels, same, windows = batch.labels, batch.same_image, len(margins)

    def bins_of(rows: slice, columns: slice) -> tuple[WindowBins, WindowBins]:
        tile, excluded = labels[rows, columns], same[rows, columns]
        along_row = threshold_bins(tile, by_image[rows] if by_image.ndim == 2 else by_image)
        along_column = along_row
        if by_caption is not by_image:
            bins = threshold_bins(tile.T, by_caption[columns])
            along_column = WindowBins(bins.beyond.T, bins.negative.T)
        # The bin after the last window means: not a negative of any window.
        return (
            along_row._replace(negative=along_row.negative.masked_fill(excluded, windows)),
            along_column._replace(negative=along_column.negative.masked_fill(excluded, windows)),
        )

    with torch.no_grad():
        mined = mine(batch.similarity.detach(), bins_of, windows)
        pairs = HardPairs(*(torch.cat(parts) for parts in zip(*mined, strict=True)))
    hinges = hinges_with_margin(batch.similarity, pairs, weights, margins)
    return {"binary": total(binary.compute(batch)), "continuous": reduce(hinges, batch.size, binary.reduction)}


class SortedLabels(NamedTuple):
    """Sorted labels of each anchor; those that do not count are at the end."""

    points: Tensor  #: (A, n) ascending; 0 if they do not count
    sums: Tensor  #: (A, n + 1) prefix sums
    number: Tensor  #: (A, 1) number of labels that count


def level_thresholds(labels: Tensor, counted: Tensor, fewest: int, most: int) -> Tensor:
    """Thresholds between the levels of each anchor.

    Args:
        labels: ``(A, n)``, rows are anchors.
        counted: ``(A, n)`` bool, the labels to cluster.
        fewest: Smallest number of levels to try.
        most: Largest number of levels to try.

    Returns:
        ``(A, most - 1)`` ascending, padded in front with -inf: no label is below, so such a threshold is empty.
    """
    values = labels.to(wide(labels)).masked_fill(~counted, torch.inf).sort(1).values
    points = values.masked_fill(values == torch.inf, 0)
    line = SortedLabels(points, functional.pad(points.cumsum(1), (1, 0)), counted.sum(1, keepdim=True))
    best = points.new_full((points.shape[0], most - 1), -torch.inf)
    best_score = points.new_full((points.shape[0], 1), -torch.inf)
    for levels in range(fewest, most + 1):
        cuts, centers = kmeans(line, levels)
        score = silhouette(line, cuts)
        thresholds = functional.pad((centers[:, 1:] + centers[:, :-1]) / 2, (most - levels, 0), value=-torch.inf)
        better = score > best_score  # for equal scores the smaller number of levels is kept
        best, best_score = torch.where(better, thresholds, best), torch.where(better, score, best_score)
    return best.to(labels.dtype)


def kmeans(line: SortedLabels, levels: int) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm from equal quantiles: cuts ``(A, k + 1)`` of the sorted labels, centers ``(A, k)``."""
    steps = torch.arange(levels + 1, device=line.points.device)
    cuts = (line.number * steps) // levels
    centers = _means(line, cuts, line.points[:, :1].expand(-1, levels))
    padded = line.points.masked_fill(torch.arange(line.points.shape[1], device=steps.device) >= line.number, torch.inf)
    for _ in range(_STEPS):
        middles = ((centers[:, 1:] + centers[:, :-1]) / 2).contiguous()
        # A point at the midpoint belongs to the upper cluster, like a label on a threshold.
        inner = torch.searchsorted(padded, middles, right=False)
        moved = torch.cat((cuts[:, :1], inner, cuts[:, -1:]), 1)
        # A CUDA graph records all steps; superfluous ones move nothing.
        if not is_captured(cuts) and torch.equal(moved, cuts):
            break
        cuts = moved
        centers = _means(line, cuts, centers)
    return cuts, centers


def _means(line: SortedLabels, cuts: Tensor, empty: Tensor) -> Tensor:
    """Mean of each cluster; an empty one keeps its center."""
    sizes = cuts.diff(dim=1)
    return torch.where(sizes > 0, line.sums.gather(1, cuts).diff(dim=1) / sizes.clamp(min=1), empty)


def silhouette(line: SortedLabels, cuts: Tensor) -> Tensor:
    """Mean silhouette of each anchor's clusters, ``(A, 1)``; -inf if a cluster is empty.

    The silhouette of a point is ``(b - a) / max(a, b)``: a is its mean distance to its own cluster, b that to the
    nearest other cluster; 0 for a cluster of one point.
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

    # (A, n, levels): mean distance of each point to each cluster; in an interval all differences have one sign.
    far = (points[:, :, None] - (totals / sizes.clamp(min=1))[:, None, :]).abs()
    cluster = torch.arange(levels, device=points.device)
    far = far.masked_fill((cluster == own[:, :, None]) | (sizes[:, None, :] == 0), torch.inf)
    outside = far.amin(2)
    larger = torch.maximum(inside, outside)
    width = torch.where((stop - start > 1) & (larger > 0), (outside - inside) / larger.clamp(min=1e-30), 0.0)
    mean = width.masked_fill(where >= number, 0).sum(1, keepdim=True) / number.clamp(min=1)
    return mean.masked_fill((sizes == 0).any(1, keepdim=True), -torch.inf)
