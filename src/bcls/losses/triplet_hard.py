"""Triplet ranking loss with hard negative mining, the paper's L_T-HN."""

import torch
from torch import Tensor

from bcls._core.errors import check_number
from bcls.losses._base import Reduction, RetrievalLoss, reduce
from bcls.losses._batch import Batch
from bcls.losses.triplet import MARGIN_REMEDY


class TripletHardLoss(RetrievalLoss):
    r"""Triplet ranking loss with the hardest negative of each anchor (L_T-HN).

    .. math::
        \mathcal{L}_{T\text{-}HN} = \sum_i [m - s(V_i, T_i) + \max_{j: r_{ij} < 1} s(V_i, T_j)]_+
                           + \sum_i [m - s(V_i, T_i) + \max_{j: r_{ji} < 1} s(V_j, T_i)]_+

    An anchor without negatives contributes 0.

    Args:
        margin: :math:`m`, how far a matching pair must lie above the hardest wrong one.
        reduction: ``"sum"`` as in the equation, ``"mean"`` divides it by B.

    Inputs:
        As :class:`TripletLoss`.

    Relations: the limit of :class:`TripletSoftLoss` as gamma grows; never larger than :class:`TripletLoss`.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> similarity = torch.tensor([[0.9, 0.8], [0.1, 0.5]])
        >>> TripletHardLoss(margin=0.2, reduction="sum")(similarity)
        tensor(0.6000)

    Reference: VSE++ (Faghri et al., 2018).
    """

    def __init__(self, margin: float = 0.2, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.margin = check_number("margin", margin, MARGIN_REMEDY, low=0)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        return {"triplet": reduce(_hardest_hinges(batch, self.margin), batch.size, self.reduction)}


def triplet_hard_loss(
    similarity: Tensor,
    relevance: Tensor | None = None,
    *,
    image_ids: Tensor | None = None,
    margin: float = 0.2,
    reduction: Reduction = "mean",
) -> Tensor:
    """:class:`TripletHardLoss` as a function."""
    return TripletHardLoss(margin, reduction)(similarity, relevance, image_ids=image_ids)


def _hardest_hinges(batch: Batch, margin: float) -> Tensor:
    allowed, own = batch.negatives, batch.similarity.diagonal()
    # A finite floor, not -inf: an anchor without negatives must not turn 0 * inf into NaN.
    candidates = batch.similarity.masked_fill(~allowed, torch.finfo(batch.similarity.dtype).min)
    loss = own.new_zeros(())
    for dim in (1, 0):
        hardest = candidates.max(dim).values
        loss = loss + torch.where(allowed.any(dim), (hardest - own + margin).relu(), 0.0).sum()
    return loss
