"""The losses of a small matrix: one launch for values and gradient, since a launch costs more than its computation.

Memory shared by the programs: in float32 the values of the anchors ``(2, 2 B)``, binary and continuous, row anchors
before column anchors, and the bounds of the labels ``(2, B)``; then in int64 the first bad cells ``(2, B)`` and the
keys ``(2 B, 2, W)``.
"""

from typing import Any

import torch
from torch import Tensor

from bcls.losses._triton.anchors import anchor_hinges
from bcls.losses._triton.launch import arrivals, launch
from bcls.losses.definitions import LossSettings, Windows, report_on, window_tensors
from bcls.losses.passes import forbid_double_backward

#: Largest batch, from which on tiles are faster (0.69 against 0.78 ms at 4,096 on an H200), and most windows.
LARGEST, MOST_WINDOWS = 3072, 256
#: Candidates whose keys are raised without comparing them with the current keys first.
_AT_ONCE = 256


def is_small(size: int, windows: Windows | None) -> bool:
    """Whether this kernel can process a matrix of this size."""
    return 0 < size <= LARGEST and (windows is None or windows.count <= MOST_WINDOWS)


def small_loss(
    similarity: Tensor, relevance: Tensor | None, image_ids: Tensor | None, settings: LossSettings
) -> tuple[Tensor, Tensor]:
    """Binary and continuous term of a small ``(B, B)`` matrix."""
    if similarity.requires_grad and torch.is_grad_enabled():
        halves: tuple[Tensor, Tensor] = _SmallLoss.apply(similarity, relevance, image_ids, settings)  # type: ignore[no-untyped-call]
        return halves
    return _launch(similarity, relevance, image_ids, settings)


class _SmallLoss(torch.autograd.Function):
    """The gradient is computed together with the values, for an upstream gradient of 1; backward is one product."""

    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, relevance: Tensor | None, image_ids: Tensor | None, settings: LossSettings
    ) -> tuple[Tensor, Tensor]:
        slopes = torch.zeros(*similarity.shape, device=similarity.device)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(similarity, relevance, image_ids, slopes)
        ctx.settings = settings
        return _launch(similarity, relevance, image_ids, settings, slopes)

    @staticmethod
    def backward(ctx: Any, binary: Tensor | None, continuous: Tensor | None) -> tuple[Tensor | None, ...]:
        similarity, relevance, image_ids, slopes = ctx.saved_tensors
        soft, windows = ctx.settings
        upstream = continuous if soft is None else binary
        if soft is None or windows is None or binary is continuous:  # the sum of both terms passes on the same tensor
            gradient = torch.zeros_like(slopes) if upstream is None else slopes * upstream
        else:
            gradient = torch.zeros_like(slopes)
            settings = LossSettings(None if binary is None else soft, None if continuous is None else windows)
            _launch(similarity.detach(), relevance, image_ids, settings, gradient, (binary, continuous))
        if similarity.dtype != torch.float32:
            gradient = gradient.to(similarity.dtype)
        return forbid_double_backward(gradient, similarity, binary, continuous), None, None, None


def _launch(
    similarity: Tensor,
    relevance: Tensor | None,
    image_ids: Tensor | None,
    settings: LossSettings,
    slopes: Tensor | None = None,
    upstream: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor]:
    """Values of the terms; their gradient is added to ``slopes``, times the upstream gradients if they are given."""
    (soft, windows), size, device = settings, similarity.shape[0], similarity.device
    count = 0 if windows is None else windows.count
    work = torch.empty((10 + 8 * count) * size, dtype=torch.float32, device=device)  # numbers of 64 bits, too
    # Two tensors instead of two views of one, so that a caller may change them in place.
    binary, continuous = torch.empty((), device=device), torch.empty((), device=device)
    edges = None if windows is None else window_tensors(windows, device)[0]
    divided = windows is not None and not windows.valid_only
    block = max(16, 1 << (size - 1).bit_length())
    tensors = (
        similarity, relevance, image_ids, edges, work, binary, continuous, arrivals(device), report_on(device),
        slopes, *upstream,
    )  # fmt: skip
    # Floats even for integers: Triton compiles other code for integers, to which equal floats cannot be passed.
    scales = (1.0, 0.0, 1.0) if soft is None else (soft.sharpness, float(soft.margin), float(soft.scale))
    numbers = (
        size, *similarity.stride(), *((0, 0) if relevance is None else relevance.stride()), count,
        *scales, 1.0 if windows is None else float(windows.scale), 1 / count if divided else 1.0,
        relevance is not None, image_ids is not None, soft is not None, soft is not None and soft.average,
        windows is not None, windows is not None and windows.valid_only, _AT_ONCE, block,
        1 << max(0, count - 1).bit_length(),
    )  # fmt: skip
    launch(anchor_hinges, device, (2 * size,), tensors, numbers, num_warps=max(1, min(16, block // 256)))
    return binary, continuous
