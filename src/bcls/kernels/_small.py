"""The losses on a small matrix: one launch forward and one backward, each of which would cost more than its work.

What the passes share lies in one float32 tensor, row anchors before column anchors: levels ``(2 B)``, shares ``(2 B)``,
values ``(2, 2 B)``, and the places of hard pairs ``(2, 2 B, W)``, which a float32 holds exactly.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from bcls.kernels._once import only_once
from bcls.kernels._triton_anchors import anchor_hinges
from bcls.kernels._triton_rows import row_slopes
from bcls.kernels.settings import SoftNegatives, Windows, numbers_on

#: What a program's registers hold: scores of an anchor, and windows.
LARGEST, MOST_WINDOWS = 2048, 256
#: Hard pairs of a direction that every program of the backward pass can look through.
MOST_PAIRS = 1 << 18
#: Candidates whose keys are raised without a look at those that stand.
_AT_ONCE = 256
#: Hard pairs that a program looks through at once.
_PAIRS = 2048
#: Programs of the backward pass, about.
_PROGRAMS = 256


def is_small(size: int, windows: Windows | None) -> bool:
    """Whether these kernels serve a matrix of this size."""
    count = 0 if windows is None else windows.count
    return 0 < size <= LARGEST and count <= MOST_WINDOWS and size * count <= MOST_PAIRS


class SmallLoss(torch.autograd.Function):
    """Binary and continuous half of a small ``(B, B)`` matrix on a device of Triton's."""

    @staticmethod
    def forward(
        ctx: Any,
        similarity: Tensor,
        relevance: Tensor | None,
        image_ids: Tensor | None,
        soft: SoftNegatives | None,
        windows: Windows | None,
    ) -> tuple[Tensor, Tensor]:
        """See :func:`bcls.kernels.matrix_loss`."""
        size, device = similarity.shape[0], similarity.device
        count = 0 if windows is None else windows.count
        work = torch.empty(8 * size + 4 * size * count, device=device)
        keys = torch.empty(4 * size * count, dtype=torch.int64, device=device)
        # Two tensors and not two views of one, so that a caller may change them in place.
        binary, continuous = torch.empty((), device=device), torch.empty((), device=device)
        edges, margins, weights = (None, None, None) if windows is None else numbers_on(windows, device)
        block = max(16, 1 << (size - 1).bit_length())
        anchor_hinges[2 * size,](
            similarity, relevance, image_ids, edges, margins, weights, keys, work, binary, continuous,
            _arrivals(device), size, *similarity.stride(), *_strides(relevance), count,
            *((1.0, 0.0, 1.0) if soft is None else (soft.sharpness, soft.margin, soft.scale)),
            1.0 if windows is None else windows.scale,
            relevance is not None, image_ids is not None, soft is not None, soft is not None and soft.average,
            windows is not None and not windows.thresholds, windows is not None and bool(windows.thresholds),
            windows is not None and windows.exclude_same, windows is not None and windows.valid_only,
            _AT_ONCE, block, 1 << max(0, count - 1).bit_length(), num_warps=max(1, min(16, block // 256)),
        )  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(similarity, relevance, image_ids, work)
        ctx.settings = soft, windows
        return binary, continuous

    @staticmethod
    def backward(ctx: Any, binary: Tensor | None, continuous: Tensor | None) -> tuple[Tensor, None, None, None, None]:
        """One launch; a half that nobody asks about costs nothing."""
        similarity, relevance, image_ids, work = ctx.saved_tensors
        soft, windows = ctx.settings
        size = similarity.shape[0]
        gradient = torch.empty((size, size), device=similarity.device)
        with_soft = soft is not None and binary is not None
        with_windows = windows is not None and continuous is not None
        block = max(16, 1 << (size - 1).bit_length())
        height = max(1, block // _PROGRAMS)
        row_slopes[-(-size // height),](
            similarity, relevance, image_ids, work, numbers_on(windows, similarity.device)[2] if with_windows else None,
            binary, continuous, gradient, size, *similarity.stride(), *_strides(relevance),
            windows.count if with_windows else 0,
            *((soft.sharpness, soft.scale) if with_soft else (1.0, 1.0)),
            relevance is not None, image_ids is not None, with_soft, with_windows,
            height, min(block, 2048 // height), _PAIRS, num_warps=8,
        )  # fmt: skip
        if similarity.dtype != torch.float32:
            gradient = gradient.to(similarity.dtype)
        parts = (part for part in (similarity, binary, continuous) if part is not None)
        return only_once(gradient, *parts), None, None, None, None


def _strides(matrix: Tensor | None) -> tuple[int, ...]:
    return (0, 0) if matrix is None else matrix.stride()


def _arrivals(device: torch.device) -> Tensor:
    """A zero that the programs of a launch count up and the last one sets back.

    Launches on one stream come one after the other and share it. A captured graph may run on any stream: it gets its
    own, and sets it to zero itself.
    """
    if device.type != "cuda":
        return _counter(device, 0)
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(1, dtype=torch.int32, device=device)
    return _counter(device, torch.cuda.current_stream(device).cuda_stream)


@cache
def _counter(device: torch.device, stream: int) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=device)
