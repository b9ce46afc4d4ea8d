"""The backend in plain torch, for every device. The Triton kernels are tested against it."""

import torch
from torch import Tensor

from bcls.losses._torch.pairs import dense_kendall
from bcls.losses.definitions import SAME, LossSettings, SoftNegatives, Windows, check_values, window_tensors
from bcls.losses.passes import LATEST, LEAST, AnchorResults, Keys, SoftSums, Tile, gradient_entries, merge

#: Cells of a tile: what fits into the cache of a CPU, or into the memory of an accelerator (about 50 bytes per cell).
_CELLS = {"cpu": 1 << 18}
_CELLS_ELSEWHERE = 1 << 25


class TorchEngine:
    """The passes of the window and soft-negative losses, and the dense Kendall loss; every backend has these methods.

    Args:
        device: Device of the tensors.
    """

    #: Raises an error for NaN, infinity and labels out of range: here at once, on a GPU in the next call.
    check_values = staticmethod(check_values)
    #: Sum of hinges over all pairs of candidates, both directions (L_K); here differentiable twice.
    dense_kendall = staticmethod(dense_kendall)

    def __init__(self, device: torch.device) -> None:
        self.cells = _CELLS.get(device.type, _CELLS_ELSEWHERE)

    def one_launch(
        self, similarity: Tensor, relevance: Tensor | None, image_ids: Tensor | None, settings: LossSettings
    ) -> tuple[Tensor, Tensor] | None:
        """Both terms of a small matrix from one kernel, which checks the values itself; None if there is none."""
        return None

    def step(self, columns: int) -> int:
        """Rows of a tile with this many columns, if the matrix is computed tile by tile."""
        return max(1, self.cells // columns)

    def mine(self, tile: Tile, keys: Keys, windows: Windows) -> None:
        """Raise the keys to those of a tile; ``keys.rows`` are the rows of the tile."""
        assert tile.relevance is not None  # noqa: S101 - windows are given together with labels
        rows, columns = tile.similarity.shape
        negative, positive = _bins(tile.relevance, windows)
        number = torch.arange(columns, device=negative.device)
        by_row, by_column = LATEST - number, LATEST - number[tile.first : tile.first + rows, None]
        codes = tile.similarity.float().contiguous().view(torch.int32)
        codes = torch.where(codes < 0, codes ^ LATEST, codes)
        last = windows.count - 1
        for sign, (where, bins, code) in enumerate(
            ((negative <= last, negative.clamp(max=last), codes), (positive > 0, positive - 1, ~codes))
        ):
            bins, high = bins.clamp(min=0), code.long() << 32
            keys.rows[sign].scatter_reduce_(1, bins, torch.where(where, high | by_row, LEAST), "amax")
            keys.columns[sign].scatter_reduce_(0, bins, torch.where(where, high | by_column, LEAST), "amax")

    def sums(self, tile: Tile, soft: SoftNegatives) -> SoftSums:
        """Sums over the negatives of a tile."""
        allowed = _negatives(tile)
        exponents = (tile.similarity.float() * soft.sharpness).masked_fill_(~allowed, -torch.inf)
        sides = []
        for dim in (1, 0):
            top = exponents.amax(dim, keepdim=True)
            base = top.masked_fill(top == -torch.inf, 0)
            total = (exponents - base).exp2_().sum(dim)
            sides.append(torch.stack((top.squeeze(dim), total, allowed.sum(dim).float()))[:, None])
        return SoftSums(*sides)

    def finish(
        self, keys: Keys | None, sums: SoftSums | None, own: tuple[Tensor, Tensor], settings: LossSettings
    ) -> AnchorResults:
        """Hinges of all anchors; ``own`` are the scores of matching pairs, by row and by column."""
        soft, windows = settings
        anchors = own[0].shape[0] + own[1].shape[0]
        values = torch.zeros(2, anchors, device=own[0].device)
        levels = values.new_full((anchors,), torch.inf)
        picks, shares = values.new_empty((2, anchors, 0), dtype=torch.int32), values[1]
        if soft is not None and sums is not None:
            parts = zip(sums, own, strict=True)
            hinges, levels = (torch.cat(side) for side in zip(*(_soft_hinges(*p, soft) for p in parts), strict=True))
            values[0] = hinges
        if windows is not None and keys is not None:
            sides = [_window_hinges(side, windows) for side in (keys.rows, keys.columns.transpose(1, 2))]
            values[1] = torch.cat([side[0] for side in sides])
            picks = torch.cat([side[1] for side in sides], 1)
            shares = torch.cat([side[2] for side in sides])
        return AnchorResults(values, levels, picks, shares)

    def slope(self, tile: Tile, levels: tuple[Tensor, Tensor], upstream: Tensor, soft: SoftNegatives) -> Tensor:
        """Gradient of the binary term at a tile, ``(n, B)`` float32.

        Softmax weights of both directions, minus one for each matching pair whose hinge is active.
        """
        exponents = tile.similarity.float() * soft.sharpness
        weights = (exponents - levels[0][:, None]).exp2_() + (exponents - levels[1]).exp2_()
        weights.masked_fill_(~_negatives(tile), 0)
        active = levels[0].isfinite().float() + levels[1][tile.first :][: len(weights)].isfinite().float()
        weights.diagonal(tile.first).sub_(active)
        return weights.mul_(upstream.float() * soft.scale)

    def scatter(self, gradient: Tensor, results: AnchorResults, upstream: Tensor, windows: Windows) -> None:
        """Add the gradient of the continuous term to a whole ``(B, B)`` float32 matrix."""
        rows, columns, coefficients = gradient_entries(results, windows, gradient.shape[0], 0)
        gradient.index_put_((rows, columns), coefficients * upstream.float(), accumulate=True)


def _negatives(tile: Tile) -> Tensor:
    rows, columns = tile.similarity.shape
    number = torch.arange(columns, device=tile.similarity.device)
    same = number[tile.first : tile.first + rows, None] == number
    if tile.image_ids is not None:
        same |= tile.image_ids[tile.first : tile.first + rows, None] == tile.image_ids
    return ~same if tile.relevance is None else ~same & (tile.relevance < 1 - SAME)


def _bins(labels: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
    """From which window on a pair is negative, and in how many windows it is positive; int64."""
    edges, _ = window_tensors(windows, labels.device)
    steps = labels.to(torch.float64, copy=True).add_(edges[0]).mul_(edges[1])
    positive = (steps - edges[2]).clamp_(0, windows.count).long()
    return steps.clamp_(0, windows.count).long(), positive


def _soft_hinges(parts: Tensor, own: Tensor, soft: SoftNegatives) -> tuple[Tensor, Tensor]:
    top, total, count = merge(parts)[:, 0]
    level = top.masked_fill(top == -torch.inf, 0) + total.log2()
    maximum = level / soft.sharpness
    if soft.average:
        maximum = maximum - count.clamp(min=1).log2() / soft.sharpness
    hinge = maximum - own.float() + soft.margin
    active = (top != -torch.inf) & ~(hinge <= 0)  # NaN counts as active
    return torch.where(active, hinge * soft.scale, 0.0), torch.where(active, level, torch.inf)


def _score(codes: Tensor) -> Tensor:
    codes = codes.int()
    return torch.where(codes < 0, codes ^ LATEST, codes).view(torch.float32)


def _window_hinges(keys: Tensor, windows: Windows) -> tuple[Tensor, Tensor, Tensor]:
    """Values, positions and factors of the anchors of one direction; keys ``(2, A, W)``."""
    _, weights = window_tensors(windows, keys.device)
    negative, positive = keys[0].cummax(1).values, keys[1].flip(1).cummax(1).values.flip(1)
    valid = (negative != LEAST) & (positive != LEAST)
    gaps = _score(negative >> 32) - _score(~(positive >> 32))
    active = valid & ~(gaps <= 0)
    share = torch.full_like(gaps[:, 0], windows.scale)
    if windows.valid_only:
        share = share / valid.sum(1).clamp(min=1)
    positions = (LATEST - (torch.stack((negative, positive)) & LATEST)).int()
    return torch.where(active, gaps * weights, 0.0).sum(1) * share, positions.where(active, -1), share
