"""Listwise losses: the order of all candidates of an anchor, or the ranks of its positives."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint

from bcls._core.errors import check_choice, check_number, check_numbers, fail
from bcls.losses.base import AnchorLoss, Reduction, Temperature, as_function
from bcls.losses.definitions import SAME

#: Elements of the (anchors, B, B) comparisons that are held at once, on a CPU (its cache) and on other devices.
BLOCK = (1 << 18, 1 << 24)
#: Largest difference of logits whose exponential is a normal float64.
MAX_EXPONENT = 700.0


def smooth_ranks(scores: Tensor, temperature: float | Tensor) -> Tensor:
    r"""Differentiable ranks of all candidates: :math:`1 + \sum_{k \neq j} \sigma((s_{ik} - s_{ij}) / t)`.

    O(B^3) comparisons; memory is bounded by blocks of anchors, which are computed again in the backward pass.

    Args:
        scores: ``(N, B)``.
        temperature: :math:`t`.

    Returns:
        ``(N, B)``, from 1 to B.
    """

    def ranks(rows: Tensor) -> Tensor:
        # The candidate's own term is sigmoid(0) = 1/2.
        return 0.5 + (rows[:, None, :] - rows[:, :, None]).sigmoid().sum(2)

    return _in_blocks(ranks, scores / temperature, elements=scores.shape[1] ** 2)


def _in_blocks(function: Callable[..., Tensor], *rows: Tensor, elements: int, dim: int = 0) -> Tensor:
    """Apply a function to blocks of rows, of BLOCK elements at most, and concatenate the results along ``dim``.

    Several blocks are computed again in the backward pass.
    """
    size = max(1, BLOCK[rows[0].device.type != "cpu"] // elements)
    if len(rows[0]) <= size:
        return function(*rows)
    blocks = zip(*(torch.split(row, size) for row in rows), strict=True)
    parts = [checkpoint(function, *block, use_reentrant=False, preserve_rng_state=False) for block in blocks]
    return torch.cat(parts, dim)


def _logcumsumexp(logits: Tensor) -> Tensor:
    """``logits.logcumsumexp(1)``; on a CPU by sums in float64, six times faster, if none of them can underflow."""
    low, high = logits.detach().amin(1, keepdim=True), logits.detach().amax(1, keepdim=True)
    if logits.device.type != "cpu" or torch.compiler.is_compiling() or bool((high - low).max() > MAX_EXPONENT):
        # Rounding of the backward pass grows with 1 / temperature.
        return (logits.double() if logits.is_cuda else logits).logcumsumexp(1).to(logits.dtype)
    return ((logits.double() - high).exp().cumsum(1).log() + high).to(logits.dtype)


class SmoothNDCGLoss(AnchorLoss):
    r"""One minus a differentiable nDCG: S-NDCG.

    .. math::
        \mathcal{L}_i = 1 - \frac{1}{\mathrm{IDCG}_i} \sum_j \frac{2^{r'_{ij}} - 1}{\log_2(1 + \mathrm{rank}_{ij})},
        \quad r' = \frac{1 + r}{2}, \quad
        \mathrm{rank}_{ij} = 1 + \sum_{k \neq j} \sigma\!\left(\frac{s_{ik} - s_{ij}}{t}\right)

    The own pair has :math:`r' = 1`. O(B^3) time, because every pair of candidates is compared; memory is bounded.

    Args:
        temperature: :math:`t`; a number or an ``nn.Parameter``.
        learn_temperature: Learn :math:`t`, starting from ``temperature`` and clamped to [0.001, 1].
        reduction: ``"mean"`` averages over anchors, ``"sum"`` adds them.

    Inputs:
        As :class:`BCLSLoss`; ``relevance`` is required.

    Relations: optimizes the metric :func:`bcls.evaluation.ndcg` with exponential gain.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> bool(SmoothNDCGLoss()(labels, labels) < 1e-5)
        True

    Reference: Listwise_ITR (Li et al., 2023). Its code reads the labels untransposed for text to image; this does not.
    """

    name = "sndcg"
    learnable: ClassVar[Mapping[str, tuple[float, float]]] = {"temperature": (0.001, 1.0)}

    def __init__(
        self, temperature: Temperature = 0.01, reduction: Reduction = "mean", *, learn_temperature: bool = False
    ) -> None:
        super().__init__(reduction)
        self.temperature = self.check_learnable("temperature", temperature, learn_temperature, "0.01 suits cosines")

    def anchors(self, scores: Tensor, labels: Tensor, same_image: Tensor) -> Tensor:
        """See :meth:`AnchorLoss.anchors`."""
        own = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        gains = _gains(labels.masked_fill(own, 1.0))
        discounts = (1 + smooth_ranks(scores, self.learned("temperature"))).log2()
        return 1 - (gains / discounts).sum(1) / _ideal_dcg(gains)


smooth_ndcg_loss = as_function(SmoothNDCGLoss, "smooth_ndcg_loss")


def _gains(labels: Tensor) -> Tensor:
    """:math:`2^{(1 + r) / 2} - 1`."""
    return torch.expm1((1 + labels) * (math.log(2) / 2))


def _ideal_dcg(gains: Tensor) -> Tensor:
    places = torch.arange(gains.shape[1], device=gains.device, dtype=gains.dtype)
    return (gains.sort(1, descending=True).values / (places + 2).log2()).sum(1)


class ListMLELoss(AnchorLoss):
    r"""Negative log-likelihood of the order of the labels under the Plackett-Luce model: ListMLE.

    .. math::
        \mathcal{L}_i = \sum_k \left[ \log \sum_{l \geq k} e^{s_{i \pi(l)} / t} - s_{i \pi(k)} / t \right],
        \quad \pi \text{ sorts } r_{i \cdot} \text{ in descending order}

    Ties in the labels are broken by the lower index. O(B^2 log B).

    Args:
        temperature: :math:`t`; a number or an ``nn.Parameter``.
        learn_temperature: Learn :math:`t`, starting from ``temperature`` and clamped to [0.01, 1].
        reduction: ``"mean"`` averages over anchors, ``"sum"`` adds them.

    Inputs:
        As :class:`BCLSLoss`; ``relevance`` is required.

    Relations: B times :class:`RankNContrastLoss` at equal temperature, without ties in the labels.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> ListMLELoss()(torch.zeros(2, 2), torch.eye(2))
        tensor(0.6931)

    Reference: ListMLE (Xia et al., 2008). RankCLIP (Zhang et al., ICCV 2025) sorts by the scores of the other direction
    in place of labels.
    """

    name = "listmle"
    learnable: ClassVar[Mapping[str, tuple[float, float]]] = {"temperature": (0.01, 1.0)}

    def __init__(
        self, temperature: Temperature = 1.0, reduction: Reduction = "mean", *, learn_temperature: bool = False
    ) -> None:
        super().__init__(reduction)
        self.temperature = self.check_learnable("temperature", temperature, learn_temperature, "RankCLIP uses 1")

    def anchors(self, scores: Tensor, labels: Tensor, same_image: Tensor) -> Tensor:
        """See :meth:`AnchorLoss.anchors`."""
        order = labels.argsort(dim=1, descending=True, stable=True)
        logits = (scores / self.learned("temperature")).gather(1, order)
        return (_logcumsumexp(logits.flip(1)).flip(1) - logits).sum(1)


listmle_loss = as_function(ListMLELoss, "listmle_loss")


class RankNContrastLoss(AnchorLoss):
    r"""Each candidate against those with at most its label: Rank-N-Contrast.

    .. math::
        \mathcal{L}_i = -\frac{1}{B} \sum_j \log \frac{e^{s_{ij} / t}}{\sum_{k: r_{ik} \leq r_{ij}} e^{s_{ik} / t}}

    O(B^2 log B): after sorting the labels, the denominators are cumulative sums.

    Args:
        temperature: :math:`t`; a number or an ``nn.Parameter``.
        learn_temperature: Learn :math:`t`, starting from ``temperature`` and clamped to [0.01, 1].
        reduction: ``"mean"`` averages over anchors, ``"sum"`` adds them.

    Inputs:
        As :class:`BCLSLoss`; ``relevance`` is required.

    Relations: :class:`ListMLELoss` divided by B at equal temperature, without ties in the labels.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> RankNContrastLoss(temperature=1.0)(torch.zeros(2, 2), torch.eye(2))
        tensor(0.3466)

    Reference: Rank-N-Contrast (Zha et al., NeurIPS 2023), there with negative distances and t = 2.
    """

    name = "rnc"
    learnable: ClassVar[Mapping[str, tuple[float, float]]] = {"temperature": (0.01, 1.0)}

    def __init__(
        self, temperature: Temperature = 0.1, reduction: Reduction = "mean", *, learn_temperature: bool = False
    ) -> None:
        super().__init__(reduction)
        self.temperature = self.check_learnable("temperature", temperature, learn_temperature, "0.1 suits cosines")

    def anchors(self, scores: Tensor, labels: Tensor, same_image: Tensor) -> Tensor:
        """See :meth:`AnchorLoss.anchors`."""
        ascending, order = labels.sort(1)
        logits = (scores / self.learned("temperature")).gather(1, order)
        # The denominator of a candidate reaches to the last candidate with the same label.
        last = torch.searchsorted(ascending, ascending, right=True) - 1
        return (_logcumsumexp(logits).gather(1, last) - logits).mean(1)


rank_n_contrast_loss = as_function(RankNContrastLoss, "rank_n_contrast_loss")


Weighting = Literal["lambdarank", "ndcg2++", "none"]


class LambdaLoss(AnchorLoss):
    r"""Logistic loss of all pairs in the wrong order, weighted by their effect on nDCG: LambdaRank and NDCGLoss2++.

    .. math::
        \mathcal{L}_i = -\sum_{j, k: y_j > y_k} w_{jk} \log_2 \sigma\left(a (s_{ij} - s_{ik})\right),
        \quad y = \frac{1 + r}{2}, \quad G = \frac{2^y - 1}{\mathrm{IDCG}}, \quad D(x) = \log_2(1 + x)

    With the ranks of the current scores, ``lambdarank`` has
    :math:`w_{jk} = |1 / D(\mathrm{rank}_j) - 1 / D(\mathrm{rank}_k)| \, |G_j - G_k|`; ``ndcg2++`` adds
    :math:`10 \, |1 / D(d) - 1 / D(d + 1)| \, |G_j - G_k|` with :math:`d = |\mathrm{rank}_j - \mathrm{rank}_k|`;
    ``none`` has :math:`w = 1` and the natural logarithm, which is RankNet. The weights have no gradient. Equal scores
    rank the lower index first. An anchor whose ideal DCG is 0 contributes 0. O(B^3) time, because every pair of
    candidates is compared; memory is bounded.

    Args:
        weighting: ``"lambdarank"``, ``"ndcg2++"`` or ``"none"``.
        sigma: :math:`a`.
        reduction: ``"mean"`` averages over anchors, ``"sum"`` adds them.

    Inputs:
        As :class:`BCLSLoss`; ``relevance`` is required.

    Relations: ``none`` is :class:`KendallLoss` with alpha 0 and a logistic in place of the hinge.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> LambdaLoss(weighting="none")(torch.zeros(2, 2), torch.eye(2))
        tensor(0.6931)

    Reference: LambdaRank (Burges et al., 2006); LambdaLoss (Wang et al., CIKM 2018).
    """

    name = "lambda"

    def __init__(self, weighting: Weighting = "lambdarank", sigma: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.weighting: Weighting = weighting
        check_choice("weighting", weighting, ("lambdarank", "ndcg2++", "none"))
        self.sigma = check_number("sigma", sigma, "1 is usual", above=0)

    def anchors(self, scores: Tensor, labels: Tensor, same_image: Tensor) -> Tensor:
        """See :meth:`AnchorLoss.anchors`."""
        return _in_blocks(self._pairs, scores, labels, elements=scores.shape[1] ** 2)

    def _pairs(self, scores: Tensor, labels: Tensor) -> Tensor:
        losses = -logsigmoid(self.sigma * (scores[:, :, None] - scores[:, None, :]))
        return (self._weights(scores.detach(), labels) * losses).sum((1, 2))

    def _weights(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Weights of all pairs of candidates, 0 for those that the labels do not order."""
        if self.weighting == "none":
            return (labels[:, :, None] > labels[:, None, :]).to(scores.dtype)
        gains = _gains(labels)
        # Where the ideal DCG is 0, so are all gains.
        gains = gains / _ideal_dcg(gains)[:, None].clamp(min=torch.finfo(gains.dtype).tiny) / math.log(2)
        places = scores.argsort(dim=1, descending=True, stable=True).argsort(1)
        rank = torch.arange(2, scores.shape[1] + 2, device=scores.device, dtype=scores.dtype)
        discounts = (1 / rank.log2())[places]
        weights = (discounts[:, :, None] - discounts[:, None, :]).abs()
        if self.weighting == "ndcg2++":
            # Of the distance of the two ranks; 0, a candidate with itself, is never ordered.
            step = 10 * (1 / rank.log2() - 1 / (rank + 1).log2())
            weights = weights + step[(places[:, :, None] - places[:, None, :]).abs() - 1]
        return weights * (gains[:, :, None] - gains[:, None, :]).relu()


lambda_loss = as_function(LambdaLoss, "lambda_loss")


class _PositiveRankLoss(AnchorLoss):
    """One minus a sum over the positives of an anchor, which are the same image and labels from a threshold on."""

    needs_labels = False
    learnable: ClassVar[Mapping[str, tuple[float, float]]] = {"temperature": (0.001, 1.0)}

    def __init__(
        self,
        temperature: Temperature = 0.01,
        threshold: float = 1.0,
        reduction: Reduction = "mean",
        *,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__(reduction)
        self.temperature = self.check_learnable("temperature", temperature, learn_temperature, "0.01 suits cosines")
        self.threshold = check_number("threshold", threshold, "1 means the match alone")

    def gain(self, rank: Tensor, rank_in_positives: Tensor, count: Tensor) -> Tensor:
        """Summand of each positive, from its smooth ranks and the number of positives of its anchor."""
        raise NotImplementedError

    def anchors(self, scores: Tensor, labels: Tensor, same_image: Tensor) -> Tensor:
        """See :meth:`AnchorLoss.anchors`."""
        positives = same_image | (labels >= self.threshold - SAME)
        logits = scores / self.learned("temperature")

        def ranks(anchor: Tensor, positive: Tensor) -> Tensor:
            rows = logits[anchor]
            above = (rows - rows.gather(1, positive[:, None])).sigmoid()
            # The positive's own term is sigmoid(0) = 1/2.
            return 0.5 + torch.stack((above.sum(1), (above * positives[anchor]).sum(1)))

        # Only positives are compared with all candidates: O(B^2) if each anchor has few.
        pairs = pairs_of(positives, static=scores.is_cuda and torch.cuda.is_current_stream_capturing())
        rank, rank_in_positives = _in_blocks(ranks, *pairs, elements=len(scores), dim=1)
        gains = self.gain(rank, rank_in_positives, positives.sum(1)[pairs[0]])
        return 1 - torch.where(positives, torch.zeros_like(scores).index_put(pairs, gains), 0.0).sum(1)


def pairs_of(mask: Tensor, *, static: bool = False) -> tuple[Tensor, ...]:
    """Rows and columns of the true elements; of all elements if ``static``, since a CUDA graph has fixed shapes."""
    if not static:
        return mask.nonzero(as_tuple=True)
    index = torch.arange(len(mask), device=mask.device)
    return index.repeat_interleave(len(mask)), index.repeat(len(mask))


class SmoothAPLoss(_PositiveRankLoss):
    r"""One minus a differentiable average precision: Smooth-AP.

    .. math::
        \mathcal{L}_i = 1 - \frac{1}{|P_i|} \sum_{p \in P_i}
            \frac{1 + \sum_{q \in P_i, q \neq p} \sigma((s_{iq} - s_{ip}) / t)}
                 {1 + \sum_{j \neq p} \sigma((s_{ij} - s_{ip}) / t)}

    Args:
        temperature: :math:`t`; a number or an ``nn.Parameter``.
        threshold: Candidates with :math:`r \geq` threshold are positives, beside those of the same image.
        learn_temperature: Learn :math:`t`, starting from ``temperature`` and clamped to [0.001, 1].
        reduction: ``"mean"`` averages over anchors, ``"sum"`` adds them.

    Inputs:
        As :class:`TripletLoss`; without ``relevance`` the positives are the pairs of the same image.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> bool(SmoothAPLoss()(torch.eye(3)) < 1e-6)
        True

    Reference: Smooth-AP (Brown et al., ECCV 2020).
    """

    name = "smooth-ap"

    def gain(self, rank: Tensor, rank_in_positives: Tensor, count: Tensor) -> Tensor:
        """See the formula."""
        return rank_in_positives / rank / count


smooth_ap_loss = as_function(SmoothAPLoss, "smooth_ap_loss")


class RecallSurrogateLoss(_PositiveRankLoss):
    r"""One minus a differentiable recall at k, averaged over several k.

    .. math::
        \mathcal{L}_i = 1 - \frac{1}{|K|} \sum_{k \in K} \frac{1}{\min(k, |P_i|)} \sum_{p \in P_i}
            \sigma\!\left(\frac{k - \mathrm{rank}_p}{t_k}\right), \quad
        \mathrm{rank}_p = 1 + \sum_{j \neq p} \sigma\!\left(\frac{s_{ij} - s_{ip}}{t}\right)

    Args:
        temperature: :math:`t`; a number or an ``nn.Parameter``.
        threshold: Candidates with :math:`r \geq` threshold are positives, beside those of the same image.
        ks: The values of k.
        k_temperature: :math:`t_k`.
        learn_temperature: Learn :math:`t`, starting from ``temperature`` and clamped to [0.001, 1].
        reduction: ``"mean"`` averages over anchors, ``"sum"`` adds them.

    Inputs:
        As :class:`TripletLoss`; without ``relevance`` the positives are the pairs of the same image.

    Raises:
        ValueError: If an argument or an input is wrong.

    Example:
        >>> import torch
        >>> RecallSurrogateLoss(ks=(1,))(torch.eye(2))  # rank 1 gives sigmoid(0)
        tensor(0.5000)

    Reference: Recall@k surrogate loss (Patel et al., CVPR 2022).
    """

    name = "recall"

    def __init__(
        self,
        temperature: Temperature = 0.01,
        threshold: float = 1.0,
        ks: Sequence[float] = (1, 5, 10),
        k_temperature: float = 1.0,
        reduction: Reduction = "mean",
        *,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__(temperature, threshold, reduction, learn_temperature=learn_temperature)
        hint = "the authors use 1, 2, 4, 8 and 16"
        self.ks = check_numbers("ks", ks, hint, low=1)
        if not self.ks:
            fail("ks", "at least one number", ks, hint)
        self.k_temperature = check_number("k_temperature", k_temperature, "the authors use 1", above=0)

    def gain(self, rank: Tensor, rank_in_positives: Tensor, count: Tensor) -> Tensor:
        """See the formula."""
        hits = [((k - rank) / self.k_temperature).sigmoid() / count.clamp(max=k) for k in self.ks]
        return torch.stack(hits).mean(0)


recall_surrogate_loss = as_function(RecallSurrogateLoss, "recall_surrogate_loss")
