"""Soft-negative and window losses of a similarity matrix in few passes, with O(B W) memory besides the matrix.

The forward pass reads the two matrices once for both directions and keeps the hardest pair of each anchor and window
and one log-sum-exp per anchor. The backward pass writes the gradient once and adds the few cells of the hard pairs.
With Triton, batches up to 3,072 need one launch for both; larger ones need one more launch to check the values.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bcls.losses.backends import engine_for
from bcls.losses.definitions import LossSettings, SoftNegatives, Windows
from bcls.losses.passes import AnchorResults, Tile, forbid_double_backward, new_keys, on_other_gpu


class Terms(NamedTuple):
    """The terms of the loss, float32 scalars; 0 for a term that was not requested."""

    binary: Tensor
    continuous: Tensor


def matrix_loss(
    similarity: Tensor,
    relevance: Tensor | None = None,
    *,
    image_ids: Tensor | None = None,
    soft: SoftNegatives | None = None,
    windows: Windows | None = None,
) -> Terms:
    """Soft negatives and hard pairs of windows of a ``(B, B)`` matrix; rows are images.

    The losses of :mod:`bcls.losses` call this function on CUDA devices. It does not wait for the device: if kernels
    find NaN, infinity or labels out of range, the next call or :func:`bcls.losses.check_now` raises the error. Plain
    torch, used if Triton is not available, raises it immediately. There is no second derivative.

    Args:
        similarity: ``(B, B)`` float32, bfloat16 or float16, any strides.
        relevance: ``(B, B)`` labels in [-1, 1], float32 or float64; optional without ``windows``.
        image_ids: ``(B,)`` integers; pairs with equal ids are never negatives of the binary term.
        soft: Settings of the binary term, or None to omit it.
        windows: Settings of the continuous term, or None to omit it.

    Raises:
        ValueError: If values are not finite or labels out of range, here or in an earlier call.

    Example:
        >>> from bcls.losses.definitions import sliding_windows
        >>> scores = torch.tensor([[0.9, 0.3], [0.6, 0.5]])
        >>> labels = torch.tensor([[1.0, 0.25], [0.25, 1.0]])
        >>> matrix_loss(scores, labels, windows=sliding_windows()).continuous
        tensor(0.0333)
    """
    if on_other_gpu(similarity):
        with torch.cuda.device_of(similarity):  # type: ignore[no-untyped-call]
            return matrix_loss(similarity, relevance, image_ids=image_ids, soft=soft, windows=windows)
    inputs = similarity, relevance, image_ids, LossSettings(soft, windows)
    engine = engine_for(similarity.device)
    terms = engine.one_launch(*inputs)
    if terms is None:
        engine.check_values(similarity.detach(), relevance)
        terms = _MatrixLoss.apply(*inputs)  # type: ignore[no-untyped-call]
    return Terms(*terms)


class _MatrixLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, relevance: Tensor | None, image_ids: Tensor | None, settings: LossSettings
    ) -> tuple[Tensor, Tensor]:
        engine, size = engine_for(similarity.device), similarity.shape[0]
        soft, windows = settings
        tile, keys = Tile(similarity, relevance, image_ids, 0), None
        if windows is not None:
            keys = new_keys(size, size, windows, similarity.device)
            engine.mine(tile, keys, windows)
        own = similarity.diagonal()
        results = engine.finish(keys, None if soft is None else engine.sums(tile, soft), (own, own), settings)
        ctx.save_for_backward(similarity, relevance, image_ids, *results)
        ctx.settings = engine, settings
        ctx.set_materialize_grads(False)
        binary, continuous = results.values.sum(1).unbind()
        return binary, continuous

    @staticmethod
    def backward(ctx: Any, binary: Tensor | None, continuous: Tensor | None) -> tuple[Tensor, None, None, None]:
        similarity, relevance, image_ids, *saved = ctx.saved_tensors
        engine, (soft, windows) = ctx.settings
        results, size = AnchorResults(*saved), similarity.shape[0]
        with torch.no_grad():  # a term whose upstream gradient is None has no part in the gradient
            if soft is None or binary is None:
                gradient = torch.zeros(size, size, device=similarity.device)
            else:
                tile = Tile(similarity, relevance, image_ids, 0)
                gradient = engine.slope(tile, results.levels.chunk(2), binary, soft)
            if windows is not None and continuous is not None:
                engine.scatter(gradient, results, continuous, windows)
            gradient = gradient.to(similarity.dtype)
        return forbid_double_backward(gradient, similarity, binary, continuous), None, None, None
