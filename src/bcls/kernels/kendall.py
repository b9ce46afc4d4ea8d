"""The dense Kendall loss fused: O(B^3) comparisons, O(B^2) memory, one launch for each direction."""

from typing import Any

import torch
from torch import Tensor

from bcls._core.errors import check_number, fail
from bcls._core.extras import require
from bcls.kernels._once import only_once
from bcls.kernels.engines import PRECISIONS, runs_triton

#: Candidates of a block, and those they are compared with at once.
_OURS, _OTHERS = 64, 64


def kendall_matrix(
    similarity: Tensor,
    relevance: Tensor,
    *,
    alpha: float = 0.2,
    margin: float = 0.0,
    per_triple: bool = False,
    scale: float = 1.0,
) -> Tensor:
    """Every pair of candidates whose labels differ by more than alpha, both directions (L_K), on a Triton device.

    ``scale * sum of [s_ik - s_ij + margin]_+ over r_ij > r_ik + alpha``; see :class:`bcls.losses.KendallLoss`. A second
    derivative is refused.

    Args:
        similarity: ``(B, B)`` float32, bfloat16 or float16, any strides.
        relevance: ``(B, B)`` labels, taken as float32.
        alpha: The relaxation.
        margin: How far above.
        per_triple: Divide each direction by the number of its triples with ``r_ij > r_ik + alpha``, multiply by B.
        scale: Factor of the sum: 1 for the paper's equation, 1 / B for the mean.

    Returns:
        A float32 scalar.

    Raises:
        ValueError: If a shape or type does not fit, or Triton does not run on the device.
    """
    if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1] or similarity.dtype not in PRECISIONS:
        got = f"shape {tuple(similarity.shape)} of {similarity.dtype}"
        fail("similarity", "a (B, B) matrix of float32, bfloat16 or float16", got, "use bcls.losses.KendallLoss")
    if relevance.shape != similarity.shape or relevance.device != similarity.device:
        got = f"shape {tuple(relevance.shape)} on {relevance.device}"
        expected = f"shape {tuple(similarity.shape)} on {similarity.device}"
        fail("relevance", expected, got, "pass the labels of this very batch")
    if similarity.device.type == "cuda":
        require("triton", "kernels", "the fused Kendall loss")
    if not runs_triton(similarity.device):
        fail("similarity", "a matrix on a device of Triton's", similarity.device, "use bcls.losses.KendallLoss")
    check_number("alpha", alpha, "the paper uses 0.2", low=0)
    check_number("margin", margin, "the paper's definition has none: 0", low=0)
    settings = (alpha, margin, per_triple, scale)
    value: Tensor = _KendallMatrix.apply(similarity, relevance, *settings)  # type: ignore[no-untyped-call]
    return value


class _KendallMatrix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, relevance: Tensor, alpha: float, margin: float, per_triple: bool, scale: float
    ) -> Tensor:
        from bcls.kernels._triton_kendall import compare_pairs

        size, device = similarity.shape[0], similarity.device
        blocks = -(-size // _OURS)
        slopes = torch.empty((size, size), device=device)
        sums = torch.empty((2, size, blocks), device=device)
        labels = relevance.float()
        factors = torch.full((2,), scale, device=device)
        if per_triple:
            factors *= size / torch.stack([_triples(side, alpha) for side in (labels, labels.T)])
        for side in (0, 1):
            # Columns as contiguous rows: an anchor's candidates are read many times.
            scores, grades = (matrix.T.contiguous() if side else matrix for matrix in (similarity, labels))
            strides = slopes.stride()[::-1] if side else slopes.stride()
            compare_pairs[size, blocks](
                scores, grades, factors[side], slopes, sums[side], size, *scores.stride(), *grades.stride(), *strides,
                alpha, margin, bool(side), _OURS, _OTHERS, num_warps=8,
            )  # fmt: skip
        ctx.save_for_backward(similarity, slopes)
        return sums.sum(dtype=torch.float64).float()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        similarity, slopes = ctx.saved_tensors
        with torch.no_grad():
            gradient = (slopes * upstream.float()).to(similarity.dtype)
        return only_once(gradient, similarity, upstream), None, None, None, None, None


def _triples(labels: Tensor, alpha: float) -> Tensor:
    """Number of triples that count, at least 1; rows are anchors."""
    labels = labels.contiguous()
    ascending = labels.sort(1).values
    above = torch.searchsorted(ascending, labels + alpha, right=True)
    return (labels.shape[1] - above).sum().clamp(min=1)
