"""Bytes of a picture file to an RGB picture, or one line that says what is wrong with them.

Random crops and flips of pictures, the same ones whenever the same seed comes by again.
"""

import io
import math
import struct
import zlib
from typing import NoReturn

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from bcls._core.errors import fail

#: Kinds of files that are read. Pillow knows dozens more, and hands some of them, such as EPS, to other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
#: Most pixels that a picture may have. Small files can unpack to gigabytes.
MAX_PIXELS = 80_000_000
#: What Pillow's readers raise on damaged files, each in its own way.
_DAMAGE = (
    OSError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
)


def decode(content: bytes, where: str, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode a picture completely.

    Every kind becomes RGB: 16-bit values are scaled down, transparent parts become white, CMYK is converted, the first
    frame stands for an animation, and the orientation that a camera noted is applied.

    Args:
        content: The file's bytes.
        where: Name of the file, for messages.
        max_pixels: Pictures with more pixels are refused before they are unpacked.

    Returns:
        The picture, in mode RGB.

    Raises:
        ValueError: The bytes are no picture, are cut short or damaged, or the picture is too large.

    Example:
        >>> decode(b"", "a.jpg")
        Traceback (most recent call last):
        ...
        ValueError: `a.jpg`: expected a picture, got an empty file; copy it again or leave it out
    """
    return _to_rgb(_load(content, where, max_pixels)[0])


def decode_with_format(content: bytes, where: str, *, max_pixels: int = MAX_PIXELS) -> tuple[Image.Image, str, int]:
    """The RGB picture, the name of its file format such as ``"JPEG"``, and its number of frames."""
    image, file_format, frames = _load(content, where, max_pixels)
    return _to_rgb(image), file_format, frames


def upright_rgb(image: Image.Image, where: str) -> Image.Image:
    """An opened picture as :func:`decode` gives it: the same pixels, whoever opened the file.

    Args:
        image: A picture of any mode.
        where: What the picture is called in messages.

    Raises:
        ValueError: Its file is cut short or damaged, which shows only when its pixels are read.
    """
    try:
        image.load()
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            image = ImageOps.exif_transpose(image)
    except _DAMAGE as error:
        fail(where, "a whole picture", f"a damaged one ({error})", "copy it again or leave it out")
    return _to_rgb(image)


def _load(content: bytes, where: str, max_pixels: int) -> tuple[Image.Image, str, int]:
    if not content:
        fail(where, "a picture", "an empty file", "copy it again or leave it out")
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:  # Pillow's own limit, which holds for everybody in the process
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        if limit < max_pixels:
            fail(where, f"at most {limit} pixels, Pillow's limit", "more", "raise PIL.Image.MAX_IMAGE_PIXELS as well")
        _too_large(where, "many more", max_pixels)
    except UnidentifiedImageError:
        fail(where, "a picture", f"{len(content)} bytes of something else", "copy it again or leave it out")
    except _DAMAGE as error:
        fail(where, "a whole picture", f"a damaged one ({error})", "copy it again or leave it out")
    if image.width * image.height > max_pixels:
        _too_large(where, f"{image.width} x {image.height}", max_pixels)
    try:
        image.load()
        # Reads the notes of the camera, which may be damaged as well.
        return ImageOps.exif_transpose(image), image.format or "", int(getattr(image, "n_frames", 1))
    except _DAMAGE as error:
        fail(where, "a whole picture", f"a damaged one ({error})", "copy it again or leave it out")


def _too_large(where: str, got: str, max_pixels: int) -> NoReturn:
    fail(where, f"at most {max_pixels} pixels", got, "shrink the picture, or raise the limit if you trust it")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):  # Pillow would clip 16-bit values to white
        values = np.array(image)
        scale = 257 if values.max(initial=0) > 255 else 1
        # In place: a picture of 80 million pixels takes gigabytes in the copies of one expression.
        np.clip(values, 0, min(255 * scale, np.iinfo(values.dtype).max), out=values)
        values //= values.dtype.type(scale)
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if "A" in image.mode or "transparency" in image.info:
        clear = image.convert("RGBA")
        paper = Image.new("RGBA", clear.size, "white")
        return Image.alpha_composite(paper, clear).convert("RGB")
    return image.convert("RGB")


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
