"""Decoding of image files to RGB, and reproducible random crops."""

import io
import math
import re
import struct
import zlib
from importlib.util import find_spec
from itertools import islice
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from bcls._core.errors import fail, reason_of, refuse_damage
from bcls._core.extras import MissingExtraError, require

_AVIF = "PIL.AvifImagePlugin"  # since Pillow 11.3
#: Formats that Pillow decodes itself; it passes EPS and WMF to other programs. Those with a weak signature are last.
FORMATS = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", *["AVIF"] * (find_spec(_AVIF) is not None)),
    *("BLP", "DCX", "DDS", "FITS", "FLI", "FTEX", "ICNS", "ICO", "IM", "MSP", "PCX", "PIXAR", "PSD", "QOI", "SGI"),
    *("SUN", "XBM", "XPM", "CUR", "GBR", "DIB", "PCD", "TGA"),
)
#: Default limit for the number of pixels. Small files can unpack to gigabytes.
MAX_PIXELS = 80_000_000
#: Errors of Pillow's readers for damaged files.
_DAMAGE = (
    *(OSError, SyntaxError, EOFError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError),
    *(RuntimeError, MemoryError, struct.error, zlib.error),
)
_COPY_AGAIN = "copy it again or leave it out"
#: Beginnings of RAW files of Fujifilm, Olympus, Panasonic and Sigma; most others are TIFF files.
_RAW = (b"FUJIFILMCCD-RAW", b"IIRO", b"IIRS", b"MMOR", b"IIU\0", b"FOVb")
_DNG_VERSION, _SUB_IFDS, _PHOTOMETRIC, _SENSOR_DATA = 0xC612, 0x14A, 0x106, (32803, 34892)
_SAMPLE_FORMAT = 0x153
#: JPEG files in a RAW file that are considered.
_PREVIEWS = 64


class UnsupportedImageError(ValueError):
    """An image that cannot be decoded here: HEIC without pillow-heif, or RAW without a preview."""


