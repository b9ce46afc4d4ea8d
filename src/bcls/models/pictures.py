"""Pictures as pixels, for models that see them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from bcls._checks import fail
from bcls._padded import Padded
from bcls.data.images.decode import decode, upright_rgb


def pixel_batch(images: Any, prepare: Callable[[Image.Image], Tensor], side: int) -> Padded:
    """Pixels of pictures, ``(N, 3, side, side)``.

    Args:
        images: Paths or PIL images; or pixels, which stay as they are.
        prepare: From a picture to its pixels, ``(3, side, side)``.
        side: The side of the square that the backbone sees.

    Raises:
        ValueError: Something that is no picture, a file that is missing or damaged, or pixels of another shape.
    """
    values = images.values if isinstance(images, Padded) else images
    if isinstance(values, Tensor):
        if values.ndim != 4 or values.shape[1:] != (3, side, side):
            expected = f"pictures, or pixels (N, 3, {side}, {side})"
            fail("images", expected, tuple(values.shape), "this model sees pixels, not features")
        return Padded(values)
    if not isinstance(values, list | tuple):
        fail("images", "a list of paths or PIL images", type(values).__name__, "put pictures, also one alone, in []")
    pixels = [prepare(_opened(one)) for one in values]
    return Padded(torch.stack(pixels) if pixels else torch.zeros(0, 3, side, side, dtype=torch.uint8))


def _opened(image: Any) -> Image.Image:
    if isinstance(image, Image.Image):
        return upright_rgb(image, "images")
    if not isinstance(image, str | Path):
        fail("images", "paths or PIL images", type(image).__name__, "open or convert them first")
    try:
        content = Path(image).read_bytes()
    except OSError as error:
        fail(str(image), "a picture", error.strerror or "a file that does not open", "check the path")
    return decode(content, str(image))
