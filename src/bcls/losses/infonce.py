"""InfoNCE, the loss of CLIP, for comparison."""

import torch
from torch import Tensor, nn

from bcls.losses._base import Reduction, RetrievalLoss, number_or_parameter, reduce
from bcls.losses._batch import Batch


class InfoNCELoss(RetrievalLoss):
    r"""Symmetric cross entropy over the batch, as CLIP is trained.

    .. math::
        \mathcal{L} = -\frac{1}{2} \sum_i \log \frac{e^{s_{ii} / t}}{\sum_{j \in N_i \cup \{i\}} e^{s_{ij} / t}}
                      -\frac{1}{2} \sum_i \log \frac{e^{s_{ii} / t}}{\sum_{j \in N_i \cup \{i\}} e^{s_{ji} / t}}

    Pairs of one image and duplicate captions stay out of the denominators: they are no negatives.

    Args:
        temperature: :math:`t`; a number, or an ``nn.Parameter`` that is learned along.
        reduction: ``"mean"`` divides the sum by B, which is CLIP's loss.

    Inputs:
        As :class:`TripletLoss`; cosines for the usual temperatures.

    Relations: a softmax instead of the hinge of :class:`TripletSoftLoss`, which with gamma = 1 / temperature has the
    same log-sum-exp. Add :class:`KendallWindowLoss` with ``from_name("infonce+kendall-sw-hs")``.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> InfoNCELoss(temperature=0.05)(torch.eye(4)) < 1e-6
        tensor(True)

    Reference: CLIP (Radford et al., 2021).
    """

    def __init__(self, temperature: float | nn.Parameter = 0.05, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.temperature = number_or_parameter("temperature", temperature, "0.05 suits cosines", above=0)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        return {"infonce": reduce(_cross_entropies(batch, self.temperature), batch.size, self.reduction)}


def infonce_loss(
    similarity: Tensor,
    relevance: Tensor | None = None,
    *,
    image_ids: Tensor | None = None,
    temperature: float | nn.Parameter = 0.05,
    reduction: Reduction = "mean",
) -> Tensor:
    """:class:`InfoNCELoss` as a function."""
    return InfoNCELoss(temperature, reduction)(similarity, relevance, image_ids=image_ids)


def _cross_entropies(batch: Batch, temperature: float | nn.Parameter) -> Tensor:
    logits = batch.similarity / temperature
    own = logits.diagonal()
    counted = batch.negatives | torch.eye(batch.size, dtype=torch.bool, device=logits.device)
    # Finite for the reason in triplet_soft; the own pair is always there, so no row is empty.
    logits = logits.masked_fill(~counted, torch.finfo(logits.dtype).min)
    return (logits.logsumexp(1) - own).sum() / 2 + (logits.logsumexp(0) - own).sum() / 2