def decode(content: bytes, where: str, *, max_pixels: int = MAX_PIXELS, side: int = 0) -> Image.Image:
    """Decode an image file completely.

    The result is always RGB: larger values and floats are scaled to 8 bits, transparent pixels become white, CMYK is
    converted, an animation gives its first frame, a RAW file its largest JPEG preview, and the orientation in the EXIF
    data is applied. HEIC files need the extra ``heif``.

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
        image = open_image(content, where)
    except Image.DecompressionBombError:  # Pillow's own limit, which applies to the whole process
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        if limit < max_pixels:
            fail(where, f"at most {limit} pixels, Pillow's limit", "more", "raise PIL.Image.MAX_IMAGE_PIXELS as well")
        _too_large(where, "many more", max_pixels)
    except UnsupportedImageError:
        raise
    except UnidentifiedImageError:
        fail(where, "an image", f"{len(content)} bytes of something else", _COPY_AGAIN)
    except _DAMAGE as error:
        fail(where, "a complete image", f"a damaged one ({reason_of(error)})", _COPY_AGAIN)
    if image.width * image.height > max_pixels:
        _too_large(where, f"{image.width} x {image.height}", max_pixels)
    with refuse_damage(where, "a complete image", _COPY_AGAIN, *_DAMAGE):
        frames = int(getattr(image, "n_frames", 1))
        if side:
            image.draft(None, (2 * side, 2 * side))  # only JPEG has it; others stay as they are
    return upright_rgb(image, where), image.format or "", frames


def open_image(content: bytes, where: str) -> Image.Image:
    """Open an image file without reading the pixels. A RAW file gives its largest JPEG preview with its own EXIF data.

    Args:
        content: The file's bytes.
        where: Name of the file, for error messages.

    Raises:
        UnsupportedImageError: A HEIC file without pillow-heif, or a RAW file without a preview.
        OSError: It is not an image; damaged files raise other errors of Pillow as well.
    """
    brands = content[8:64] if content[4:8] == b"ftyp" else b""
    if brands.startswith((b"hei", b"hev")) or (brands.startswith((b"mif1", b"msf1")) and b"avif" not in brands):
        try:
            require("pillow_heif", "heif", "HEIC").register_heif_opener()
        except MissingExtraError:
            fail(where, "the package pillow-heif, for HEIC", "none", 'pip install "bcls[heif]"', UnsupportedImageError)
        return Image.open(io.BytesIO(content), formats=["HEIF"])
    if not _is_raw(content):
        return Image.open(io.BytesIO(content), formats=FORMATS)
    previews = []
    for found in islice(re.finditer(rb"\xff\xd8\xff[\xc0-\xfe]", content), _PREVIEWS):
        try:
            previews.append(Image.open(io.BytesIO(content[found.start() :]), formats=["JPEG"]))
        except _DAMAGE:  # sensor data, which may be a JPEG of more than 8 bits
            continue
    if not previews:
        fail(where, "a RAW file with a JPEG preview", "none", "convert it to JPEG", UnsupportedImageError)
    best = max(previews, key=lambda one: one.width * one.height)
    own = Image.Exif()
    own.load(best.info.get("exif", b""))
    start = content.find(b"CMT1") + 4 if brands else 0  # the EXIF data of Canon's CR3
    header = {b"II": b"II*\0", b"MM": b"MM\0*"}.get(content[start : start + 2])
    if ExifTags.Base.Orientation not in own and header:
        best.info["exif"] = header + content[start + 4 :]
    return best


def image_size(content: bytes, where: str) -> tuple[int, int]:
    """Return width and height of an image as :func:`decode` returns it, without reading its pixels.

    Args:
        content: The file's bytes.
        where: Name of the file, for error messages.

    Raises:
        ValueError: The bytes are not an image, or the image is damaged or too large.
    """
    damage = refuse_damage(where, "an image", _COPY_AGAIN, *_DAMAGE, Image.DecompressionBombError)
    with damage, open_image(content, where) as image:
        # Pillow turns TIFF files itself.
        orientation = 1 if image.format == "TIFF" else image.getexif().get(ExifTags.Base.Orientation, 1)
        return (image.height, image.width) if orientation in range(5, 9) else image.size


def _is_raw(content: bytes) -> bool:
    if content.startswith(_RAW) or content[4:12] == b"ftypcrx ":
        return True
    if not content.startswith((b"II*\0", b"MM\0*")):
        return False
    tags = Image.Exif()
    try:
        tags.load(content)
        reduced = tags.get(ExifTags.Base.NewSubfileType) == 1 and _SUB_IFDS in tags
        sensor = _DNG_VERSION in tags or tags.get(_PHOTOMETRIC) in _SENSOR_DATA
    except _DAMAGE:
        return False
    return content[8:10] == b"CR" or reduced or sensor


def upright_rgb(image: Image.Image, where: str) -> Image.Image:
    """Convert an opened image as :func:`decode` does: RGB, with the EXIF orientation applied.

    Args:
        image: An image of any mode.
        where: Name of the image, for error messages.

    Raises:
        ValueError: Its file is truncated or damaged, which is detected when the pixels are read.
    """
    with refuse_damage(where, "a complete image", _COPY_AGAIN, *_DAMAGE):
        image.load()
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        image = _to_rgb(image)
        if orientation == 1:
            return image
        image.getexif()[ExifTags.Base.Orientation] = orientation
        return ImageOps.exif_transpose(image)


def _too_large(where: str, got: str, max_pixels: int) -> NoReturn:
    fail(where, f"at most {max_pixels} pixels", got, "shrink the image, or raise the limit if you trust it")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith(("I", "F")):  # Pillow would clip larger values to white
        return Image.fromarray(_to_bytes(image)).convert("RGB")
    if "A" in image.mode or "transparency" in image.info:
        transparent = image.convert("RGBA")
        white = Image.new("RGBA", transparent.size, "white")
        return Image.alpha_composite(white, transparent).convert("RGB")
    return image.convert("RGB")


def _to_bytes(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Values of a gray image with more than 8 bits, scaled to 8 bits.

    White is 1 for floats of at most 1, else 255, 65535, or the largest value, and the largest value if one is negative.
    """
    values = np.array(image)
    if image.mode == "I" and getattr(image, "tag_v2", {}).get(_SAMPLE_FORMAT, (1,))[0] == 1:
        values = values.view(np.uint32)  # Pillow reads unsigned TIFF files as signed
    floats = values.dtype.kind == "f"
    if floats:
        np.nan_to_num(values, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = min(float(values.min(initial=0)), 0.0), float(values.max(initial=0))
    usual = (1.0,) * floats + (255.0, 65535.0) if low == 0 else ()
    white = next((one for one in usual if high <= one), high)
    # In blocks of rows, since copies of an image of 80 million pixels take gigabytes.
    scaled = np.empty(values.shape, np.uint8)
    for start in range(0, len(values), 256):
        block = values[start : start + 256].astype(np.float64)
        scaled[start : start + 256] = (block - low) * (255 / (white - low))
    return scaled


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
