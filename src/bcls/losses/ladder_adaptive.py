"""Ladder loss whose rungs follow the labels of each anchor, the adaptive form of CVSE++."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bcls._core.errors import check_number, check_whole, fail
from bcls.losses._base import Reduction, RetrievalLoss, numbers_like, reduce
from bcls.losses._batch import Batch
from bcls.losses._levels import level_thresholds
from bcls.losses.ladder import rungs
from bcls.losses.triplet_hard import TripletHardLoss


class AdaptiveLadderLoss(RetrievalLoss):
    r"""Ladder loss with levels of relevance found by k-means on each anchor's labels.

    The labels of an anchor's negatives are clustered on the line, with the number of clusters in ``levels`` that has
    the best silhouette; the middles between neighbouring centres are the thresholds of :class:`LadderLoss`. The rung
    nearest to the match weighs ``weight``, each further one half of the one before.

    Args:
        levels: Fewest and most levels, at least 2.
        margin: Margin of the triplet loss.
        rung_margin: Margin of every rung.
        weight: Weight of the highest rung.
        reduction: ``"sum"`` adds over anchors and directions, ``"mean"`` divides that by B.

    Inputs:
        As :class:`LadderLoss`.

    Relations: :class:`LadderLoss` with the same thresholds for all anchors. An anchor whose labels are all equal has
    no rungs.

    Raises:
        ValueError: If an argument or an input is wrong, or ``relevance`` is missing.

    Example:
        >>> import torch
        >>> relevance = torch.tensor([[1.0, 0.7, 0.1, 0.1], [0.7, 1.0, 0.1, 0.1],
        ...                           [0.1, 0.1, 1.0, 0.7], [0.1, 0.1, 0.7, 1.0]])
        >>> similarity = relevance.clone()
        >>> float(AdaptiveLadderLoss()(similarity, relevance))  # ranked as labelled
        0.0
        >>> similarity[0, 1], similarity[0, 2] = 0.2, 0.3  # row 0: the rung between 0.1 and 0.7
        >>> terms = AdaptiveLadderLoss(reduction="sum").terms(similarity, relevance)
        >>> round(float(terms["continuous"]), 4)  # 0.25 * (0.3 - 0.2 + 0.01)
        0.0275

    Reference: Wang et al. (2021); the k-means here is exact about ties and needs no random start.
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
            fail("levels", "the fewest and the most levels", repr(levels), "the default is (2, 4)")
        fewest = check_whole("levels", levels[0], least=2)
        self.levels = (fewest, check_whole("levels", levels[1], least=fewest))
        self.rung_margin = check_number("rung_margin", rung_margin, "the default is 0.01", low=0)
        self.weight = check_number("weight", weight, "the default is 0.25", low=0)
        self.binary = TripletHardLoss(margin, reduction)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        most = self.levels[1] - 1
        weights = numbers_like(batch.similarity, [self.weight / 2**rung for rung in reversed(range(most))])
        margins = torch.full_like(weights, self.rung_margin)
        by_image = level_thresholds(batch.labels, batch.negatives, *self.levels)
        by_caption = level_thresholds(batch.labels.T, batch.negatives.T, *self.levels)
        value = rungs(batch, by_image, by_caption, margins, weights)
        (binary,) = self.binary.compute(batch).values()
        return {"binary": binary, "continuous": reduce(value, batch.size, self.reduction)}


def adaptive_ladder_loss(
    similarity: Tensor,
    relevance: Tensor | None = None,
    *,
    image_ids: Tensor | None = None,
    levels: tuple[int, int] = (2, 4),
    margin: float = 0.2,
    rung_margin: float = 0.01,
    weight: float = 0.25,
    reduction: Reduction = "mean",
) -> Tensor:
    """:class:`AdaptiveLadderLoss` as a function."""
    loss = AdaptiveLadderLoss(levels, margin, rung_margin, weight, reduction)
    return loss(similarity, relevance, image_ids=image_ids)
