"""Semantic adaptive margin (SAM): a triplet loss whose margin depends on the labels."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bcls._core.errors import check_choice, check_number
from bcls.losses.base import Batch, Reduction, RetrievalLoss, as_function, check_part, reduce, terms_of, total
from bcls.losses.definitions import SAME
from bcls.losses.triplet import TripletHardLoss

Sampling = Literal["soft", "hard", "least-similar", "random"]


class SAMLoss(RetrievalLoss):
    r"""Semantic adaptive margin, added to a binary loss.

    .. math::
        \mathcal{L} = \mathcal{L}_{binary} + w \sum_i [s(V_i, T_n) - s(V_i, T_i) + a(\phi_{ii} - \phi_{in})]_+
            + w \sum_i [s(V_m, T_i) - s(V_i, T_i) + a(\phi_{ii} - \phi_{mi})]_+, \quad a(d) = \min(1, d / t)

    with one negative caption n for each image, one negative image m for each caption, and the relevance :math:`\phi` on
    its own scale. A negative that is more relevant than the matching caption gets a negative margin. An anchor without
    negatives contributes 0.

    Args:
        temperature: :math:`t`, divisor of differences in relevance. 10 suits CIDEr; for labels in [-1, 1] see
            ``configs/flickr30k/vsepp-sam.yaml``.
        sampling: Choice of the negative: ``"soft"`` the second most similar one (of a single negative, that one), the
            setting of the authors on Flickr30K; ``"hard"`` the most similar one; ``"least-similar"``; or ``"random"``,
            drawn from the generator of torch. Of equally similar ones the lower index comes first. In the published
            code the matching pair is a candidate as well: its ``soft`` is the second of the whole row, hence the most
            similar negative if the match ranks first, and its ``hard`` is the second *least* similar. Here only
            negatives are candidates.
        weight: :math:`w`.
        binary: The loss it is added to, which gets no degrees of relevance; :class:`TripletHardLoss` by default.
        reduction: ``"sum"`` as in the equation, ``"mean"`` divides it by B.

    Inputs:
        As :class:`KendallLoss`, but ``relevance`` may have any scale. Since 1 has no meaning on such a scale, two
        captions count as duplicates if they are equally relevant to both images.

    Relations: :class:`TripletHardLoss` is the same with a constant margin and the hardest negative.

    Raises:
        ValueError: If an argument or an input is wrong, or ``relevance`` is missing.

    Example:
        >>> import torch
        >>> similarity = torch.tensor([[0.9, 0.8], [0.6, 0.5]])
        >>> cider = torch.tensor([[8.0, 3.0], [2.0, 9.0]])
        >>> terms = SAMLoss(reduction="sum").terms(similarity, cider)  # a single negative for each anchor
        >>> round(float(terms["continuous"]), 4)  # 5 * (0.4 + 0.8 + 0.3 + 0.9)
        12.0

    Reference: Is an image worth five sentences? (Biten et al., 2022).
    """

    bounded = False

    def __init__(
        self,
        temperature: float = 10.0,
        sampling: Sampling = "soft",
        weight: float = 5.0,
        binary: nn.Module | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.temperature = check_number("temperature", temperature, "10 suits CIDEr", above=0)
        check_choice("sampling", sampling, get_args(Sampling))
        self.sampling: Sampling = sampling
        self.weight = check_number("weight", weight, "the authors use 5 or 10", low=0)
        binary = TripletHardLoss(reduction=reduction) if binary is None else binary
        self.binary = check_part("binary", binary, reduction)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        labels = batch.labels
        duplicates = _equal(labels, labels.diagonal()[:, None]) & _equal(labels.T, labels.diagonal()[None, :])
        # On the scale of the binary losses: 1 for the same caption, 0 otherwise.
        binary = batch._replace(relevance=duplicates.to(labels.dtype), lowest=0.0)
        value = _margins(batch.similarity, labels, binary.negatives, self.temperature, self.sampling)
        return {
            "binary": total(terms_of(self.binary, binary, "binary")),
            "continuous": self.weight * reduce(value, batch.size, self.reduction),
        }


sam_loss = as_function(SAMLoss, "sam_loss")


def _equal(left: Tensor, right: Tensor) -> Tensor:
    """Equal up to rounding, on any scale; two zeros do not count as equal."""
    return (left - right).abs() < SAME * torch.maximum(left.abs(), right.abs())


def _margins(similarity: Tensor, labels: Tensor, allowed: Tensor, temperature: float, sampling: Sampling) -> Tensor:
    value = similarity.new_zeros(())
    for scores, phi, negatives in ((similarity, labels, allowed), (similarity.T, labels.T, allowed.T)):
        chosen = _choose(scores.detach(), negatives, sampling)
        adaptive = ((phi.diagonal() - phi.gather(1, chosen)[:, 0]) / temperature).clamp(max=1).to(scores.dtype)
        hinge = (scores.gather(1, chosen)[:, 0] - scores.diagonal() + adaptive).relu()
        value = value + hinge.masked_fill(~negatives.any(1), 0.0).sum()
    return value


def _choose(scores: Tensor, negatives: Tensor, sampling: Sampling) -> Tensor:
    """Column of one negative for each row, ``(B, 1)``; any column for a row without negatives."""
    if sampling == "least-similar":
        scores = -scores
    preference = torch.rand_like(scores) if sampling == "random" else scores
    preference = preference.masked_fill(~negatives, -torch.inf)
    first = preference.argmax(1, keepdim=True)  # of equal ones the lowest index
    if sampling != "soft":
        return first
    second = preference.scatter(1, first, -torch.inf).argmax(1, keepdim=True)
    return torch.where(negatives.sum(1, keepdim=True) > 1, second, first)
