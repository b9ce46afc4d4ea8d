"""Decoding of image files to RGB, and reproducible random crops."""

import io
import math
import struct
import zlib
from typing import NoReturn

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from bcls._core.errors import fail

#: Supported file formats. Pillow knows dozens more, and passes some of them, such as EPS, to other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
#: Default limit for the number of pixels. Small files can unpack to gigabytes.
MAX_PIXELS = 80_000_000
#: Errors of Pillow's readers for damaged files.
_DAMAGE = (
    *(OSError, SyntaxError, EOFError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError),
    *(RuntimeError, MemoryError, struct.error, zlib.error),
)
_COPY_AGAIN = "copy it again or leave it out"


def decode(content: bytes, where: str, *, max_pixels: int = MAX_PIXELS, side: int = 0) -> Image.Image:
    """Decode an image file completely.

    The result is always RGB: 16-bit values are scaled to 8 bits, transparent pixels become white, CMYK is converted,
    an animation gives its first frame, and the orientation in the EXIF data is applied.

    Args:
        content: The file's bytes.
        where: Name of the file, for error messages.
        max_pixels: Images with more pixels are refused before they are unpacked.
        side: If the image will be resized to at most this many pixels a side: JPEG files are decoded at a half, a
            quarter or an eighth of their size, as long as both sides keep twice as many pixels. 0 for the full size.

    Returns:
        The image, in mode RGB.

    Raises:
        ValueError: The bytes are not an image, are truncated or damaged, or the image is too large.

    Example:
        >>> decode(b"", "a.jpg")
        Traceback (most recent call last):
        ...
        ValueError: `a.jpg`: expected an image, got an empty file; copy it again or leave it out
    """
    return decode_with_format(content, where, max_pixels=max_pixels, side=side)[0]


def decode_with_format(
    content: bytes, where: str, *, max_pixels: int = MAX_PIXELS, side: int = 0
) -> tuple[Image.Image, str, int]:
    """Return the RGB image, the name of its file format such as ``"JPEG"``, and its number of frames."""
    if not content:
        fail(where, "an image", "an empty file", _COPY_AGAIN)
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:  # Pillow's own limit, which applies to the whole process
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        if limit < max_pixels:
            fail(where, f"at most {limit} pixels, Pillow's limit", "more", "raise PIL.Image.MAX_IMAGE_PIXELS as well")
        _too_large(where, "many more", max_pixels)
    except UnidentifiedImageError:
        fail(where, "an image", f"{len(content)} bytes of something else", _COPY_AGAIN)
    except _DAMAGE as error:
        _damaged(where, error)
    if image.width * image.height > max_pixels:
        _too_large(where, f"{image.width} x {image.height}", max_pixels)
    try:
        frames = int(getattr(image, "n_frames", 1))
        if side:
            image.draft(None, (2 * side, 2 * side))  # only JPEG has it; others stay as they are
    except _DAMAGE as error:
        _damaged(where, error)
    return upright_rgb(image, where), image.format or "", frames


def upright_rgb(image: Image.Image, where: str) -> Image.Image:
    """Convert an opened image as :func:`decode` does: RGB, with the EXIF orientation applied.

    Args:
        image: An image of any mode.
        where: Name of the image, for error messages.

    Raises:
        ValueError: Its file is truncated or damaged, which is detected when the pixels are read.
    """
    try:
        image.load()
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            image = ImageOps.exif_transpose(image)
        return _to_rgb(image)
    except _DAMAGE as error:
        _damaged(where, error)


def _damaged(where: str, error: Exception) -> NoReturn:
    fail(where, "a complete image", f"a damaged one ({error})", _COPY_AGAIN)


def _too_large(where: str, got: str, max_pixels: int) -> NoReturn:
    fail(where, f"at most {max_pixels} pixels", got, "shrink the image, or raise the limit if you trust it")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):  # Pillow would clip 16-bit values to white
        values = np.array(image)
        scale = 257 if values.max(initial=0) > 255 else 1
        # In place, since copies of an image of 80 million pixels take gigabytes.
        np.clip(values, 0, min(255 * scale, np.iinfo(values.dtype).max), out=values)
        values //= values.dtype.type(scale)
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if "A" in image.mode or "transparency" in image.info:
        transparent = image.convert("RGBA")
        white = Image.new("RGBA", transparent.size, "white")
        return Image.alpha_composite(white, transparent).convert("RGB")
    return image.convert("RGB")


def random_view(image: Image.Image, seed: tuple[int, ...], smallest: float) -> Image.Image:
    """Return a random crop of an image, mirrored with probability 0.5.

    The area is uniform between ``smallest`` and the whole, the aspect ratio log-uniform between 3:4 and 4:3. If no crop
    fits in ten tries, the whole image is used.

    Args:
        image: The image.
        seed: Determines the crop completely; for example the seed of the run, the epoch and the caption.
        smallest: Smallest area of a crop, as a fraction of the image's area.

    Example:
        >>> image = Image.new("RGB", (100, 80))
        >>> random_view(image, (1, 0, 5), 0.5).size == random_view(image, (1, 0, 5), 0.5).size
        True
    """
    rng = np.random.default_rng(seed)
    view = image.crop(_random_box(image.size, rng, smallest))
    return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else view


def _random_box(size: tuple[int, int], rng: np.random.Generator, smallest: float) -> tuple[int, int, int, int]:
    width, height = size
    for _ in range(10):
        area = width * height * rng.uniform(smallest, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = int(rng.integers(width - wide + 1)), int(rng.integers(height - tall + 1))
            return left, top, left + wide, top + tall
    return 0, 0, width, height
