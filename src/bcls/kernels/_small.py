"""The losses on a small matrix: one launch for values and gradient, since each launch costs more than its work.

What programs share: in float32 the anchors' values ``(2, 2 B)``, binary and continuous, row anchors before column
anchors, and the labels' bounds ``(2, B)``; in int64 the keys ``(2 B, 2, W)`` and the notes on bad values ``(2, B)``.
"""

from typing import Any

import torch
from torch import Tensor

from bcls.kernels._arrivals import arrivals
from bcls.kernels._launch import launch, looks
from bcls.kernels._once import only_once
from bcls.kernels._triton_anchors import anchor_hinges
from bcls.kernels.settings import Halves, Windows, numbers_on
from bcls.kernels.values import report_on

#: What a program's registers hold: scores of an anchor, and windows.
LARGEST, MOST_WINDOWS = 4096, 256
#: Candidates whose keys are raised without a look at those that stand.
_AT_ONCE = 256


def is_small(size: int, windows: Windows | None) -> bool:
    """Whether this kernel serves a matrix of this size."""
    return 0 < size <= LARGEST and (windows is None or windows.count <= MOST_WINDOWS)


def small_loss(
    similarity: Tensor, relevance: Tensor | None, image_ids: Tensor | None, asked: Halves
) -> tuple[Tensor, Tensor]:
    """Binary and continuous half of a small ``(B, B)`` matrix on a device of Triton's."""
    if similarity.requires_grad and torch.is_grad_enabled():
        halves: tuple[Tensor, Tensor] = _SmallLoss.apply(similarity, relevance, image_ids, asked)  # type: ignore[no-untyped-call]
        return halves
    return _launch(similarity, relevance, image_ids, asked)


class _SmallLoss(torch.autograd.Function):
    """The gradient is made along with the values, for an upstream one of 1, so that backward is one product."""

    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, relevance: Tensor | None, image_ids: Tensor | None, asked: Halves
    ) -> tuple[Tensor, Tensor]:
        slopes = torch.zeros(similarity.shape, device=similarity.device)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(similarity, relevance, image_ids, slopes)
        ctx.asked = asked
        return _launch(similarity, relevance, image_ids, asked, slopes)

    @staticmethod
    def backward(ctx: Any, binary: Tensor | None, continuous: Tensor | None) -> tuple[Tensor | None, ...]:
        similarity, relevance, image_ids, slopes = ctx.saved_tensors
        soft, windows = ctx.asked
        upstream = continuous if soft is None else binary
        if soft is None or windows is None or binary is continuous:  # a sum hands both the same tensor
            gradient = torch.zeros_like(slopes) if upstream is None else slopes * upstream
        else:
            gradient = torch.zeros_like(slopes)
            asked = Halves(None if binary is None else soft, None if continuous is None else windows)
            _launch(similarity.detach(), relevance, image_ids, asked, gradient, (binary, continuous))
        if similarity.dtype != torch.float32:
            gradient = gradient.to(similarity.dtype)
        parts = (part for part in (similarity, binary, continuous) if part is not None)
        return only_once(gradient, *parts), None, None, None


def _launch(
    similarity: Tensor,
    relevance: Tensor | None,
    image_ids: Tensor | None,
    asked: Halves,
    slopes: Tensor | None = None,
    upstream: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor]:
    """Values of the halves; their gradient is added to ``slopes``, times the upstream ones where they are given."""
    (soft, windows), size, device = asked, similarity.shape[0], similarity.device
    count = 0 if windows is None else windows.count
    work = torch.empty(6 * size, device=device)
    keys = torch.empty(4 * size * count + 2 * size, dtype=torch.int64, device=device)
    # Two tensors and not two views of one, so that a caller may change them in place.
    binary, continuous = torch.empty((), device=device), torch.empty((), device=device)
    edges, margins, weights = (None, None, None) if windows is None else numbers_on(windows, device)
    block = max(16, 1 << (size - 1).bit_length())
    report = report_on(device)
    tensors = (
        similarity, relevance, image_ids, edges, margins, weights, keys, work, binary, continuous, arrivals(device),
        report, slopes, *upstream,
    )  # fmt: skip
    whole = (size, *similarity.stride(), *((0, 0) if relevance is None else relevance.stride()), count)
    # Floats, whatever the caller wrote: Triton compiles other code for whole numbers, which the key does not tell.
    scales = (1.0, 0.0, 1.0) if soft is None else (soft.sharpness, float(soft.margin), float(soft.scale))
    constants = (
        relevance is not None, image_ids is not None, soft is not None, soft is not None and soft.average,
        windows is not None and not windows.thresholds, windows is not None and bool(windows.thresholds),
        windows is not None and windows.exclude_same, windows is not None and windows.valid_only,
        _AT_ONCE, block, 1 << max(0, count - 1).bit_length(),
    )  # fmt: skip
    given = (similarity, relevance, image_ids, *upstream)  # the others are as torch and this package make them
    key = ("anchors", device, *map(looks, given), report is None, slopes is None, whole, constants)
    arguments = (*tensors, *whole, *scales, 1.0 if windows is None else float(windows.scale), *constants)
    launch(anchor_hinges, 2 * size, arguments, key, warps=max(1, min(16, block // 256)))
    return binary, continuous
