"""A grid of features as a fixed number of regions."""

import math
import re
from typing import TypeAlias

import torch
from torch import Tensor

from bcls._checks import fail

#: Rows and columns of regions, or ``None`` for one vector.
Regions: TypeAlias = tuple[int, int] | None

_EXPECTED = "a square number, rows x columns, or 'global'"


def pool_regions(grid: Tensor, regions: int | tuple[int, int] = 36) -> Tensor:
    r"""Average a grid over R regions of equal size, row by row from the upper left.

    .. math:: x_{r} = \frac{1}{|G_r|} \sum_{(y, x) \in G_r} g_{y x}

    Region (i, j) of a rows x columns covers the lines ``floor(i h / a) .. ceil((i + 1) h / a)``, and columns alike, so
    neighbours share cells where the grid does not divide evenly (adaptive average pooling).

    Args:
        grid: ``(N, D, h, w)``, as a backbone gives it.
        regions: Their number R, a square, or (rows, columns).

    Returns:
        ``(N, R, D)``, with gradients.

    Raises:
        ValueError: ``regions`` is no square number, or the grid has fewer cells in a direction.

    Example:
        >>> pool_regions(torch.arange(16.0).reshape(1, 1, 4, 4), 4)
        tensor([[[ 2.5000],
                 [ 4.5000],
                 [10.5000],
                 [12.5000]]])
    """
    if grid.ndim != 4:
        fail("grid", "shape (N, D, h, w)", tuple(grid.shape), "pass what a backbone gives")
    rows, columns = regions if isinstance(regions, tuple) else _square(regions)
    if not (0 < rows <= grid.shape[2] and 0 < columns <= grid.shape[3]):
        expected = f"at most {grid.shape[2]} x {grid.shape[3]}, the cells of the grid"
        fail("regions", expected, f"{rows} x {columns}", "ask for fewer, or take a backbone with a finer grid")
    pooled = torch.nn.functional.adaptive_avg_pool2d(grid, (rows, columns))
    return pooled.flatten(2).transpose(1, 2)


def parse_regions(text: str) -> Regions:
    """Read a number of regions as people write it.

    Args:
        text: ``"36"``, ``"4x9"`` for 4 rows of 9, or ``"global"`` for one vector.

    Returns:
        Rows and columns, or ``None`` for one vector.

    Raises:
        ValueError: It is something else.

    Example:
        >>> parse_regions("36"), parse_regions("4x9"), parse_regions("global")
        ((6, 6), (4, 9), None)
    """
    if text == "global":
        return None
    if re.fullmatch(r"[0-9]+", text):
        return _square(int(text))
    pair = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", text)
    if pair is None:
        fail("regions", _EXPECTED, repr(text), "the usual number is 36")
    return int(pair[1]), int(pair[2])


def _square(regions: int) -> tuple[int, int]:
    side = math.isqrt(max(0, regions))
    if side * side != regions or side == 0:
        fail("regions", _EXPECTED, regions, "the usual number is 36")
    return side, side
