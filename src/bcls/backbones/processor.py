"""How a model of the ``transformers`` library wants its pictures: size, colours, filter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from PIL import Image

from bcls._checks import check_number, check_numbers, fail
from bcls.data.text_files import read_json

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_REMEDY = "copy the model's files again"


@dataclass(frozen=True)
class Processing:
    """Size and colours of a picture, the latter on the scale 0..255."""

    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: Image.Resampling


@dataclass(frozen=True)
class Colours:
    """What becomes of a value from 0 to 255: ``(value * factor - mean) / std``."""

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


def read_processing(path: Path | None, image_size: object) -> Processing:
    """Read ``preprocessor_config.json``.

    Args:
        path: The file, or a ``processor_config.json`` that holds the same one level deeper. Without one, the pictures
            have the side that the model's own config says, 224 where it says none, ImageNet's mean and deviation, and
            the bicubic filter.
        image_size: The side that the model's config says.

    Raises:
        ValueError: The file is damaged, pictures are not to be square, or are normalised in a way that is not known
            here.
    """
    where = str(path or "config.json")
    content = read_json(path) if path else {}
    settings = content.get("image_processor", content) if isinstance(content, dict) else content
    if not isinstance(settings, dict):
        fail(where, "settings by name", type(settings).__name__, _REMEDY)
    wanted = settings.get("size", image_size)
    if settings.get("do_center_crop", "crop_size" in settings):
        wanted = settings.get("crop_size") or wanted
    colours = read_colours(where, settings, _IMAGENET_MEAN, _IMAGENET_STD)
    return Processing(
        square_side(where, 224 if wanted is None else wanted),
        # The library works on pixels times the factor, we on pixels as they are.
        tuple(value / colours.factor for value in colours.mean),
        tuple(value / colours.factor for value in colours.std),
        read_filter(where, settings),
    )


def read_colours(where: str, settings: Mapping[str, Any], mean: Sequence[float], std: Sequence[float]) -> Colours:
    """What a processor does to the values of pixels.

    Args:
        where: The file, for messages.
        settings: The processor's.
        mean: Its mean of red, green and blue where it tells none.
        std: Its deviation where it tells none.

    Raises:
        ValueError: Values are normalised in a way that is not known here, or are no numbers.
    """
    if settings.get("rescale_offset"):
        fail(where, "values scaled by one factor", "rescale_offset", "this kind of model is not supported")
    factor = 1.0
    if settings.get("do_rescale", True):
        factor = check_number(f"{where}: rescale_factor", settings.get("rescale_factor", 1 / 255), _REMEDY, above=0)
    if not settings.get("do_normalize", True):
        return Colours(factor, (0.0,) * 3, (1.0,) * 3)
    mean = check_numbers(f"{where}: image_mean", settings.get("image_mean", mean), _REMEDY, count=3)
    std = check_numbers(f"{where}: image_std", settings.get("image_std", std), _REMEDY, count=3)
    for value in std:
        check_number(f"{where}: image_std", value, _REMEDY, above=0)
    return Colours(factor, tuple(mean), tuple(std))


def read_filter(where: str, settings: Mapping[str, Any]) -> Image.Resampling:
    """The filter that pictures are resized with; bicubic where none is told."""
    number = settings.get("resample", Image.Resampling.BICUBIC)
    try:
        return Image.Resampling(number)
    except ValueError:
        fail(f"{where}: resample", "the number of one of Pillow's filters", repr(number), _REMEDY)


def read_size(where: str, size: object) -> tuple[int, int | None]:
    """Height and width of a size as the library writes it; of ``shortest_edge`` that and ``None``.

    Args:
        where: The setting, for messages.
        size: A number for both, a pair, or a mapping with ``height`` and ``width`` or with ``shortest_edge``.

    Raises:
        ValueError: It is something else.
    """
    short = size.get("shortest_edge") if isinstance(size, Mapping) else None
    if _is_side(short):
        return short, None
    sides: object = size
    if isinstance(size, Mapping):
        sides = size.get("height"), size.get("width")
    elif isinstance(size, int):
        sides = size, size
    if not isinstance(sides, list | tuple) or len(sides) != 2 or not all(map(_is_side, sides)):
        fail(where, "a size in pixels", repr(size), _REMEDY)
    return sides[0], sides[1]


def square_side(where: str, size: object) -> int:
    """The side of a square; see :func:`read_size`."""
    height, width = read_size(where, size)
    if width not in (None, height):
        fail(where, "square pictures of a known side", repr(size), "use a model for square pictures")
    return height


def _is_side(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
