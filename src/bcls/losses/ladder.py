"""Ladder loss of CVSE++: a triplet loss and one more rung for each level of relevance."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bcls._core.errors import check_numbers, fail
from bcls.losses._base import Reduction, RetrievalLoss, numbers_like, reduce
from bcls.losses._batch import Batch
from bcls.losses._extrema import HardPairs, mine
from bcls.losses._sparse import hinges_with_margin
from bcls.losses._windows import WindowBins, threshold_bins
from bcls.losses.triplet_hard import TripletHardLoss


class LadderLoss(RetrievalLoss):
    r"""Ladder loss: candidates above a threshold of relevance rank above those below it.

    .. math::
        \mathcal{L} = \mathcal{L}_{T\text{-}HN}(m_0) + \sum_l w_l \sum_i
            [m_l - \min_{j: r_{ij} \ge \theta_l} s(V_i, T_j) + \max_{k: r_{ik} < \theta_l} s(V_i, T_k)]_+
            + \text{the same over columns}

    A rung without candidates on one side contributes 0. Pairs of one image are never negatives.

    Args:
        thresholds: :math:`\theta_l`, one for each rung.
        margins: :math:`m_0` of the triplet loss, then :math:`m_l` of each rung.
        weights: :math:`w_l` of each rung.
        reduction: ``"sum"`` as in the equation, ``"mean"`` divides it by B.

    Inputs:
        As :class:`KendallLoss`, with ``image_ids`` used as in :class:`TripletLoss`.

    Relations: a rung is one window of no width of :class:`KendallWindowLoss`, with a margin.
    :class:`AdaptiveLadderLoss` finds the thresholds itself.

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
        rungs = len(levels)
        if rungs == 0 or max(levels) > 1:
            fail("thresholds", "at least one threshold, none above 1", thresholds, "the default is (0.4,)")
        steps = check_numbers("margins", margins, "the default is (0.2, 0.01)", count=rungs + 1, low=0)
        shares = check_numbers("weights", weights, "the default is (0.25,)", count=rungs, low=0)
        order = sorted(range(rungs), key=lambda rung: levels[rung])
        self.thresholds = [levels[rung] for rung in order]
        self.margins = [steps[rung + 1] for rung in order]
        self.weights = [shares[rung] for rung in order]
        self.binary = TripletHardLoss(steps[0], reduction)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        thresholds = numbers_like(batch.labels, self.thresholds)
        margins, weights = (numbers_like(batch.similarity, values) for values in (self.margins, self.weights))
        value = rungs(batch, thresholds, thresholds, margins, weights)
        (binary,) = self.binary.compute(batch).values()
        return {"binary": binary, "continuous": reduce(value, batch.size, self.reduction)}


def ladder_loss(
    similarity: Tensor,
    relevance: Tensor | None = None,
    *,
    image_ids: Tensor | None = None,
    thresholds: Sequence[float] = (0.4,),
    margins: Sequence[float] = (0.2, 0.01),
    weights: Sequence[float] = (0.25,),
    reduction: Reduction = "mean",
) -> Tensor:
    """:class:`LadderLoss` as a function."""
    return LadderLoss(thresholds, margins, weights, reduction)(similarity, relevance, image_ids=image_ids)


def rungs(batch: Batch, by_image: Tensor, by_caption: Tensor, margins: Tensor, weights: Tensor) -> Tensor:
    """Weighted hinges of the rungs.

    Args:
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
        # The bin after the last window: a negative of no window.
        return (
            along_row._replace(negative=along_row.negative.masked_fill(excluded, windows)),
            along_column._replace(negative=along_column.negative.masked_fill(excluded, windows)),
        )

    with torch.no_grad():
        mined = mine(batch.similarity.detach(), bins_of, windows)
        pairs = HardPairs(*(torch.cat(parts) for parts in zip(*mined, strict=True)))
    return hinges_with_margin(batch.similarity, pairs, weights, margins)
