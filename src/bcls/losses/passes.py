"""Data exchanged between the forward and backward pass of a backend.

A key is an integer that sorts like a score and carries its position: ``code << 32 | LATEST - position``. The code is
the bits of the float32, with the magnitude of a negative number inverted. A greater key is a greater score and, among
equal scores, the earlier position, so the result does not depend on the order of the work. Positives are stored with
the code inverted: their greatest key is the least similar one.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bcls.losses.definitions import Windows, window_tensors

#: Key of an empty bin.
LEAST = torch.iinfo(torch.int64).min
LATEST = 0x7FFFFFFF
#: Rows of the soft sums: greatest exponent, sum of powers of 2 relative to it, number of negatives.
PLANES = 3


class Tile(NamedTuple):
    """Some rows of the batch with all its columns."""

    similarity: Tensor  #: (n, B)
    relevance: Tensor | None  #: (n, B)
    image_ids: Tensor | None  #: (B,), of the whole batch
    first: int  #: index of the first row in the whole batch


class Keys(NamedTuple):
    """Greatest keys by bin: of negatives at the first window they count in, of positives at the last one."""

    rows: Tensor  #: (2, A, W) int64, negatives and positives of the row anchors
    columns: Tensor  #: (2, W, B) int64, of the column anchors

    def of_rows(self, first: int, step: int) -> "Keys":
        """The keys of some row anchors, and of all column anchors."""
        return self._replace(rows=self.rows[:, first : first + step])


class SoftSums(NamedTuple):
    """Sums over negatives, in parts that still have to be merged."""

    rows: Tensor  #: (3, parts, A)
    columns: Tensor  #: (3, parts, B)


class AnchorResults(NamedTuple):
    """Loss of each anchor and what its gradient needs; row anchors first, then column anchors."""

    values: Tensor  #: (2, A + B) float32, binary and continuous
    levels: Tensor  #: (A + B,) base-2 log-sum-exp of each anchor; infinity if its hinge is inactive
    picks: Tensor  #: (2, A + B, W) int32, positions of the hard negatives and positives; -1 if the hinge is inactive
    shares: Tensor  #: (A + B,) factor of the windows of each anchor


def new_keys(rows: int, columns: int, windows: Windows, device: torch.device) -> Keys:
    """Empty keys, in one block of memory."""
    split = 2 * windows.count * rows
    flat = torch.full((split + 2 * windows.count * columns,), LEAST, dtype=torch.int64, device=device)
    return Keys(flat[:split].view(2, rows, windows.count), flat[split:].view(2, windows.count, columns))


def merge(parts: Tensor) -> Tensor:
    """Merge the parts of soft sums, ``(3, parts, A)``, into one, ``(3, 1, A)``."""
    top = parts[0].amax(0)
    base = top.masked_fill(top == -torch.inf, 0)
    return torch.stack((top, (parts[1] * (parts[0] - base).exp2()).sum(0), parts[2].sum(0)))[:, None]


def gradient_entries(
    results: AnchorResults, windows: Windows, anchors: int, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Non-zero cells of the gradient of the continuous term; a cell may occur several times.

    Args:
        results: Of ``anchors`` row anchors and all column anchors.
        windows: Settings.
        anchors: Number of rows, n.
        first: Index of the first row in the whole batch.

    Returns:
        Rows within the block, columns, coefficients, each ``(E,)``.
    """
    _, weights = window_tensors(windows, results.shares.device)
    sign, anchor, window = (results.picks >= 0).nonzero(as_tuple=True)
    place = results.picks[sign, anchor, window].long()
    coefficients = results.shares[anchor] * weights[window] * (1 - 2 * sign)
    by_row = anchor < anchors
    rows = anchor.where(by_row, place - first)
    columns = place.where(by_row, anchor - anchors)
    here = (rows >= 0) & (rows < anchors)
    return rows[here], columns[here], coefficients[here]


class _NoDoubleBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor | None) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        raise RuntimeError(
            "the fused and streaming losses have no second derivative; "
            "use a loss on a matrix inside bcls.losses.without_kernels()"
        )


def forbid_double_backward(gradient: Tensor, *sources: Tensor | None) -> Tensor:
    """Return a gradient whose own derivative with respect to ``sources`` raises an error instead of being 0.

    ``once_differentiable`` of torch raises only if the upstream gradient requires one, and not for a scalar.

    Raises:
        RuntimeError: Not here, but in the second backward pass.
    """
    if not torch.is_grad_enabled():
        return gradient
    guarded: Tensor = _NoDoubleBackward.apply(gradient, *sources)  # type: ignore[no-untyped-call]
    return guarded


def on_other_gpu(tensor: Tensor) -> bool:
    """Whether a tensor is on another GPU than the current one, where Triton would launch its kernels."""
    return tensor.is_cuda and tensor.get_device() != torch.cuda.current_device()
