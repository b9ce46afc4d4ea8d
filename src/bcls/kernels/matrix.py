"""BCLS, K-SW-HS, the ladder's rungs and Triplet-SN on a given similarity matrix: few passes, O(B W) memory beside it.

Forward reads the two matrices, for both directions together, and keeps the hardest pair of each anchor and window and
one log-sum-exp an anchor. Backward writes the gradient once and adds the few cells of the hard pairs to it. With Triton
batches up to 4,096 take one launch for both, see ``_small``; above that one more launch looks at the values.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bcls._core.errors import fail
from bcls.kernels._once import only_once
from bcls.kernels._parts import Finished, Soft, Tile, merge, new_keys
from bcls.kernels.engines import PRECISIONS, elsewhere, engine_for, runs_triton
from bcls.kernels.settings import Halves, SoftNegatives, Windows
from bcls.kernels.values import check_tensor, check_values, look, refuse_earlier


class Terms(NamedTuple):
    """The halves of the loss, float32 scalars; 0 where a half is not asked for."""

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
    """Soft negatives and hard pairs of windows over a ``(B, B)`` matrix, rows are images.

    Nothing waits for the device: kernels that meet NaN, infinity or labels out of range report them, and the next call
    or :func:`bcls.kernels.check_now` raises. Plain torch, where Triton does not run, refuses them at once. A second
    derivative is refused; the plain losses have one.

    Args:
        similarity: ``(B, B)`` float32, bfloat16 or float16, any strides.
        relevance: ``(B, B)`` labels in [-1, 1]; may be left out without ``windows``.
        image_ids: ``(B,)`` integers; pairs with equal ones are never negatives of the soft half.
        soft: Settings of the binary half, or None to leave it out.
        windows: Settings of the continuous half, or None to leave it out.

    Raises:
        ValueError: If shapes, types, devices or values do not fit, or an earlier call had bad values.

    Example:
        >>> from bcls.kernels import sliding_windows
        >>> scores = torch.tensor([[0.9, 0.3], [0.6, 0.5]])
        >>> labels = torch.tensor([[1.0, 0.25], [0.25, 1.0]])
        >>> matrix_loss(scores, labels, windows=sliding_windows()).continuous
        tensor(0.0333)
    """
    check_tensor("similarity", similarity)
    square = similarity.ndim == 2 and similarity.shape[0] == similarity.shape[1] > 0
    if not square or similarity.dtype not in PRECISIONS:
        got = f"shape {tuple(similarity.shape)} of {similarity.dtype}"
        fail("similarity", "a (B, B) matrix of float32, bfloat16 or float16", got, "the plain losses take float64")
    if windows is not None and relevance is None:
        fail("relevance", "a (B, B) matrix of labels", None, "windows are windows over labels")
    for argument, tensor, shape in (
        ("relevance", relevance, similarity.shape),
        ("image_ids", image_ids, similarity.shape[:1]),
    ):
        if tensor is None:
            continue
        check_tensor(argument, tensor)
        if tensor.shape != shape or tensor.device != similarity.device:
            got = f"shape {tuple(tensor.shape)} on {tensor.device}"
            fail(argument, f"shape {tuple(shape)} on {similarity.device}", got, "pass the labels of this very batch")
    if relevance is not None and relevance.dtype != torch.float64:
        relevance = relevance.float()  # half precision is too coarse to tell windows apart
    if elsewhere(similarity):
        with torch.cuda.device_of(similarity):  # type: ignore[no-untyped-call]
            return matrix_loss(similarity, relevance, image_ids=image_ids, soft=soft, windows=windows)
    inputs = similarity, relevance, image_ids, Halves(soft, windows)
    if runs_triton(similarity.device):
        refuse_earlier(similarity.device)
        from bcls.kernels._small import is_small, small_loss

        if is_small(similarity.shape[0], windows):
            return Terms(*small_loss(*inputs))
        look(similarity.detach(), relevance)
    else:
        check_values(similarity, relevance)
    return Terms(*_MatrixLoss.apply(*inputs))  # type: ignore[no-untyped-call]


class _MatrixLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, relevance: Tensor | None, image_ids: Tensor | None, asked: Halves
    ) -> tuple[Tensor, Tensor]:
        engine, size = engine_for(similarity.device), similarity.shape[0]
        keys = new_keys(size, size, asked.windows, similarity.device)
        step = min(engine.step(size, made=False), size)
        sums = []
        for first in range(0, size, step):
            tile = _tile(similarity, relevance, image_ids, first, step)
            part = keys if keys is None or step == size else keys._replace(rows=keys.rows[:, first : first + step])
            sums.append(engine.mine(tile, part, asked))
        own = similarity.diagonal()
        finished = engine.finish(keys, gather(sums), (own, own), asked)
        ctx.save_for_backward(similarity, relevance, image_ids, *finished)
        ctx.settings = engine, asked, step
        ctx.set_materialize_grads(False)
        binary, continuous = finished.values.sum(1).unbind()
        return binary, continuous

    @staticmethod
    def backward(ctx: Any, binary: Tensor | None, continuous: Tensor | None) -> tuple[Tensor, None, None, None]:
        with torch.no_grad():
            gradient = _gradient(ctx.saved_tensors, ctx.settings, binary, continuous)
        parts = (part for part in (ctx.saved_tensors[0], binary, continuous) if part is not None)
        return only_once(gradient, *parts), None, None, None


def _gradient(
    saved: tuple[Any, ...], settings: tuple[Any, ...], binary: Tensor | None, continuous: Tensor | None
) -> Tensor:
    """A half whose upstream gradient is None was not asked about."""
    similarity, relevance, image_ids, *parts = saved
    engine, (soft, windows), step = settings
    finished, size = Finished(*parts), similarity.shape[0]
    if soft is None or binary is None:
        gradient = torch.zeros(size, size, device=similarity.device)
    else:
        rows, columns = finished.levels[:size], finished.levels[size:]
        slopes = [
            engine.slope(
                _tile(similarity, relevance, image_ids, first, step),
                (rows[first : first + step], columns),
                binary,
                soft,
            )
            for first in range(0, size, step)
        ]
        gradient = slopes[0] if len(slopes) == 1 else torch.cat(slopes)
    if windows is not None and continuous is not None:
        engine.scatter(gradient, finished, continuous, windows)
    return gradient.to(similarity.dtype)


def _tile(similarity: Tensor, relevance: Tensor | None, image_ids: Tensor | None, first: int, step: int) -> Tile:
    if step == similarity.shape[0]:
        return Tile(similarity, relevance, image_ids, 0)
    rows = slice(first, first + step)
    return Tile(similarity[rows], None if relevance is None else relevance[rows], image_ids, first)


def gather(sums: list[Soft | None]) -> Soft | None:
    """The soft sums of all tiles: rows side by side, columns as parts."""
    given = [part for part in sums if part is not None]
    if len(given) <= 1:
        return given[0] if given else None
    return Soft(
        torch.cat([merge(part.rows) for part in given], 2), torch.cat([merge(part.columns) for part in given], 1)
    )
