"""A grid of features as a fixed number of regions.

Square crops of a picture, as a network sees them.

Random views of a picture beside the whole of it, the same ones in every extraction.
"""

import hashlib
import math
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from bcls._core.errors import check_choice, fail
from bcls.data.images import random_view

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


View: TypeAlias = Literal["whole", "centre", "mirrored", "four-crop", "six-crop", "ten-crop"]
#: Views and the number of crops that each has.
VIEWS: dict[str, int] = {"whole": 1, "centre": 1, "mirrored": 2, "four-crop": 4, "six-crop": 6, "ten-crop": 10}
#: Views that are made from the whole picture: the shares of its sides that are seen, each as it is and mirrored.
ZOOMS: dict[str, tuple[float, ...]] = {"mirrored": (1.0,), "four-crop": (1.0, 7 / 8), "six-crop": (1.0, 7 / 8, 3 / 4)}


def crops(
    image: Image.Image, side: int, view: View = "whole", resample: Image.Resampling = Image.Resampling.BICUBIC
) -> Tensor:
    """Cut square crops out of a picture.

    ``"whole"`` stretches the whole picture to the square. ``"centre"`` resizes it so that its shorter side is
    ``side * 256 / 224`` and takes the middle. ``"ten-crop"`` resizes it the same way and takes the four corners, the
    middle, and the mirror image of each: upper left, upper right, lower left, lower right, middle, and again mirrored.
    ``"mirrored"``, ``"four-crop"`` and ``"six-crop"`` are what :func:`zoomed` makes of the whole picture.

    Args:
        image: A picture, in mode RGB.
        side: Side of a crop, in pixels.
        view: Which crops.
        resample: Filter to resize with.

    Returns:
        ``(V, 3, side, side)`` uint8; of the views by :func:`zoomed` float32.

    Raises:
        ValueError: There is no such view.

    Example:
        >>> crops(Image.new("RGB", (40, 30), "red"), 8, "ten-crop").shape
        torch.Size([10, 3, 8, 8])
    """
    check_choice("view", view, VIEWS)
    if image.mode != "RGB":
        image = image.convert("RGB")
    if view == "whole" or view in ZOOMS:
        whole = _pixels(image if image.size == (side, side) else image.resize((side, side), resample))[None]
        return whole if view == "whole" else zoomed(whole, view)[0]
    pixels = _pixels(_shrink(image, round(side * 256 / 224), resample))
    down, right = pixels.shape[1] - side, pixels.shape[2] - side
    middle = round(down / 2), round(right / 2)
    corners = [] if view == "centre" else [(0, 0), (0, right), (down, 0), (down, right)]
    cut = torch.stack([pixels[:, top : top + side, left : left + side] for top, left in [*corners, middle]])
    return cut if view == "centre" else torch.cat([cut, cut.flip(3)])


def zoomed(pixels: Tensor, view: str) -> Tensor:
    """Look at whole pictures several times: at all of them, at their middle, and at the mirror image of each.

    The mean of what a network makes of these says more than what it makes of one: the mean vectors of
    EfficientNet-Lite gain 12 points of RSUM on Flickr8k by six, 9 by four, 4 by two. ``"mirrored"`` is the picture and
    its mirror image; ``"four-crop"`` adds the middle 7/8 of each side, ``"six-crop"`` also the middle 3/4.

    Args:
        pixels: ``(N, 3, S, S)`` on the scale 0..255.
        view: A key of ``ZOOMS``.

    Returns:
        ``(N, V, 3, S, S)`` float32 on the same scale: first all that are not mirrored.

    Example:
        >>> zoomed(torch.arange(8, dtype=torch.uint8).expand(1, 3, 8, 8), "four-crop")[0, :, 0, 0]
        tensor([[0.0000, 1.0000, 2.0000, 3.0000, 4.0000, 5.0000, 6.0000, 7.0000],
                [0.0000, 0.8125, 1.6875, 2.5625, 3.4375, 4.3125, 5.1875, 6.0000],
                [7.0000, 6.0000, 5.0000, 4.0000, 3.0000, 2.0000, 1.0000, 0.0000],
                [6.0000, 5.1875, 4.3125, 3.4375, 2.5625, 1.6875, 0.8125, 0.0000]])
    """
    side = pixels.shape[-1]
    seen = [pixels.float()]
    for share in ZOOMS[view][1:]:
        size = max(1, round(side * share))
        start = (side - size) // 2
        middle = pixels[..., start : start + size, start : start + size].float()
        # Not rounded, so that the last bits of an exported network's interpolation stay last bits.
        seen.append(interpolate(middle, (side, side), mode="bilinear", align_corners=False))
    cut = torch.stack(seen, dim=1)
    return torch.cat([cut, cut.flip(-1)], dim=1)


def _shrink(image: Image.Image, shorter: int, resample: Image.Resampling) -> Image.Image:
    """The picture with a shorter side of so many pixels, its proportions kept."""
    width, height = image.size
    if width <= height:
        size = shorter, max(shorter, shorter * height // width)
    else:
        size = max(shorter, shorter * width // height), shorter
    return image if image.size == size else image.resize(size, resample)


def _pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@dataclass(frozen=True)
class RandomViews:
    """How each picture is looked at: as a whole first, then in random parts.

    A view depends on the picture's id and on its own number, and on nothing else: neither on the order of the work, nor
    on who does it, nor on how many views there are.

    Attributes:
        number: Random views of a picture.
        smallest: Share of the area of the smallest part.

    Example:
        >>> [view.size for view in RandomViews(2, 0.5).of(Image.new("RGB", (80, 60)), "dog")]
        [(80, 60), (57, 59), (57, 48)]
    """

    number: int
    smallest: float

    @property
    def rows(self) -> int:
        """Views of a picture, the whole one included."""
        return 1 + self.number

    def of(self, picture: Image.Image, image_id: str) -> list[Image.Image]:
        """The picture as it is, and its random views in order."""
        start = int.from_bytes(hashlib.sha256(image_id.encode()).digest()[:8], "little")
        return [picture, *(random_view(picture, (start, view), self.smallest) for view in range(1, self.rows))]
