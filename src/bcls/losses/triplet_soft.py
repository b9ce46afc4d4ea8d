"""Triplet ranking loss with soft negative mining, the paper's L_T-SN."""

from typing import Literal

import torch
from torch import Tensor

from bcls import kernels
from bcls._core.errors import check_choice, check_number
from bcls.losses._base import Reduction, RetrievalLoss, reduce
from bcls.losses._batch import Batch
from bcls.losses.triplet import MARGIN_REMEDY

LogSumExp = Literal["sum", "mean"]


class TripletSoftLoss(RetrievalLoss):
    r"""Triplet ranking loss with soft negatives, a log-sum-exp over all of them (L_T-SN).

    .. math::
        \mathcal{L}_{T\text{-}SN} = \sum_i [\tilde{s}(V_i) - s(V_i, T_i) + m]_+
                                  + \sum_i [\tilde{s}(T_i) - s(V_i, T_i) + m]_+

    .. math::
        \tilde{s}(V_i) = \frac{1}{\gamma} \log \sum_{j: r_{ij} < 1} \exp(\gamma \, s(V_i, T_j))

    An anchor without negatives contributes 0. The log-sum-exp runs in float32 or better.

    Args:
        margin: :math:`m`.
        gamma: :math:`\gamma`, how hard the mining is; as it grows only the hardest negative counts.
        lse: ``"sum"`` as in the paper; ``"mean"`` subtracts :math:`\log(\text{number of negatives}) / \gamma`,
            a bias that acts as an extra margin of up to 0.097 at B = 128 and gamma = 50.
        reduction: ``"sum"`` as in the equation, ``"mean"`` divides it by B.

    Inputs:
        As :class:`TripletLoss`.

    Relations: tends to :class:`TripletHardLoss` as gamma grows, from above with ``lse="sum"``, from below with
    ``lse="mean"``. The binary half of :class:`BCLSLoss`.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> similarity = torch.tensor([[0.9, 0.8], [0.1, 0.5]])
        >>> TripletSoftLoss(margin=0.2, gamma=50.0, reduction="sum")(similarity)  # one negative: the hard loss
        tensor(0.6000)

    Reference: BCLS (Li et al., 2022), section III-C.
    """

    def __init__(
        self, margin: float = 0.2, gamma: float = 50.0, lse: LogSumExp = "sum", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.margin = check_number("margin", margin, MARGIN_REMEDY, low=0)
        self.gamma = check_number("gamma", gamma, "the paper uses 50", above=0)
        check_choice("lse", lse, ("sum", "mean"))
        self.lse: LogSumExp = lse

    def negatives(self, size: int) -> kernels.SoftNegatives:
        """The settings as the fused kernels of :mod:`bcls.kernels` take them, for a batch of ``size``."""
        scale = 1.0 if self.reduction == "sum" else 1 / size
        return kernels.SoftNegatives(self.margin, self.gamma, self.lse == "mean", scale)

    def fuses(self, batch: Batch) -> bool:
        """See :meth:`RetrievalLoss.fuses`."""
        return kernels.usable(batch.similarity)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        if self.fuses(batch):
            soft = self.negatives(batch.size)
            terms = kernels.matrix_loss(batch.similarity, batch.relevance, image_ids=batch.image_ids, soft=soft)
            return {"triplet": terms.binary}
        value = _soft_hinges(batch, self.margin, self.gamma, average=self.lse == "mean")
        return {"triplet": reduce(value, batch.size, self.reduction)}


def triplet_soft_loss(
    similarity: Tensor,
    relevance: Tensor | None = None,
    *,
    image_ids: Tensor | None = None,
    margin: float = 0.2,
    gamma: float = 50.0,
    lse: LogSumExp = "sum",
    reduction: Reduction = "mean",
) -> Tensor:
    """:class:`TripletSoftLoss` as a function."""
    return TripletSoftLoss(margin, gamma, lse, reduction)(similarity, relevance, image_ids=image_ids)


def _soft_hinges(batch: Batch, margin: float, gamma: float, *, average: bool) -> Tensor:
    allowed, own = batch.negatives, batch.similarity.diagonal()
    # A finite floor, not -inf: log-sum-exp over nothing but -inf has a NaN gradient.
    scaled = (gamma * batch.similarity).masked_fill(~allowed, torch.finfo(batch.similarity.dtype).min)
    loss = own.new_zeros(())
    for dim in (1, 0):
        negatives = allowed.sum(dim)
        soft = torch.logsumexp(scaled, dim)
        if average:
            soft = soft - negatives.clamp(min=1).to(soft.dtype).log()
        loss = loss + torch.where(negatives > 0, (soft / gamma - own + margin).relu(), 0.0).sum()
    return loss
