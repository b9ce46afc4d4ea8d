"""Random crops and flips of pictures, the same ones whenever the same seed comes by again."""

import math

import numpy as np
from PIL import Image

#: Height to width of a crop, as is usual.
_RATIOS = (3 / 4, 4 / 3)
_TRIES = 10


def random_view(picture: Image.Image, seed: tuple[int, ...], smallest: float) -> Image.Image:
    """A random part of a picture, mirrored half of the time.

    The area is drawn evenly between ``smallest`` and the whole, the shape between 3:4 and 4:3. Where no such part
    fits in ten tries, the whole picture is taken.

    Args:
        picture: The picture.
        seed: What the draw depends on, and nothing else, such as seed of the run, epoch and caption.
        smallest: Share of the picture's area.

    Example:
        >>> picture = Image.new("RGB", (100, 80))
        >>> random_view(picture, (1, 0, 5), 0.5).size == random_view(picture, (1, 0, 5), 0.5).size
        True
    """
    draw = np.random.default_rng(seed)
    view = picture.crop(_box(picture.size, draw, smallest))
    return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.random() < 0.5 else view


def _box(size: tuple[int, int], draw: np.random.Generator, smallest: float) -> tuple[int, int, int, int]:
    width, height = size
    low, high = (math.log(ratio) for ratio in _RATIOS)
    for _ in range(_TRIES):
        area = width * height * draw.uniform(smallest, 1.0)
        ratio = math.exp(draw.uniform(low, high))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = int(draw.integers(width - wide + 1)), int(draw.integers(height - tall + 1))
            return left, top, left + wide, top + tall
    return 0, 0, width, height
