"""The Triton backend: launches of the kernels, shapes of blocks and memory for results; nothing waits for the GPU."""

from typing import Any

import torch
from torch import Tensor

from bcls.losses._torch.engine import TorchEngine
from bcls.losses._torch.pairs import count_triples
from bcls.losses._triton import kernels
from bcls.losses._triton.launch import arrivals, launch
from bcls.losses._triton.ranks import rank_anchors
from bcls.losses._triton.small import is_small, small_loss
from bcls.losses._triton.values import check_matrices
from bcls.losses.definitions import LossSettings, SoftNegatives, Windows, raise_reported, report_on, window_tensors
from bcls.losses.passes import PLANES, AnchorResults, Keys, SoftSums, Tile, forbid_double_backward, on_other_gpu

#: Rows and columns of a block, and of a block whose negatives are summed: sums of columns are merged over few blocks.
_HEIGHT, _WIDTH = 32, 64
_SUM_HEIGHT, _SUM_WIDTH = 128, 32
#: Warps of a block that is mined: two cells for each thread. Blocks whose negatives are summed use few registers, so
#: that four fit on a multiprocessor. On AMD GPUs a warp may have 64 threads, and ``maxnreg`` is unknown.
_MINING_WARPS = 32 if torch.version.hip is None else 16
_SUM_OPTIONS = {"num_warps": 8} if torch.version.hip else {"num_warps": 8, "maxnreg": 64}
#: Programs that fill a large GPU; more of them would only raise the same keys at the same time.
_PROGRAMS = 512
#: Cells of a tile whose matrix is computed tile by tile: 268 MB.
_CELLS = 1 << 26
#: Keys that one program scans, and the greatest number of windows of one program.
_SCANNED = 1024
#: Programs that check a matrix, and columns that one of them reads at once.
_CHECK_PROGRAMS, _CHECK_WIDTH = 2048, 1024
#: Batch size from which the dense Kendall loss is computed by ranks.
RANKS_FROM = 512
#: Candidates of a block of the dense Kendall kernel, and those that they are compared with at once.
_OURS, _OTHERS = 64, 64


