"""Kendall ranking losses: over all pairs of candidates (L_K) and over sliding windows (L_K-SW, L_K-SW-HS)."""

from typing import Literal

import torch
from torch import Tensor

from bcls._core.errors import check_choice, check_number, fail
from bcls.losses._torch import mining
from bcls.losses._torch.engine import TorchEngine
from bcls.losses._torch.pairs import count_weighted, hinge_sum
from bcls.losses.backends import can_fuse, engine_for
from bcls.losses.base import Batch, Reduction, RetrievalLoss, as_function, reduce
from bcls.losses.definitions import Windows, check_alpha, check_stride, window_count
from bcls.losses.fused import matrix_loss

Normalize = Literal["none", "active"]
Mining = Literal["hard", "none"]
WindowNorm = Literal["all", "valid"]


class KendallLoss(RetrievalLoss):
    r"""Kendall ranking loss: every pair of candidates whose labels differ by more than alpha (L_K).

    .. math::
        \mathcal{L}_K = \sum_i \sum_j \sum_k \mathbb{1}(r_{ij} > r_{ik} + \alpha) [s(V_i, T_k) - s(V_i, T_j) + m]_+
                      + \sum_i \sum_j \sum_k \mathbb{1}(r_{ji} > r_{ki} + \alpha) [s(V_k, T_i) - s(V_j, T_i) + m]_+

    Exact, in O(B^2) memory: small batches compare all pairs, larger ones (from 64 on a CPU) count them from the ranks
    of labels and scores in O(B^2 log B) time. CUDA devices use fused kernels, which have no second derivative; see
    :func:`bcls.losses.without_kernels`.

    Args:
        alpha: :math:`\alpha`, the relaxation; smaller differences between labels are ignored as noise. For labels on a
            grid use a value between two differences: of those equal to it, rounding decides which are ignored.
        margin: :math:`m`; the paper's definition has none.
        normalize: ``"none"`` as in the equation; ``"active"`` divides each direction by the number of its triples
            with :math:`r_{ij} > r_{ik} + \alpha` and multiplies by B, so that ``reduction="mean"`` gives their mean.
        reduction: ``"sum"`` as in the equation, ``"mean"`` divides it by B.

    Inputs:
        +----------------+------------+-----------------------------------------------------+
        | ``similarity`` | ``(B, B)`` | float, any scale; rows are images, columns captions |
        +----------------+------------+-----------------------------------------------------+
        | ``relevance``  | ``(B, B)`` | in [-1, 1], required; need not be symmetric         |
        +----------------+------------+-----------------------------------------------------+
        | ``image_ids``  | ``(B,)``   | not used: only the labels matter                    |
        +----------------+------------+-----------------------------------------------------+

    Relations: :class:`KendallWindowLoss` samples pairs by windows. With alpha 0, the pairs with j = i are
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
        scores, labels = batch.similarity, batch.labels
        fused = can_fuse(scores) and labels.dtype != torch.float64
        engine = engine_for(scores.device) if fused else TorchEngine(scores.device)
        value = engine.dense_kendall(scores, labels, self.alpha, self.margin, per_triple=self.normalize == "active")
        return {"kendall": reduce(value, batch.size, self.reduction)}


kendall_loss = as_function(KendallLoss, "kendall_loss")


class KendallWindowLoss(RetrievalLoss):
    r"""Kendall ranking loss on pairs sampled by sliding windows over the labels (L_K-SW-HS, L_K-SW).

    Window m spans ``[l_m, l_m + alpha]`` with ``l_m = -1 + m * beta``, m = 1 .. M, M = floor((2 - alpha) / beta);
    candidates with a label at or above it are its positives, those with a label below it its negatives.

    .. math::
        \mathcal{L}_{K\text{-}SW\text{-}HS} = \frac{1}{M} \sum_m \sum_i
            [\max_{T_k \in Neg_m} s(V_i, T_k) - \min_{T_j \in Pos_m} s(V_i, T_j)]_+
          + \frac{1}{M} \sum_m \sum_i [\max_{V_k \in Neg_m} s(V_k, T_i) - \min_{V_j \in Pos_m} s(V_j, T_i)]_+

    and without mining (L_K-SW) the sum over all pairs of the two sets, not divided by M. A window without positives or
    without negatives contributes 0. With mining there is no loop over windows: the time is O(B^2 + B M) for every
    stride. Without mining it is O(B^2 (log B + min(M, B))).

    Args:
        alpha: :math:`\alpha`, the width of a window.
        beta: :math:`\beta`, the stride. 0 is the exact limit, the mean over all window positions in [-1, 1 - alpha],
            in O(B log B) per anchor; only with ``mining="hard"``.
        mining: ``"hard"`` for L_K-SW-HS, ``"none"`` for L_K-SW.
        window_norm: ``"all"`` divides by M as in the paper; ``"valid"`` divides, for each anchor and direction, by
            the number of windows that have both positives and negatives. Without mining nothing is divided.
        reduction: ``"sum"`` as in the equation, ``"mean"`` divides it by B.

    Inputs:
        As :class:`KendallLoss`.

    Relations: covers every pair of candidates whose labels differ by at least alpha + beta, and none that differ by
    less than alpha, see :class:`KendallLoss`. The continuous term of :class:`BCLSLoss`. A threshold of
    :class:`LadderLoss` is a window of width 0.

    Raises:
        ValueError: If an argument or an input is wrong, or ``relevance`` is missing.

    Example:
        >>> import torch
        >>> similarity = torch.tensor([[0.9, 0.3], [0.6, 0.5]])
        >>> relevance = torch.tensor([[1.0, 0.25], [0.25, 1.0]])
        >>> loss = KendallWindowLoss(reduction="sum")  # 0.1 in 6 of 18 windows, those from [0.3, 0.5] to [0.8, 1.0]
        >>> loss(similarity, relevance)
        tensor(0.0333)

    Reference: BCLS (Li et al., 2022), section III-D.
    """

    def __init__(
        self,
        alpha: float = 0.2,
        beta: float = 0.1,
        mining: Mining = "hard",
        window_norm: WindowNorm = "all",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.alpha = check_alpha(alpha)
        self.beta = check_number("beta", beta, "the paper uses 0.1; 0 gives the exact limit", low=0)
        check_choice("mining", mining, ("hard", "none"))
        check_choice("window_norm", window_norm, ("all", "valid"))
        self.mining: Mining = mining
        self.window_norm: WindowNorm = window_norm
        if self.beta > 0:
            check_stride(self.alpha, self.beta)
        if mining == "none" and self.beta == 0:
            fail("beta", 'a stride above 0 with mining="none"', 0, "without mining the sum over windows has no limit")
        if mining == "none" and window_norm == "valid":
            fail("window_norm", '"all" with mining="none"', "'valid'", "without mining nothing is divided")

    def fuses(self, batch: Batch) -> bool:
        """See :meth:`RetrievalLoss.fuses`."""
        return self.mining == "hard" and self.beta > 0 and can_fuse(batch.similarity)

    def settings(self, size: int, weight: float = 1.0) -> Windows:
        """The settings of the fused kernels for a batch of ``size``, as a term with a ``weight``."""
        scale = weight if self.reduction == "sum" else weight / size
        return Windows(self.alpha, self.beta, self.window_norm == "valid", scale)  # checked by the constructor

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        if batch.raw or self.fuses(batch):  # the kernel checks raw values
            terms = matrix_loss(batch.similarity, batch.labels, windows=self.settings(batch.size))
            return {"kendall": terms.continuous}
        if self.mining == "none":
            value = _all_pairs(batch, self.alpha, self.beta)
        elif self.beta == 0:
            value = _every_position(batch, self.alpha, self.window_norm)
        else:
            value = _hard_pairs(batch, self.alpha, self.beta, self.window_norm)
        return {"kendall": reduce(value, batch.size, self.reduction)}


kendall_window_loss = as_function(KendallWindowLoss, "kendall_window_loss")


def _hard_pairs(batch: Batch, alpha: float, beta: float, norm: WindowNorm) -> Tensor:
    labels, windows = batch.labels, window_count(alpha, beta)
    skipped = min(mining.empty_windows(batch.lowest, beta), windows - 1)

    def bins_of(rows: slice, columns: slice) -> tuple[mining.WindowBins, mining.WindowBins]:
        bins = mining.sliding_bins(labels[rows, columns], alpha, beta, skipped)
        return bins, bins

    def weight_of(pairs: mining.HardPairs) -> Tensor:
        count = pairs.valid.sum(1, keepdim=True).clamp(min=1) if norm == "valid" else windows
        return torch.ones_like(batch.similarity[:1, :1]) / count

    with torch.no_grad():
        mined = mining.mine(batch.similarity.detach(), bins_of, windows - skipped)
        terms = [mining.hinge_terms(pairs, weight_of(pairs)) for pairs in mined]
    return mining.add_up(batch.similarity, terms)


def _every_position(batch: Batch, alpha: float, norm: WindowNorm) -> Tensor:
    terms = []
    with torch.no_grad():
        keys = mining.cell_keys(batch.similarity.detach(), mining.cell_ranks(batch.similarity.detach()))
        for anchors, labels in ((keys, batch.labels), (keys.T, batch.labels.T)):
            pairs, lengths = mining.limit_pairs(anchors, labels.contiguous(), alpha)
            whole = lengths.sum(1, keepdim=True) if norm == "valid" else lengths.new_full((), 2 - alpha)
            terms.append(mining.hinge_terms(pairs, lengths / torch.where(whole > 0, whole, 1.0)))
    return mining.add_up(batch.similarity, terms)


def _all_pairs(batch: Batch, alpha: float, beta: float) -> Tensor:
    bins = mining.sliding_bins(batch.labels, alpha, beta)
    windows = window_count(alpha, beta)
    positive = windows - bins.beyond
    scores = batch.similarity.detach().contiguous()
    # j is positive and k is negative in `positive_j - negative_k` windows.
    rows = count_weighted(scores, positive, bins.negative, windows)
    columns = count_weighted(scores.T.contiguous(), positive.T.contiguous(), bins.negative.T.contiguous(), windows)
    return hinge_sum(batch.similarity, rows, columns)
