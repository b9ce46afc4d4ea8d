"""Triplet ranking losses: over all negatives (L_T), the hardest one (L_T-HN) and soft negatives (L_T-SN)."""

from typing import Literal

import torch
from torch import Tensor

from bcls._core.errors import check_choice, check_number
from bcls.losses.backends import can_fuse
from bcls.losses.base import Batch, Reduction, RetrievalLoss, as_function, reduce
from bcls.losses.definitions import SoftNegatives
from bcls.losses.fused import matrix_loss

LogSumExp = Literal["sum", "mean"]


class TripletLoss(RetrievalLoss):
    r"""Triplet ranking loss over all negatives (L_T).

    .. math::
        \mathcal{L}_T = \sum_i \sum_{j: r_{ij} < 1} [s(V_i, T_j) - s(V_i, T_i) + m]_+
                      + \sum_i \sum_{j: r_{ji} < 1} [s(V_j, T_i) - s(V_i, T_i) + m]_+

    Args:
        margin: :math:`m`, by how much a matching pair must score above a negative.
        reduction: ``"sum"`` as in the equation, ``"mean"`` divides it by B.

    Inputs:
        +----------------+------------+----------------------------------------------------------------+
        | ``similarity`` | ``(B, B)`` | float, any scale; rows are images, columns captions            |
        +----------------+------------+----------------------------------------------------------------+
        | ``relevance``  | ``(B, B)`` | optional, in [-1, 1]; pairs with label 1 are not negatives     |
        +----------------+------------+----------------------------------------------------------------+
        | ``image_ids``  | ``(B,)``   | optional integers; pairs of one image are not negatives        |
        +----------------+------------+----------------------------------------------------------------+

    Relations: :class:`TripletHardLoss` uses only the hardest negative, :class:`TripletSoftLoss` a smooth maximum of
    all. With margin 0 it is the part of :class:`KendallLoss` (alpha 0) whose higher pair is the matching one.

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
        self.margin = check_number("margin", margin, "0.2 is the default of every baseline", low=0)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        own = batch.similarity.diagonal()
        by_image = (batch.similarity - own[:, None] + self.margin).relu()
        by_caption = (batch.similarity - own[None, :] + self.margin).relu()
        value = (by_image + by_caption).masked_fill(~batch.negatives, 0).sum()
        return {"triplet": reduce(value, batch.size, self.reduction)}


triplet_loss = as_function(TripletLoss, "triplet_loss")


class TripletHardLoss(TripletLoss):
    r"""Triplet ranking loss with the hardest negative of each anchor (L_T-HN).

    .. math::
        \mathcal{L}_{T\text{-}HN} = \sum_i [m - s(V_i, T_i) + \max_{j: r_{ij} < 1} s(V_i, T_j)]_+
                           + \sum_i [m - s(V_i, T_i) + \max_{j: r_{ji} < 1} s(V_j, T_i)]_+

    An anchor without negatives contributes 0.

    Args:
        margin: :math:`m`, by how much a matching pair must score above its hardest negative.
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

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        allowed, own = batch.negatives, batch.similarity.diagonal()
        # A finite floor, not -inf: an anchor without negatives must not turn 0 * inf into NaN.
        candidates = batch.similarity.masked_fill(~allowed, torch.finfo(batch.similarity.dtype).min)
        value = own.new_zeros(())
        for dim in (1, 0):
            hardest = candidates.max(dim).values
            value = value + torch.where(allowed.any(dim), (hardest - own + self.margin).relu(), 0.0).sum()
        return {"triplet": reduce(value, batch.size, self.reduction)}


triplet_hard_loss = as_function(TripletHardLoss, "triplet_hard_loss")


class TripletSoftLoss(TripletLoss):
    r"""Triplet ranking loss with soft negatives, a log-sum-exp over all of them (L_T-SN).

    .. math::
        \mathcal{L}_{T\text{-}SN} = \sum_i [\tilde{s}(V_i) - s(V_i, T_i) + m]_+
                                  + \sum_i [\tilde{s}(T_i) - s(V_i, T_i) + m]_+

    .. math::
        \tilde{s}(V_i) = \frac{1}{\gamma} \log \sum_{j: r_{ij} < 1} \exp(\gamma \, s(V_i, T_j))

    An anchor without negatives contributes 0. The log-sum-exp is computed in float32 or float64.

    Args:
        margin: :math:`m`.
        gamma: :math:`\gamma`, hardness; for large values only the hardest negative counts.
        lse: ``"sum"`` as in the paper; ``"mean"`` subtracts :math:`\log(\text{number of negatives}) / \gamma`,
            a bias that acts as an extra margin of up to 0.097 at B = 128 and gamma = 50.
        reduction: ``"sum"`` as in the equation, ``"mean"`` divides it by B.

    Inputs:
        As :class:`TripletLoss`.

    Relations: tends to :class:`TripletHardLoss` as gamma grows, from above with ``lse="sum"``, from below with
    ``lse="mean"``. The binary term of :class:`BCLSLoss`.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> similarity = torch.tensor([[0.9, 0.8], [0.1, 0.5]])
        >>> TripletSoftLoss(margin=0.2, gamma=50.0, reduction="sum")(similarity)  # one negative: equal to the hard loss
        tensor(0.6000)

    Reference: BCLS (Li et al., 2022), section III-C.
    """

    def __init__(
        self, margin: float = 0.2, gamma: float = 50.0, lse: LogSumExp = "sum", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(margin, reduction)
        self.gamma = check_number("gamma", gamma, "the paper uses 50", above=0)
        check_choice("lse", lse, ("sum", "mean"))
        self.lse: LogSumExp = lse

    def settings(self, size: int) -> SoftNegatives:
        """The settings of the fused kernels for a batch of ``size``."""
        scale = 1.0 if self.reduction == "sum" else 1 / size
        return SoftNegatives(self.margin, self.gamma, self.lse == "mean", scale)

    def fuses(self, batch: Batch) -> bool:
        """See :meth:`RetrievalLoss.fuses`."""
        return can_fuse(batch.similarity)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        if batch.raw or self.fuses(batch):  # the kernel checks raw values
            settings = self.settings(batch.size)
            terms = matrix_loss(batch.similarity, batch.relevance, image_ids=batch.image_ids, soft=settings)
            return {"triplet": terms.binary}
        allowed, own = batch.negatives, batch.similarity.diagonal()
        # A finite floor, not -inf: log-sum-exp over nothing but -inf has a NaN gradient.
        scaled = (self.gamma * batch.similarity).masked_fill(~allowed, torch.finfo(batch.similarity.dtype).min)
        value = own.new_zeros(())
        for dim in (1, 0):
            negatives = allowed.sum(dim)
            soft = torch.logsumexp(scaled, dim)
            if self.lse == "mean":
                soft = soft - negatives.clamp(min=1).to(soft.dtype).log()
            value = value + torch.where(negatives > 0, (soft / self.gamma - own + self.margin).relu(), 0.0).sum()
        return {"triplet": reduce(value, batch.size, self.reduction)}


triplet_soft_loss = as_function(TripletSoftLoss, "triplet_soft_loss")
