"""Reads every picture once: can it be decoded, what is it, what does it look like?"""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt
from PIL import Image

from bcls._progress import progress
from bcls.data.check.findings import Finding
from bcls.data.dataset import Dataset
from bcls.data.images.decode import decode_with_format
from bcls.data.records import ImageRecord

#: Endings that go with a format, as Pillow names it.
_ENDINGS = {
    "JPEG": {".jpg", ".jpeg"},
    "MPO": {".jpg", ".jpeg"},
    "PNG": {".png"},
    "WEBP": {".webp"},
    "GIF": {".gif"},
    "BMP": {".bmp"},
    "TIFF": {".tif", ".tiff"},
}
#: Side of the grey thumbnail that confirms what the hash suggests.
SIDE = 16


@dataclass(frozen=True)
class Look:
    """What a picture looks like: checksum of its file, difference hash, a small grey copy."""

    image: ImageRecord
    sha256: str
    hash: int
    thumbnail: npt.NDArray[np.uint8]


def look_at_all(dataset: Dataset, *, workers: int, max_pixels: int) -> tuple[list[Look], list[Finding]]:
    """Read the pictures of a dataset, several at a time.

    Args:
        dataset: The dataset.
        workers: Threads; 0 for one a processor.
        max_pixels: Pictures with more pixels are refused.

    Returns:
        The looks of those that can be read, in the order of the images, and what was found.
    """
    looks: list[Look] = []
    findings: list[Finding] = []

    def look(image: ImageRecord) -> tuple[Look | None, list[Finding]]:
        return _look(dataset, image, max_pixels)

    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
    try:
        with progress("reading pictures", len(dataset.images)) as step:
            for done, (seen, found) in enumerate(pool.map(look, dataset.images), start=1):
                looks += [seen] if seen is not None else []
                findings += found
                step(done)
    finally:
        pool.shutdown(cancel_futures=True)
    return looks, findings


def difference_hash(image: Image.Image) -> int:
    """64 bits that say where a small grey copy gets brighter from left to right.

    Example:
        >>> difference_hash(Image.new("RGB", (40, 30), "red"))
        0
    """
    grey = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    return int.from_bytes(np.packbits(grey[:, 1:] > grey[:, :-1]).tobytes(), "big")


def _look(dataset: Dataset, image: ImageRecord, max_pixels: int) -> tuple[Look | None, list[Finding]]:
    try:
        file = dataset.file_of(image.image_id)
        content = dataset.read_bytes(image.image_id)
    except FileNotFoundError as error:  # other errors are the machine's and say nothing about the picture
        return None, [Finding("missing-image", image.image_id, str(error.strerror or error))]
    except ValueError as error:
        return None, [Finding("damaged-image", image.image_id, str(error))]
    try:
        picture, file_format, frames = decode_with_format(content, file, max_pixels=max_pixels)
    except ValueError as error:
        return None, [Finding("damaged-image", image.image_id, str(error))]
    thumbnail = picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    digest = hashlib.sha256(content).hexdigest()
    look = Look(image, digest, difference_hash(picture), np.asarray(thumbnail))
    return look, list(_oddities(image, file, file_format, frames))


def _oddities(image: ImageRecord, file: str, file_format: str, frames: int) -> Iterator[Finding]:
    ending = PurePosixPath(file).suffix.lower()
    if ending not in _ENDINGS.get(file_format, {ending}):
        yield Finding("wrong-ending", image.image_id, f"{file} is a {file_format} file")
    # The second picture of an MPO file is a preview or the other eye's view.
    if frames > 1 and file_format != "MPO":
        yield Finding("animated", image.image_id, f"{file} has {frames} frames")
