"""Contrastive losses for comparison: InfoNCE (CLIP) and the pairwise sigmoid loss (SigLIP)."""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bcls.losses.base import Batch, Reduction, RetrievalLoss, Temperature, as_function, reduce


class InfoNCELoss(RetrievalLoss):
    r"""Symmetric cross entropy over the batch, the loss of CLIP.

    .. math::
        \mathcal{L} = -\frac{1}{2} \sum_i \log \frac{e^{s_{ii} / t}}{\sum_{j \in N_i \cup \{i\}} e^{s_{ij} / t}}
                      -\frac{1}{2} \sum_i \log \frac{e^{s_{ii} / t}}{\sum_{j \in N_i \cup \{i\}} e^{s_{ji} / t}}

    Pairs of the same image and duplicate captions are not negatives and are excluded from the denominators.

    Args:
        temperature: :math:`t`; a number, or an ``nn.Parameter`` to learn it.
        learn_temperature: Learn :math:`t`, starting from ``temperature``; at least 0.01, as in CLIP.
        reduction: ``"mean"`` divides the sum by B, which is CLIP's loss.

    Inputs:
        As :class:`TripletLoss`; cosines for the usual temperatures.

    Relations: a softmax instead of the hinge of :class:`TripletSoftLoss`, which has the same log-sum-exp with
    gamma = 1 / temperature. Add :class:`KendallWindowLoss` with ``from_name("infonce+kendall-sw-hs")``.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> InfoNCELoss(temperature=0.05)(torch.eye(4)) < 1e-6
        tensor(True)

    Reference: CLIP (Radford et al., 2021).
    """

    learnable: ClassVar[Mapping[str, tuple[float, float]]] = {"temperature": (0.01, math.inf)}

    def __init__(
        self, temperature: Temperature = 0.05, reduction: Reduction = "mean", *, learn_temperature: bool = False
    ) -> None:
        super().__init__(reduction)
        self.temperature = self.check_learnable("temperature", temperature, learn_temperature, "0.05 suits cosines")

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        logits = batch.similarity / self.learned("temperature")
        own = logits.diagonal()
        counted = batch.negatives | torch.eye(batch.size, dtype=torch.bool, device=logits.device)
        # Finite, since log-sum-exp over -inf has a NaN gradient; the matching pair always counts, so no row is empty.
        logits = logits.masked_fill(~counted, torch.finfo(logits.dtype).min)
        value = (logits.logsumexp(1) - own).sum() / 2 + (logits.logsumexp(0) - own).sum() / 2
        return {"infonce": reduce(value, batch.size, self.reduction)}


infonce_loss = as_function(InfoNCELoss, "infonce_loss")


class SigmoidLoss(RetrievalLoss):
    r"""Binary classification of each pair, the loss of SigLIP.

    .. math::
        \mathcal{L} = -\sum_i \log \sigma(a \, s_{ii} + b) - \sum_i \sum_{j \in N_i} \log \sigma(-a \, s_{ij} - b)

    Pairs of the same image and duplicate captions are neither positive nor negative and are left out.

    Args:
        scale: :math:`a`; a number, or an ``nn.Parameter`` to learn it.
        bias: :math:`b`; likewise. The defaults are the initial values of SigLIP.
        learn_temperature: Learn scale and bias, starting from their values; the scale is at least 0.01.
        reduction: ``"mean"`` divides the sum by B, which is SigLIP's loss.

    Inputs:
        As :class:`TripletLoss`; cosines for the usual scale and bias.

    Relations: unlike in :class:`InfoNCELoss`, the candidates of an anchor do not compete.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> SigmoidLoss()(torch.zeros(1, 1))  # log(1 + e^10)
        tensor(10.0000)

    Reference: SigLIP (Zhai et al., 2023).
    """

    learnable: ClassVar[Mapping[str, tuple[float, float]]] = {"scale": (0.01, math.inf), "bias": (-math.inf, math.inf)}

    def __init__(
        self,
        scale: Temperature = 10.0,
        bias: Temperature = -10.0,
        reduction: Reduction = "mean",
        *,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__(reduction)
        self.scale = self.check_learnable("scale", scale, learn_temperature, "SigLIP starts at 10")
        self.bias = self.check_learnable("bias", bias, learn_temperature, "SigLIP starts at -10", above=-math.inf)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        logits = self.learned("scale") * batch.similarity + self.learned("bias")
        # Not softplus, which torch replaces by a linear function above 20.
        wrong = torch.where(batch.negatives, functional.logsigmoid(-logits), 0.0).sum()
        value = -wrong - functional.logsigmoid(logits.diagonal()).sum()
        return {"sigmoid": reduce(value, batch.size, self.reduction)}


sigmoid_loss = as_function(SigmoidLoss, "sigmoid_loss")
