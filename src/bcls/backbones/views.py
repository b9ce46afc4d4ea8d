"""Square crops of a picture, as a network sees them."""

from typing import Literal, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bcls._checks import check_choice

View: TypeAlias = Literal["whole", "centre", "ten-crop"]
#: Views and the number of crops that each has.
VIEWS: dict[str, int] = {"whole": 1, "centre": 1, "ten-crop": 10}


def crops(
    image: Image.Image, side: int, view: View = "whole", resample: Image.Resampling = Image.Resampling.BICUBIC
) -> Tensor:
    """Cut square crops out of a picture.

    ``"whole"`` stretches the whole picture to the square. ``"centre"`` resizes it so that its shorter side is
    ``side * 256 / 224`` and takes the middle. ``"ten-crop"`` resizes it the same way and takes the four corners, the
    middle, and the mirror image of each: upper left, upper right, lower left, lower right, middle, and again mirrored.

    Args:
        image: A picture, in mode RGB.
        side: Side of a crop, in pixels.
        view: Which crops.
        resample: Filter to resize with.

    Returns:
        ``(V, 3, side, side)`` uint8.

    Raises:
        ValueError: There is no such view.

    Example:
        >>> crops(Image.new("RGB", (40, 30), "red"), 8, "ten-crop").shape
        torch.Size([10, 3, 8, 8])
    """
    check_choice("view", view, VIEWS)
    if image.mode != "RGB":
        image = image.convert("RGB")
    if view == "whole":
        return _pixels(image if image.size == (side, side) else image.resize((side, side), resample))[None]
    pixels = _pixels(_shrink(image, round(side * 256 / 224), resample))
    down, right = pixels.shape[1] - side, pixels.shape[2] - side
    middle = round(down / 2), round(right / 2)
    corners = [] if view == "centre" else [(0, 0), (0, right), (down, 0), (down, right)]
    cut = torch.stack([pixels[:, top : top + side, left : left + side] for top, left in [*corners, middle]])
    return cut if view == "centre" else torch.cat([cut, cut.flip(3)])


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
