"""Contrastive losses with soft labels: the softmax of the scores is trained towards the labels of all candidates."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from bcls._core.errors import check_number
from bcls.losses.base import AnchorLoss, Reduction, Temperature, as_function


def soft_label_kl(
    scores: Tensor, labels: Tensor, temperature: float | Tensor, label_temperature: float = 1.0
) -> Tensor:
    r"""Kullback-Leibler divergence from the softmax of the labels to the softmax of the scores, for each row.

    .. math:: \mathrm{KL}\!\left(\mathrm{softmax}(r_{i \cdot} / t_l) \,\|\, \mathrm{softmax}(s_{i \cdot} / t)\right)

    Args:
        scores: ``(B, C)``, :math:`s`.
        labels: ``(B, C)``, :math:`r`.
        temperature: :math:`t`.
        label_temperature: :math:`t_l`.

    Returns:
        ``(B,)``.

    Example:
        >>> soft_label_kl(torch.eye(2), torch.eye(2), temperature=1.0)
        tensor([0., 0.])
    """
    target = (labels / label_temperature).log_softmax(1)
    return (target.exp() * (target - (scores / temperature).log_softmax(1))).sum(1)


class SoftLabelKLLoss(AnchorLoss):
    r"""Kullback-Leibler divergence from the softmax of the labels to the softmax of the scores: CSA of CUSA.

    .. math::
        \mathcal{L} = \frac{1}{2} \sum_i \left[
            \mathrm{KL}\!\left(\mathrm{softmax}(r_{i \cdot} / t_l) \,\|\, \mathrm{softmax}(s_{i \cdot} / t)\right) +
            \mathrm{KL}\!\left(\mathrm{softmax}(r_{\cdot i} / t_l) \,\|\, \mathrm{softmax}(s_{\cdot i} / t)\right)
        \right]

    It is added to a binary loss: ``from_name("infonce+csa")``.

    Args:
        temperature: :math:`t`; a number or an ``nn.Parameter``.
        label_temperature: :math:`t_l`.
        learn_temperature: Learn :math:`t`, starting from ``temperature`` and clamped to [0.1, 0.99], as the authors do.
        reduction: ``"mean"`` averages over anchors, ``"sum"`` adds them.

    Inputs:
        As :class:`BCLSLoss`; ``relevance`` is required.

    Relations: :class:`XCLRLoss` minus the entropy of the softmax of the labels, which has no gradient: at equal
    temperatures both have the same gradient.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> labels = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
        >>> bool(SoftLabelKLLoss(temperature=1.0)(labels, labels).abs() < 1e-6)
        True

    Reference: CUSA (Huang et al., AAAI 2024). The authors use one teacher for each modality; here the labels take the
    place of both.
    """

    name = "csa"
    learnable: ClassVar[Mapping[str, tuple[float, float]]] = {"temperature": (0.1, 0.99)}

    def __init__(
        self,
        temperature: Temperature = 0.45,
        label_temperature: float = 1.0,
        reduction: Reduction = "mean",
        *,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__(reduction)
        self.temperature = self.check_learnable("temperature", temperature, learn_temperature, "CUSA starts at 0.45")
        self.label_temperature = check_number("label_temperature", label_temperature, "CUSA uses 1", above=0)

    def anchors(self, scores: Tensor, labels: Tensor, same_image: Tensor) -> Tensor:
        """See :meth:`AnchorLoss.anchors`."""
        return soft_label_kl(scores, labels, self.learned("temperature"), self.label_temperature)


soft_label_kl_loss = as_function(SoftLabelKLLoss, "soft_label_kl_loss")


class XCLRLoss(AnchorLoss):
    r"""Cross entropy between the softmax of the labels and the softmax of the scores: X-CLR.

    .. math::
        \mathcal{L} = -\frac{1}{2} \sum_i \sum_j \left[
            \mathrm{softmax}_j(r_{i \cdot} / t_l) \log \mathrm{softmax}_j(s_{i \cdot} / t) +
            \mathrm{softmax}_j(r_{\cdot i} / t_l) \log \mathrm{softmax}_j(s_{\cdot i} / t)
        \right]

    Args:
        temperature: :math:`t`; a number or an ``nn.Parameter``.
        label_temperature: :math:`t_l`. Towards 0 the target is the most relevant candidate alone.
        learn_temperature: Learn :math:`t`, starting from ``temperature`` and clamped to [0.01, 1].
        reduction: ``"mean"`` averages over anchors, ``"sum"`` adds them.

    Inputs:
        As :class:`BCLSLoss`; ``relevance`` is required.

    Relations: :class:`InfoNCELoss` as ``label_temperature`` goes to 0, if the own pair alone has the label 1.
    :class:`SoftLabelKLLoss` plus the entropy of the labels.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> XCLRLoss()(torch.zeros(2, 2), torch.eye(2))  # log 2: the scores say nothing
        tensor(0.6931)

    Reference: X-CLR (Sobal et al., ICLR 2025), there between images. Not verified against the paper.
    """

    name = "xclr"
    learnable: ClassVar[Mapping[str, tuple[float, float]]] = {"temperature": (0.01, 1.0)}

    def __init__(
        self,
        temperature: Temperature = 0.1,
        label_temperature: float = 0.1,
        reduction: Reduction = "mean",
        *,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__(reduction)
        self.temperature = self.check_learnable("temperature", temperature, learn_temperature, "X-CLR uses 0.1")
        self.label_temperature = check_number("label_temperature", label_temperature, "X-CLR uses 0.1", above=0)

    def anchors(self, scores: Tensor, labels: Tensor, same_image: Tensor) -> Tensor:
        """See :meth:`AnchorLoss.anchors`."""
        target = (labels / self.label_temperature).softmax(1)
        return -(target * (scores / self.learned("temperature")).log_softmax(1)).sum(1)


xclr_loss = as_function(XCLRLoss, "xclr_loss")


class CWCLLoss(AnchorLoss):
    r"""Continuously weighted contrastive loss: the log-softmax of every candidate, weighted by its label.

    .. math::
        \mathcal{L} = -\frac{1}{2} \sum_i \left[
            \frac{\sum_j w_{ij} \log \mathrm{softmax}_j(s_{i \cdot} / t)}{\sum_j w_{ij}} +
            \frac{\sum_j w_{ji} \log \mathrm{softmax}_j(s_{\cdot i} / t)}{\sum_j w_{ji}}
        \right], \quad w = (r + 1) / 2

    An anchor whose labels are all -1 contributes 0.

    Args:
        temperature: :math:`t`; a number or an ``nn.Parameter``.
        learn_temperature: Learn :math:`t`, starting from ``temperature`` and clamped to [0.01, 1].
        reduction: ``"mean"`` averages over anchors, ``"sum"`` adds them.

    Inputs:
        As :class:`BCLSLoss`; ``relevance`` is required.

    Relations: :class:`XCLRLoss` with linear in place of softmax weights. With labels 1 on the diagonal and -1 elsewhere
    it is :class:`InfoNCELoss`.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> CWCLLoss()(torch.zeros(2, 2), torch.eye(2))
        tensor(0.6931)

    Reference: CWCL (Srinivasa et al., NeurIPS 2023). Not verified against the paper.
    """

    name = "cwcl"
    learnable: ClassVar[Mapping[str, tuple[float, float]]] = {"temperature": (0.01, 1.0)}

    def __init__(
        self, temperature: Temperature = 0.05, reduction: Reduction = "mean", *, learn_temperature: bool = False
    ) -> None:
        super().__init__(reduction)
        self.temperature = self.check_learnable("temperature", temperature, learn_temperature, "0.05 suits cosines")

    def anchors(self, scores: Tensor, labels: Tensor, same_image: Tensor) -> Tensor:
        """See :meth:`AnchorLoss.anchors`."""
        weights = (labels + 1) / 2
        weighted = -(weights * (scores / self.learned("temperature")).log_softmax(1)).sum(1)
        return weighted / weights.sum(1).clamp(min=torch.finfo(weights.dtype).tiny)


cwcl_loss = as_function(CWCLLoss, "cwcl_loss")
