"""Launches of the Triton kernels: shapes of blocks, memory for results, nothing that waits for the device."""

import torch
from torch import Tensor

from bcls.kernels._parts import PLANES, Finished, Keys, Soft, Tile
from bcls.kernels._torch_engine import TorchEngine
from bcls.kernels._triton_hinges import finish_anchors
from bcls.kernels._triton_soft import soft_slopes, sum_negatives
from bcls.kernels._triton_tiles import mine_tiles, scatter_pairs
from bcls.kernels.settings import Halves, SoftNegatives, Windows, numbers_on

#: Rows and columns of a block, and of one whose negatives are summed up: columns' sums are merged over few blocks.
_HEIGHT, _WIDTH = 32, 64
_SUMMED, _ABREAST = 128, 32
#: Warps of a block that is mined: four cells a thread, whose keys and addresses just fit the registers.
_MINERS = 16
#: Programs that fill a large device; more of them only raise the same keys at the same time.
_PROGRAMS = 512
#: Cells of a tile where the matrix is made for it: 268 MB.
_CELLS = 1 << 26
#: Keys that one program scans, and the most windows that one program should have.
_SCANNED = 1024


class TritonEngine:
    """See :class:`bcls.kernels._parts.Engine`."""

    def step(self, columns: int, *, made: bool) -> int:
        """A given matrix is one tile."""
        return max(_HEIGHT, _CELLS // columns // _HEIGHT * _HEIGHT) if made else columns

    def mine(self, tile: Tile, keys: Keys | None, asked: Halves) -> Soft | None:
        """One pass over the tile for each half: together they need more registers than they save in reading."""
        (scores, labels, ids, first), (soft, windows) = tile, asked
        if keys is not None and windows is not None and labels is not None:
            (rows, columns), (row_keys, column_keys) = scores.shape, keys
            if windows.count * max(rows, columns) >= 1 << 31:  # beyond the kernel's places, and 64 GB of keys
                TorchEngine(scores.device).mine(tile, keys, Halves(None, windows))
                return None if soft is None else self._sums(tile, soft)
            blocks, span = _ceil(rows, _HEIGHT), _span(rows, columns, _HEIGHT, _WIDTH)
            mine_tiles[blocks, _ceil(columns, span)](
                scores, labels, ids, numbers_on(windows, scores.device)[0], row_keys, column_keys,
                rows, columns, first, *scores.stride(), *labels.stride(), row_keys.stride(0), column_keys.stride(0),
                windows.count, span, ids is not None, not windows.thresholds, windows.exclude_same,
                _HEIGHT, _WIDTH, num_warps=_MINERS,
            )  # fmt: skip
        return None if soft is None else self._sums(tile, soft)

    def _sums(self, tile: Tile, soft: SoftNegatives) -> Soft:
        scores, labels, ids, first = tile
        rows, columns = scores.shape
        blocks, span = _ceil(rows, _SUMMED), _span(rows, columns, _SUMMED, _ABREAST)
        splits = _ceil(columns, span)
        by_row = torch.empty((PLANES, splits, rows), device=scores.device)
        by_column = torch.empty((PLANES, blocks, columns), device=scores.device)
        sum_negatives[blocks, splits](
            scores, labels, ids, by_row, by_column, rows, columns, first, *scores.stride(),
            *((0, 0) if labels is None else labels.stride()), span, soft.sharpness,
            labels is not None, ids is not None, soft.average, _SUMMED, _ABREAST, num_warps=8,
        )  # fmt: skip
        return Soft(by_row, by_column)

    def finish(self, keys: Keys | None, sums: Soft | None, own: tuple[Tensor, Tensor], asked: Halves) -> Finished:
        """One program for a block of anchors, both directions in one launch."""
        soft, windows = asked
        if windows is not None and windows.count > _SCANNED:
            return TorchEngine(own[0].device).finish(keys, sums, own, asked)
        rows, columns, device = own[0].shape[0], own[1].shape[0], own[0].device
        both, count = rows + columns, 0 if windows is None else windows.count
        scanned = 1 << max(0, count - 1).bit_length()
        anchors = min(32, max(1, _SCANNED // scanned))
        flat = torch.empty(4 * both, device=device)
        values, levels, shares = flat[: 2 * both].view(2, both), flat[2 * both : 3 * both], flat[3 * both :]
        picks = torch.empty((2, both, count), dtype=torch.int32, device=device)
        _, margins, weights = (None, None, None) if windows is None else numbers_on(windows, device)
        row_keys, column_keys = (None, None) if keys is None else keys
        row_sums, column_sums = (None, None) if sums is None else sums
        row_programs = _ceil(rows, anchors)
        finish_anchors[row_programs + _ceil(columns, anchors),](
            row_keys, column_keys, margins, weights, row_sums, column_sums, *own, values, levels, picks, shares,
            rows, columns, row_programs,
            0 if row_keys is None else row_keys.stride(0), 0 if column_keys is None else column_keys.stride(0),
            both * count, 0 if row_sums is None else row_sums.shape[1],
            0 if column_sums is None else column_sums.shape[1], own[0].stride(0), own[1].stride(0), count,
            1.0 if soft is None else soft.sharpness, 0.0 if soft is None else soft.margin,
            1.0 if soft is None else soft.scale, 1.0 if windows is None else windows.scale,
            soft is not None, soft is not None and soft.average,
            windows is not None, windows is not None and windows.valid_only, anchors, scanned, 16,
        )  # fmt: skip
        return Finished(values, levels, picks, shares)

    def slope(self, tile: Tile, levels: tuple[Tensor, Tensor], upstream: Tensor, soft: SoftNegatives) -> Tensor:
        """One pass over the tile."""
        scores, labels, ids, first = tile
        rows, columns = scores.shape
        gradient = torch.empty((rows, columns), device=scores.device)
        soft_slopes[_ceil(rows, _HEIGHT), _ceil(columns, _WIDTH)](
            scores, labels, ids, *levels, upstream, gradient, rows, columns, first, *scores.stride(),
            *((0, 0) if labels is None else labels.stride()), soft.sharpness, soft.scale,
            labels is not None, ids is not None, _HEIGHT, _WIDTH,
        )  # fmt: skip
        return gradient

    def scatter(self, gradient: Tensor, finished: Finished, upstream: Tensor, windows: Windows) -> None:
        """Two atomic additions for each hard pair."""
        _, _, weights = numbers_on(windows, gradient.device)
        number = finished.picks[0].numel()
        scatter_pairs[_ceil(number, 256),](
            finished.picks, finished.shares, weights, upstream, gradient, gradient.shape[0], windows.count, number, 256
        )


def _span(rows: int, columns: int, height: int, width: int) -> int:
    """Columns of a program, a multiple of its block's, so that there are enough programs."""
    across = _ceil(columns, width)
    return _ceil(across, min(across, max(1, _PROGRAMS // _ceil(rows, height)))) * width


def _ceil(length: int, block: int) -> int:
    return -(-length // block)
