"""How a model of the ``transformers`` library wants its pictures: size, colours, filter."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from bcls._checks import fail

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Processing:
    """Size and colours of a picture, the latter on the scale 0..255."""

    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: Image.Resampling


def read_processing(path: Path | None, image_size: object) -> Processing:
    """Read ``preprocessor_config.json``.

    Args:
        path: The file, or a ``processor_config.json`` that holds the same one level deeper. Without one, the pictures
            have the side that the model's own config says, 224 where it says none, ImageNet's mean and deviation, and
            the bicubic filter.
        image_size: The side that the model's config says.

    Raises:
        ValueError: Pictures are not to be square, or are normalised in a way that is not known here.
    """
    where = str(path or "config.json")
    content = json.loads(path.read_text(encoding="utf-8")) if path else {}
    settings: dict[str, Any] = content.get("image_processor", content)
    wanted = settings.get("size", image_size)
    if settings.get("do_center_crop", "crop_size" in settings):
        wanted = settings.get("crop_size") or wanted
    if settings.get("rescale_offset"):
        fail(where, "values scaled by one factor", "rescale_offset", "this kind of model is not supported")
    # The library works on pixels times the factor, we on pixels as they are.
    factor = float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 1.0
    mean = settings.get("image_mean", _IMAGENET_MEAN) if settings.get("do_normalize", True) else (0.0,) * 3
    std = settings.get("image_std", _IMAGENET_STD) if settings.get("do_normalize", True) else (1.0,) * 3
    return Processing(
        square_side(where, 224 if wanted is None else wanted),
        tuple(float(value) / factor for value in mean),
        tuple(float(value) / factor for value in std),
        Image.Resampling(settings.get("resample", Image.Resampling.BICUBIC)),
    )


def square_side(where: str, size: object) -> int:
    """The side of a size as the library writes it: a number, a pair, ``height`` and ``width``, or ``shortest_edge``."""
    sides: object = size
    if isinstance(size, Mapping):
        sides = size.get("shortest_edge", (size.get("height"), size.get("width")))
    if isinstance(sides, list | tuple) and len(sides) == 2 and sides[0] == sides[1]:
        sides = sides[0]
    if not isinstance(sides, int) or sides < 1:
        fail(where, "square pictures of a known side", repr(size), "use a model for square pictures")
    return sides
