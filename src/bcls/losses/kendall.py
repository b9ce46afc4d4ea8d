"""Kendall ranking loss over all pairs of candidates, the paper's L_K with relaxation."""

from typing import Literal

import torch
from torch import Tensor

from bcls._core.errors import check_choice, check_number
from bcls.kernels.settings import check_alpha
from bcls.losses._base import Reduction, RetrievalLoss, reduce
from bcls.losses._batch import Batch
from bcls.losses._pairs import Active, count_in_blocks, hinge_sum
from bcls.losses._prefix import count_by_prefix

Normalize = Literal["none", "active"]

#: Batch size from which the sub-cubic count is the faster one, as `make bench` shows.
PREFIX_FROM = {"cpu": 512, "cuda": 1024}


class KendallLoss(RetrievalLoss):
    r"""Kendall ranking loss: every pair of candidates whose labels differ by more than alpha (L_K).

    .. math::
        \mathcal{L}_K = \sum_i \sum_j \sum_k \mathbb{1}(r_{ij} > r_{ik} + \alpha) [s(V_i, T_k) - s(V_i, T_j) + m]_+
                      + \sum_i \sum_j \sum_k \mathbb{1}(r_{ji} > r_{ki} + \alpha) [s(V_k, T_i) - s(V_j, T_i) + m]_+

    Exact in O(B^2) memory: by blocks of anchors for small batches, and from some hundred on by a sort and a prefix
    structure in O(B^2 log B) time.

    Args:
        alpha: :math:`\alpha`, the relaxation; smaller differences between labels are taken for noise.
        margin: :math:`m`; the paper's definition has none.
        normalize: ``"none"`` as in the equation; ``"active"`` divides each direction by the number of its triples
            with :math:`r_{ij} > r_{ik} + \alpha` and multiplies by B, so that ``reduction="mean"`` gives their mean.
        reduction: ``"sum"`` as in the equation, ``"mean"`` divides it by B.

    Inputs:
        +----------------+------------+-----------------------------------------------------+
        | ``similarity`` | ``(B, B)`` | float, any scale; rows are images, columns captions |
        +----------------+------------+-----------------------------------------------------+
        | ``relevance``  | ``(B, B)`` | in [-1, 1], needed; need not be symmetric           |
        +----------------+------------+-----------------------------------------------------+
        | ``image_ids``  | ``(B,)``   | not used: the labels alone decide                   |
        +----------------+------------+-----------------------------------------------------+

    Relations: :class:`KendallWindowLoss` samples its pairs by windows. With alpha 0, its pairs with j = i are
    :class:`TripletLoss` of margin 0 (labels off the diagonal below 1).

    Raises:
        ValueError: If an argument or an input is wrong, or ``relevance`` is missing.

    Example:
        >>> import torch
        >>> similarity = torch.tensor([[0.9, 0.3], [0.6, 0.5]])
        >>> relevance = torch.tensor([[1.0, 0.2], [0.2, 1.0]])
        >>> KendallLoss(reduction="sum")(similarity, relevance)  # row 1 ranks 0.6 above 0.5
        tensor(0.1000)

    Reference: BCLS (Li et al., 2022), section III-B and III-D.
    """

    def __init__(
        self, alpha: float = 0.2, margin: float = 0.0, normalize: Normalize = "none", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.alpha = check_alpha(alpha)
        self.margin = check_number("margin", margin, "the paper's definition has none: 0", low=0)
        check_choice("normalize", normalize, ("none", "active"))
        self.normalize: Normalize = normalize

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        value = _dense(batch, self.alpha, self.margin, average=self.normalize == "active")
        return {"kendall": reduce(value, batch.size, self.reduction)}


def kendall_loss(
    similarity: Tensor,
    relevance: Tensor | None = None,
    *,
    image_ids: Tensor | None = None,
    alpha: float = 0.2,
    margin: float = 0.0,
    normalize: Normalize = "none",
    reduction: Reduction = "mean",
) -> Tensor:
    """:class:`KendallLoss` as a function."""
    return KendallLoss(alpha, margin, normalize, reduction)(similarity, relevance, image_ids=image_ids)


def count_active(scores: Tensor, reach: Tensor, floor: Tensor, margin: float = 0.0, *, graded: bool = False) -> Active:
    """Active pairs by the faster of the two algorithms for this batch size and device."""
    by_prefix = scores.shape[1] >= PREFIX_FROM.get(scores.device.type, PREFIX_FROM["cuda"])
    count = count_by_prefix if by_prefix else count_in_blocks
    return count(scores.detach(), reach, floor, margin, graded=graded)


def _dense(batch: Batch, alpha: float, margin: float, *, average: bool) -> Tensor:
    value = batch.similarity.new_zeros(())
    for scores, labels in batch.directions:
        direction = hinge_sum(scores, count_active(scores, labels, labels + alpha, margin), margin)
        if average:
            ascending = labels.sort(1).values
            above = torch.searchsorted(ascending, labels + alpha, right=True)
            triples = (batch.size - above).sum().clamp(min=1)
            direction = direction * batch.size / triples
        value = value + direction
    return value
