"""Reading and resizing of images, and the preprocessing settings of transformers models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt
from PIL import Image

from bcls._core.errors import check_number, check_numbers, fail
from bcls._core.extras import require
from bcls.data.images import decode, upright_rgb
from bcls.data.text_files import read_json

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_HINT = "copy the files of the model again"
#: Files with the settings of an image processor.
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


class Processing(NamedTuple):
    """Size of the input image and normalization of its colors, on the scale 0..255."""

    side: int
    mean: list[float]
    std: list[float]
    resample: Image.Resampling


def read_image(image: Any) -> Image.Image:
    """An RGB image from a PIL image or a path.

    Raises:
        ValueError: It is something else, or a missing or damaged file.
    """
    if isinstance(image, Image.Image):
        return upright_rgb(image, "images")
    if not isinstance(image, str | Path):
        fail("images", "paths or PIL images", type(image).__name__, "open or convert them first")
    try:
        content = Path(image).read_bytes()
    except OSError as error:
        fail(str(image), "an image", error.strerror or "a file that cannot be opened", "check the path")
    return decode(content, str(image))


@dataclass(frozen=True)
class Resize:
    """How images are resized.

    Attributes:
        height: Height in pixels; with ``width`` 0, length of the shorter side.
        width: Width in pixels; 0 to keep the aspect ratio.
        crop: Height and width of the center crop; empty for none.
        resample: Name of Pillow's filter, such as ``"bicubic"``.

    Example:
        >>> Resize(10, 0, (8, 8)).pixels(Image.new("RGB", (40, 20))).shape
        (3, 8, 8)
    """

    height: int
    width: int
    crop: tuple[int, ...] = ()
    resample: str = "bicubic"

    def pixels(self, image: Image.Image) -> npt.NDArray[np.uint8]:
        """Resize and crop an image of any mode and size: ``(3, H, W)``, contiguous."""
        image = image if image.mode == "RGB" else image.convert("RGB")
        height, width = self.height, self.width
        if not width:
            width, height = (int(height * side / min(image.size)) for side in image.size)
        if image.size != (width, height):
            image = image.resize((width, height), resample=Image.Resampling[self.resample.upper()])
        if self.crop:
            top, left = (height - self.crop[0]) // 2, (width - self.crop[1]) // 2
            image = image.crop((left, top, left + self.crop[1], top + self.crop[0]))
        return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def find_file(source: str, *names: str) -> Path | None:
    """The first of some files that a transformers model has, in its folder or on the hub; ``None`` without one."""
    utils = require("transformers.utils", "photos", "a model of the transformers library")
    found = (utils.cached_file(source, name, _raise_exceptions_for_missing_entries=False) for name in names)
    return next((Path(path) for path in found if path is not None), None)


def read_settings(path: Path | None) -> dict[str, Any]:
    """Read a JSON file with settings; none without a file.

    Args:
        path: The file. ``processor_config.json`` has the settings of ``preprocessor_config.json`` under
            ``image_processor``.

    Raises:
        ValueError: The file is damaged.
    """
    content = read_json(path) if path else {}
    settings = content.get("image_processor", content) if isinstance(content, dict) else content
    if not isinstance(settings, dict):
        fail(str(path), "a JSON object with settings", type(settings).__name__, _HINT)
    return settings


def read_processing(path: Path | None, image_size: object) -> Processing:
    """Read size, normalization and filter of an image processor.

    Args:
        path: The file, see :func:`read_settings`. Without a file, the side is ``image_size`` (224 if that is
            ``None``), mean and deviation are ImageNet's, and the filter is bicubic.
        image_size: The size in the model's own config.

    Raises:
        ValueError: The file is damaged, the input is not square, or the normalization is not supported.
    """
    where, settings = str(path or "config.json"), read_settings(path)
    size = settings.get("size", image_size)
    if settings.get("do_center_crop", "crop_size" in settings):
        size = settings.get("crop_size") or size
    side = square_side(where, 224 if size is None else size)
    return Processing(side, *read_colours(where, settings, _IMAGENET_MEAN, _IMAGENET_STD), read_filter(where, settings))


def read_colours(
    where: str, settings: Mapping[str, Any], mean: Sequence[float], std: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Read the normalization of an image processor.

    Args:
        where: The file, for error messages.
        settings: Settings of the processor.
        mean: Default mean of red, green and blue.
        std: Default deviation.

    Returns:
        Mean and deviation of pixel values from 0 to 255.

    Raises:
        ValueError: The normalization is not supported, or a value is not a number.
    """
    if settings.get("rescale_offset"):
        fail(where, "values scaled by one factor", "rescale_offset", "use another model")
    factor = 1.0
    if settings.get("do_rescale", True):
        factor = check_number(f"{where}: rescale_factor", settings.get("rescale_factor", 1 / 255), _HINT, above=0)
    if not settings.get("do_normalize", True):
        return [0.0] * 3, [1 / factor] * 3
    mean = check_numbers(f"{where}: image_mean", settings.get("image_mean", mean), _HINT, count=3)
    std = check_numbers(f"{where}: image_std", settings.get("image_std", std), _HINT, count=3)
    for value in std:
        check_number(f"{where}: image_std", value, _HINT, above=0)
    # transformers multiplies pixels by the factor first; these are for the pixels themselves.
    return [value / factor for value in mean], [value / factor for value in std]


def read_filter(where: str, settings: Mapping[str, Any]) -> Image.Resampling:
    """Read the resize filter of an image processor; bicubic by default."""
    number = settings.get("resample", Image.Resampling.BICUBIC)
    try:
        return Image.Resampling(number)
    except ValueError:
        fail(f"{where}: resample", "the number of one of Pillow's filters", repr(number), _HINT)


def read_size(where: str, size: object) -> tuple[int, int | None]:
    """Parse a size as transformers writes it into height and width; the width of ``shortest_edge`` is ``None``.

    Args:
        where: The setting, for error messages.
        size: One number, a pair, or a mapping with ``height`` and ``width`` or with ``shortest_edge``.

    Raises:
        ValueError: The size has another form.
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
        fail(where, "a size in pixels", repr(size), _HINT)
    return sides[0], sides[1]


def square_side(where: str, size: object) -> int:
    """Return the side of a square size; see :func:`read_size`."""
    height, width = read_size(where, size)
    if width not in (None, height):
        fail(where, "the size of a square", repr(size), "use a model for square images")
    return height


def _is_side(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
