"""Binary and continuous label supervision (BCLS), the objective of the paper."""

from torch import Tensor, nn

from bcls._core.errors import check_number, fail
from bcls.losses.base import Batch, Reduction, RetrievalLoss, as_function, check_part, terms_of, total
from bcls.losses.fused import matrix_loss
from bcls.losses.kendall import KendallWindowLoss
from bcls.losses.triplet import LogSumExp, TripletSoftLoss


class BCLSLoss(RetrievalLoss):
    r"""Binary and continuous label supervision: soft negatives for matching, Kendall ranking for the order.

    .. math:: \mathcal{L} = \mathcal{L}_{T\text{-}SN} + \lambda \, \mathcal{L}_{K\text{-}SW\text{-}HS}

    Args:
        alpha: Width of the windows of :class:`KendallWindowLoss`.
        beta: Stride of the windows; 0 is the exact limit.
        gamma: Hardness of :class:`TripletSoftLoss`.
        margin: Margin of :class:`TripletSoftLoss`.
        weight: :math:`\lambda`; 1 in the paper.
        lse: ``"sum"`` as in the paper or ``"mean"``, see :class:`TripletSoftLoss`.
        reduction: ``"sum"`` as in the paper's equations, ``"mean"`` divides by B.
        binary: Another loss instead of :class:`TripletSoftLoss`; it has its own gamma, margin and lse.
        continuous: Another loss instead of :class:`KendallWindowLoss`; it has its own alpha and beta.

    Inputs:
        As :class:`KendallLoss`, with ``image_ids`` used by the binary term as in :class:`TripletLoss`.

    Relations: :meth:`terms` returns ``binary`` and ``continuous``, already weighted. With ``weight=0`` it is equal to
    :class:`TripletSoftLoss`. :class:`StreamingBCLSLoss` computes it from embeddings, without the matrices.

    Raises:
        ValueError: If an argument or an input is wrong, or ``relevance`` is missing.

    Example:
        >>> import torch
        >>> similarity = torch.tensor([[0.9, 0.8], [0.6, 0.5]])
        >>> relevance = torch.tensor([[1.0, 0.25], [0.25, 1.0]])
        >>> terms = BCLSLoss(reduction="sum").terms(similarity, relevance)
        >>> {name: round(float(term), 4) for name, term in terms.items()}
        {'binary': 0.9, 'continuous': 0.1333}

    Reference: BCLS (Li et al., 2022).
    """

    def __init__(
        self,
        alpha: float = 0.2,
        beta: float = 0.1,
        gamma: float = 50.0,
        margin: float = 0.2,
        weight: float = 1.0,
        lse: LogSumExp = "sum",
        reduction: Reduction = "mean",
        *,
        binary: nn.Module | None = None,
        continuous: nn.Module | None = None,
    ) -> None:
        super().__init__(reduction)
        if binary is not None and (gamma, margin, lse) != (50.0, 0.2, "sum"):
            fail("binary", "no gamma, margin or lse besides it", "both", "set them on the module that you pass")
        if continuous is not None and (alpha, beta) != (0.2, 0.1):
            fail("continuous", "no alpha or beta besides it", "both", "set them on the module that you pass")
        self.weight = check_number("weight", weight, "the paper uses 1", low=0)
        binary = TripletSoftLoss(margin, gamma, lse, reduction) if binary is None else binary
        continuous = KendallWindowLoss(alpha, beta, reduction=reduction) if continuous is None else continuous
        self.binary = check_part("binary", binary, reduction)
        self.continuous = check_part("continuous", continuous, reduction)

    def fuses(self, batch: Batch) -> bool:
        """See :meth:`RetrievalLoss.fuses`."""
        # The attributes `binary` and `continuous` are looked up ten times as slowly, by `nn.Module.__getattr__`.
        soft, ranked = self._modules["binary"], self._modules["continuous"]
        return type(soft) is TripletSoftLoss and type(ranked) is KendallWindowLoss and ranked.fuses(batch)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        soft, ranked = self._modules["binary"], self._modules["continuous"]
        fuses = batch.raw or self.fuses(batch)  # the kernel checks raw values
        if isinstance(soft, TripletSoftLoss) and isinstance(ranked, KendallWindowLoss) and fuses:
            terms = matrix_loss(  # both terms in one call, up to B = 3,072 in one launch
                batch.similarity,
                batch.labels,
                image_ids=batch.image_ids,
                soft=soft.settings(batch.size),
                windows=ranked.settings(batch.size, self.weight),
            )
            return terms._asdict()
        return {
            "binary": total(terms_of(self.binary, batch, "binary")),
            "continuous": self.weight * total(terms_of(self.continuous, batch, "continuous")),
        }


bcls_loss = as_function(BCLSLoss, "bcls_loss")