class TritonEngine:
    """See :class:`bcls.losses._torch.engine.TorchEngine`."""

    def check_values(self, similarity: Tensor, relevance: Tensor | None, *, bounded: bool = True) -> None:
        """Raise what earlier calls reported, and check these values on the GPU, in one launch without waiting."""
        if on_other_gpu(similarity):
            with torch.cuda.device_of(similarity):  # type: ignore[no-untyped-call]
                return self.check_values(similarity, relevance, bounded=bounded)
        raise_reported(similarity.device)
        (rows, columns), device = similarity.shape, similarity.device
        programs, report = min(rows, _CHECK_PROGRAMS), report_on(device)
        notes = torch.empty(3 * programs, dtype=torch.int64, device=device)
        whole = (rows, columns, *similarity.stride(), *((0, 0) if relevance is None else relevance.stride()))
        constants = (relevance is not None, bounded and relevance is not None, _CHECK_WIDTH, _CHECK_WIDTH // 4)
        tensors = (similarity, relevance, notes, arrivals(device), report)
        return launch(check_matrices, device, (programs,), tensors, (*whole, *constants))

    def one_launch(
        self, similarity: Tensor, relevance: Tensor | None, image_ids: Tensor | None, settings: LossSettings
    ) -> tuple[Tensor, Tensor] | None:
        """One kernel for matrices up to B = 3,072."""
        if not is_small(similarity.shape[0], settings.windows):
            return None
        raise_reported(similarity.device)
        return small_loss(similarity, relevance, image_ids, settings)

    def step(self, columns: int) -> int:
        """A multiple of the height of a block."""
        return max(_HEIGHT, _CELLS // columns // _HEIGHT * _HEIGHT)

    def mine(self, tile: Tile, keys: Keys, windows: Windows) -> None:
        """One pass over the tile; together with the sums it would need more registers than it saves in reading."""
        (scores, labels, _, first), (row_keys, column_keys) = tile, keys
        rows, columns = scores.shape
        if windows.count * max(rows, columns) >= 1 << 31:  # too many positions for the kernel, and 64 GB of keys
            return TorchEngine(scores.device).mine(tile, keys, windows)
        assert labels is not None  # noqa: S101 - windows are given together with labels
        blocks, span = _ceil(rows, _HEIGHT), _span(rows, columns, _HEIGHT, _WIDTH)
        tensors = (scores, labels, window_tensors(windows, scores.device)[0], row_keys, column_keys)
        numbers = (
            rows, columns, first, *scores.stride(), *labels.stride(), row_keys.stride(0), column_keys.stride(0),
            windows.count, span, _HEIGHT, _WIDTH,
        )  # fmt: skip
        grid = blocks, _ceil(columns, span)
        return launch(kernels.mine_tiles, scores.device, grid, tensors, numbers, num_warps=_MINING_WARPS)

    def sums(self, tile: Tile, soft: SoftNegatives) -> SoftSums:
        """One pass over the tile."""
        scores, labels, ids, first = tile
        rows, columns = scores.shape
        blocks, span = _ceil(rows, _SUM_HEIGHT), _span(rows, columns, _SUM_HEIGHT, _SUM_WIDTH)
        splits = _ceil(columns, span)
        by_row = torch.empty((PLANES, splits, rows), device=scores.device)
        by_column = torch.empty((PLANES, blocks, columns), device=scores.device)
        numbers = (
            rows, columns, first, *scores.stride(), *((0, 0) if labels is None else labels.stride()), span,
            soft.sharpness, labels is not None, ids is not None, soft.average, _SUM_HEIGHT, _SUM_WIDTH,
        )  # fmt: skip
        tensors = (scores, labels, ids, by_row, by_column)
        launch(kernels.sum_negatives, scores.device, (blocks, splits), tensors, numbers, **_SUM_OPTIONS)
        return SoftSums(by_row, by_column)

    def finish(
        self, keys: Keys | None, sums: SoftSums | None, own: tuple[Tensor, Tensor], settings: LossSettings
    ) -> AnchorResults:
        """One program for each block of anchors, both directions in one launch."""
        soft, windows = settings
        if windows is not None and windows.count > _SCANNED:
            return TorchEngine(own[0].device).finish(keys, sums, own, settings)
        rows, columns, device = own[0].shape[0], own[1].shape[0], own[0].device
        both, count = rows + columns, 0 if windows is None else windows.count
        scanned = 1 << max(0, count - 1).bit_length()
        anchors = min(32, max(1, _SCANNED // scanned))
        # The kernel does not write the values of a term that is not computed.
        values = (torch.zeros if soft is None or windows is None else torch.empty)((2, both), device=device)
        levels, shares = torch.empty(both, device=device), torch.empty(both, device=device)
        picks = torch.empty((2, both, count), dtype=torch.int32, device=device)
        weights = None if windows is None else window_tensors(windows, device)[1]
        row_keys, column_keys = (None, None) if keys is None else keys
        row_sums, column_sums = (None, None) if sums is None else sums
        row_programs = _ceil(rows, anchors)
        tensors = (row_keys, column_keys, weights, row_sums, column_sums, *own, values, levels, picks, shares)
        numbers = (
            rows, columns, row_programs,
            0 if row_keys is None else row_keys.stride(0), 0 if column_keys is None else column_keys.stride(0),
            both * count, 0 if row_sums is None else row_sums.shape[1],
            0 if column_sums is None else column_sums.shape[1], own[0].stride(0), own[1].stride(0), count,
            # Floats even for integers, see `small`.
            1.0 if soft is None else soft.sharpness, 0.0 if soft is None else float(soft.margin),
            1.0 if soft is None else float(soft.scale), 1.0 if windows is None else float(windows.scale),
            soft is not None, soft is not None and soft.average,
            windows is not None, windows is not None and windows.valid_only, anchors, scanned, 16,
        )  # fmt: skip
        launch(kernels.finish_anchors, device, (row_programs + _ceil(columns, anchors),), tensors, numbers)
        return AnchorResults(values, levels, picks, shares)

    def slope(self, tile: Tile, levels: tuple[Tensor, Tensor], upstream: Tensor, soft: SoftNegatives) -> Tensor:
        """One pass over the tile."""
        scores, labels, ids, first = tile
        rows, columns = scores.shape
        gradient = torch.empty((rows, columns), device=scores.device)
        tensors = (scores, labels, ids, *levels, upstream, gradient)
        numbers = (
            rows, columns, first, *scores.stride(), *((0, 0) if labels is None else labels.stride()),
            soft.sharpness, float(soft.scale), labels is not None, ids is not None, _HEIGHT, _WIDTH,
        )  # fmt: skip
        launch(kernels.soft_slopes, scores.device, (_ceil(rows, _HEIGHT), _ceil(columns, _WIDTH)), tensors, numbers)
        return gradient

    def scatter(self, gradient: Tensor, results: AnchorResults, upstream: Tensor, windows: Windows) -> None:
        """Two atomic additions for each hard pair."""
        _, weights = window_tensors(windows, gradient.device)
        number, size = results.picks.numel() // 2, gradient.shape[0]
        tensors = (results.picks, results.shares, weights, upstream, gradient)
        numbers = (size, windows.count, number, 256)
        launch(kernels.scatter_pairs, gradient.device, (_ceil(number, 256),), tensors, numbers)

    def dense_kendall(
        self, similarity: Tensor, relevance: Tensor, alpha: float, margin: float, *, per_triple: bool
    ) -> Tensor:
        """By ranks in O(B^2 log B), small batches by comparing all pairs; O(B^2) memory; no second derivative."""
        if on_other_gpu(similarity):
            with torch.cuda.device_of(similarity):  # type: ignore[no-untyped-call]
                return self.dense_kendall(similarity, relevance, alpha, margin, per_triple=per_triple)
        value: Tensor = _DenseKendall.apply(similarity, relevance, alpha, margin, per_triple)  # type: ignore[no-untyped-call]
        return value


class _DenseKendall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, relevance: Tensor, alpha: float, margin: float, per_triple: bool
    ) -> Tensor:
        compute = _kendall_by_ranks if similarity.shape[0] >= RANKS_FROM else _kendall_by_pairs
        value, slopes = compute(similarity, relevance.float(), alpha, margin, per_triple=per_triple)
        ctx.save_for_backward(similarity, slopes)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        similarity, slopes = ctx.saved_tensors
        with torch.no_grad():
            gradient = (slopes * upstream.float()).to(similarity.dtype)
        return forbid_double_backward(gradient, similarity, upstream), None, None, None, None


def _kendall_by_ranks(
    similarity: Tensor, labels: Tensor, alpha: float, margin: float, *, per_triple: bool
) -> tuple[Tensor, Tensor]:
    """Value and gradient."""
    size = similarity.shape[0]
    slopes, values = [], []
    for scores, grades in ((similarity, labels), (similarity.T, labels.T)):
        net, hinges, triples = rank_anchors(scores.contiguous(), grades.contiguous(), alpha, margin)
        factor = size / triples.clamp(min=1).double() if per_triple else 1.0
        slopes.append(net.mul_(factor) if per_triple else net)
        values.append(hinges * factor)
    return (values[0] + values[1]).float(), slopes[0].add_(slopes[1].T)


def _kendall_by_pairs(
    similarity: Tensor, labels: Tensor, alpha: float, margin: float, *, per_triple: bool
) -> tuple[Tensor, Tensor]:
    """Value and gradient; O(B^3) comparisons, one launch for each direction."""
    size, device = similarity.shape[0], similarity.device
    blocks = _ceil(size, _OURS)
    slopes = torch.empty((size, size), device=device)
    sums = torch.empty((2, size, blocks), device=device)
    factors = torch.full((2,), 1.0, device=device)
    if per_triple:
        factors *= size / torch.stack([count_triples(side, alpha) for side in (labels, labels.T)]).clamp(min=1)
    for side in (0, 1):
        # Columns as contiguous rows: the candidates of an anchor are read many times.
        scores, grades = (matrix.T.contiguous() if side else matrix for matrix in (similarity, labels))
        strides = slopes.stride()[::-1] if side else slopes.stride()
        kernels.compare_pairs[size, blocks](
            scores, grades, factors[side], slopes, sums[side], size, *scores.stride(), *grades.stride(), *strides,
            alpha, margin, bool(side), _OURS, _OTHERS, num_warps=8,
        )  # fmt: skip
    return sums.sum(dtype=torch.float64).float(), slopes


def _span(rows: int, columns: int, height: int, width: int) -> int:
    """Columns of a program, a multiple of the block width, so that there are enough programs."""
    across = _ceil(columns, width)
    return _ceil(across, min(across, max(1, _PROGRAMS // _ceil(rows, height)))) * width


def _ceil(length: int, block: int) -> int:
    return -(-length // block)
