"""The pairwise sigmoid loss of SigLIP, for comparison."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bcls.losses._base import Reduction, RetrievalLoss, number_or_parameter, reduce
from bcls.losses._batch import Batch


class SigmoidLoss(RetrievalLoss):
    r"""Each pair a yes-or-no question, as SigLIP is trained.

    .. math::
        \mathcal{L} = -\sum_i \log \sigma(a \, s_{ii} + b) - \sum_i \sum_{j \in N_i} \log \sigma(-a \, s_{ij} - b)

    Pairs of one image and duplicate captions are neither: they are left out.

    Args:
        scale: :math:`a`; a number, or an ``nn.Parameter`` that is learned along.
        bias: :math:`b`; the same. The defaults are SigLIP's starting values.
        reduction: ``"mean"`` divides the sum by B, which is SigLIP's loss.

    Inputs:
        As :class:`TripletLoss`; cosines for the usual scale and bias.

    Relations: no competition between the candidates of one anchor, unlike :class:`InfoNCELoss`.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> SigmoidLoss()(torch.zeros(1, 1))  # log(1 + e^10)
        tensor(10.0000)

    Reference: SigLIP (Zhai et al., 2023).
    """

    def __init__(
        self, scale: float | nn.Parameter = 10.0, bias: float | nn.Parameter = -10.0, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.scale = number_or_parameter("scale", scale, "SigLIP starts at 10", above=0)
        self.bias = number_or_parameter("bias", bias, "SigLIP starts at -10")

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        return {"sigmoid": reduce(_answers(batch, self.scale, self.bias), batch.size, self.reduction)}


def sigmoid_loss(
    similarity: Tensor,
    relevance: Tensor | None = None,
    *,
    image_ids: Tensor | None = None,
    scale: float | nn.Parameter = 10.0,
    bias: float | nn.Parameter = -10.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """:class:`SigmoidLoss` as a function."""
    return SigmoidLoss(scale, bias, reduction)(similarity, relevance, image_ids=image_ids)


def _answers(batch: Batch, scale: float | nn.Parameter, bias: float | nn.Parameter) -> Tensor:
    logits = scale * batch.similarity + bias
    # Not softplus: torch makes that linear above 20.
    wrong = torch.where(batch.negatives, functional.logsigmoid(-logits), 0.0).sum()
    return -wrong - functional.logsigmoid(logits.diagonal()).sum()
