"""Triplet ranking loss over all negatives, the paper's L_T."""

from torch import Tensor

from bcls._core.errors import check_number
from bcls.losses._base import Reduction, RetrievalLoss, reduce
from bcls.losses._batch import Batch

MARGIN_REMEDY = "0.2 is the default of every baseline"


class TripletLoss(RetrievalLoss):
    r"""Triplet ranking loss over all negatives (L_T).

    .. math::
        \mathcal{L}_T = \sum_i \sum_{j: r_{ij} < 1} [s(V_i, T_j) - s(V_i, T_i) + m]_+
                      + \sum_i \sum_{j: r_{ji} < 1} [s(V_j, T_i) - s(V_i, T_i) + m]_+

    Args:
        margin: :math:`m`, how far a matching pair must lie above a wrong one.
        reduction: ``"sum"`` as in the equation, ``"mean"`` divides it by B.

    Inputs:
        +----------------+------------+----------------------------------------------------------------+
        | ``similarity`` | ``(B, B)`` | float, any scale; rows are images, columns captions            |
        +----------------+------------+----------------------------------------------------------------+
        | ``relevance``  | ``(B, B)`` | optional, in [-1, 1]; pairs with a label of 1 are no negatives |
        +----------------+------------+----------------------------------------------------------------+
        | ``image_ids``  | ``(B,)``   | optional integers; pairs of one image are no negatives         |
        +----------------+------------+----------------------------------------------------------------+

    Relations: :class:`TripletHardLoss` keeps the hardest negative alone, :class:`TripletSoftLoss` a smooth
    maximum of all. With margin 0 it is the part of :class:`KendallLoss` (alpha 0) whose higher pair is the match.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> similarity = torch.tensor([[0.9, 0.8], [0.1, 0.5]])
        >>> TripletLoss(margin=0.2, reduction="sum")(similarity)  # 0.1 from row 0, 0.5 from column 1
        tensor(0.6000)

    Reference: VSE++ (Faghri et al., 2018), the sum of hinges; BCLS (Li et al., 2022), its first equation.
    """

    def __init__(self, margin: float = 0.2, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.margin = check_number("margin", margin, MARGIN_REMEDY, low=0)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        return {"triplet": reduce(_all_hinges(batch, self.margin), batch.size, self.reduction)}


def triplet_loss(
    similarity: Tensor,
    relevance: Tensor | None = None,
    *,
    image_ids: Tensor | None = None,
    margin: float = 0.2,
    reduction: Reduction = "mean",
) -> Tensor:
    """:class:`TripletLoss` as a function."""
    return TripletLoss(margin, reduction)(similarity, relevance, image_ids=image_ids)


def _all_hinges(batch: Batch, margin: float) -> Tensor:
    similarity, allowed = batch.similarity, batch.negatives
    own = similarity.diagonal()
    by_image = (similarity - own[:, None] + margin).relu()
    by_caption = (similarity - own[None, :] + margin).relu()
    return (by_image + by_caption).masked_fill(~allowed, 0).sum()
