"""Photo sources of an index (folder, zip, tar or dataset), caption files beside photos, and EXIF data."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import ExifTags

from bcls._core.errors import fail
from bcls.data.dataset import Dataset, open_dataset
from bcls.data.image_files import ImageStore, open_store
from bcls.data.images import open_image
from bcls.data.records import FORMAT, MANIFEST_FILE
from bcls.data.text_files import read_json

#: Larger caption files are ignored.
MAX_BYTES = 16_384
#: Extensions of caption files, in the order in which they are read.
EXTENSIONS = (".txt", ".json")
_KEYS = ("captions", "caption", "text", "description", "title")
_DATES = (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTimeDigitized, ExifTags.Base.DateTime)


class SourceItem(NamedTuple):
    """A photo of a source: its name, and a stamp that changes when its files do."""

    name: str
    stamp: str


class FeatureRows(NamedTuple):
    """Features of images: ``(N, d)`` vectors or ``(N, R, d)`` regions, and the number of valid regions of each."""

    values: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64] | None = None


def open_source(path: Path, features: str | None = None, *, captions: bool = True) -> "PhotoSource":
    """Open a folder, an archive or a dataset.

    Args:
        path: A folder, a zip or tar file, or the folder of a dataset.
        features: Name of features of the dataset that are used instead of its images.
        captions: Whether to read captions.

    Raises:
        FileNotFoundError: ``path`` does not exist.
        ValueError: It is something else, or has no such features.
    """
    path = path.absolute()
    if not path.exists():
        raise FileNotFoundError(2, "no such folder, zip, tar or dataset of photos", str(path))
    if path.is_dir() and (path / MANIFEST_FILE).is_file():
        content = read_json(path / MANIFEST_FILE)
        if isinstance(content, dict) and content.get("format") == FORMAT:
            return DatasetSource(open_dataset(path), features, captions=captions)
    if features is not None:
        fail("features", "a dataset that has features", str(path), "create one with `bcls data import`, or omit it")
    return FileSource(open_store(path), captions=captions)


class FileSource:
    """Photos in a folder, a zip or a tar, with captions in files beside them; threads may read at the same time.

    Args:
        store: The folder or archive.
        captions: Whether to read captions.
    """

    def __init__(self, store: ImageStore, *, captions: bool = True) -> None:
        self.path = store.path
        self._store = store
        self._extensions = EXTENSIONS if captions else ()
        self._archive = None if store.path.is_dir() else store.path.stat()

    def items(self) -> list[SourceItem]:
        """All photos, each once."""
        return [SourceItem(name, self._stamp(name)) for name in dict.fromkeys(self._store.names())]

    def read(self, name: str) -> bytes:
        """Contents of a photo's file, which the index hashes."""
        return self._store.read(name)

    read_image = read

    def captions(self, name: str) -> tuple[str, ...]:
        """Captions in files beside the photo."""
        found: list[str] = []
        for extension in self._extensions:
            beside = str(PurePosixPath(name).with_suffix(extension))
            file = self.path / beside
            if self._archive is None and file.is_file() and file.stat().st_size > MAX_BYTES:
                continue
            with suppress(OSError, ValueError):  # missing or damaged, which says nothing about the photo
                found += read_sidecar(extension, self._store.read(beside))
        return tuple(dict.fromkeys(found))

    def date(self, name: str) -> float:
        """Modification time of the file, or of the archive that contains it, in seconds since 1970."""
        return self._archive.st_mtime if self._archive else (self.path / name).stat().st_mtime

    def path_of(self, name: str) -> str:
        """Path of a photo for display; in an archive, the archive's path followed by the name."""
        return str(self.path / name)

    def features(self, names: Sequence[str]) -> FeatureRows | None:
        """``None``: the images are read."""
        return None

    def _stamp(self, name: str) -> str:
        if self._archive:
            return " ".join((_stamp(self.path), *self._extensions))
        beside = [str(PurePosixPath(name).with_suffix(extension)) for extension in self._extensions]
        return " ".join(_stamp(self.path / one) for one in (name, *beside))


class DatasetSource:
    """Images of a dataset, or their features, with the dataset's captions; same methods as :class:`FileSource`.

    Args:
        dataset: The dataset.
        features: Name of features that are used instead of the images.
        captions: Whether to use captions.
    """

    def __init__(self, dataset: Dataset, features: str | None = None, *, captions: bool = True) -> None:
        self.path = dataset.folder
        self._dataset = dataset
        self._features = None if features is None else dataset.features(features)
        self._with_captions = captions

    def items(self) -> list[SourceItem]:
        """All images."""
        stamps = {number: _stamp(self._holder(number)) for number in range(max(1, len(self._dataset.manifest.images)))}
        found = []
        for name, row in self._rows.items():
            image = self._dataset.images[row]
            stamp = stamps.get(image.source, "")
            if (holder := self._holder(image.source)).is_dir() and image.file is not None:
                stamp = _stamp(holder / image.file)
            text_hash = hashlib.sha256("\n".join(self._texts.get(image.image_id, ())).encode()).hexdigest()[:16]
            found.append(SourceItem(name, f"{stamp} {text_hash}"))
        return found

    def read(self, name: str) -> bytes:
        """Contents of an image's file, or the bytes of its features, which the index hashes."""
        if self._features is not None:
            return np.ascontiguousarray(self._features[self._row(name)]).tobytes()
        return self.read_image(name)

    def read_image(self, name: str) -> bytes:
        """Contents of an image's file.

        Raises:
            ValueError: The dataset has features only.
            OSError: The file is missing.
        """
        return self._dataset.read_bytes(self._dataset.image_ids[self._row(name)])

    def captions(self, name: str) -> tuple[str, ...]:
        """Captions of the dataset."""
        return self._texts.get(self._dataset.image_ids[self._row(name)], ())

    def date(self, name: str) -> float:
        """Modification time of the image's file, or of the archive that contains it."""
        holder = self._holder(self._dataset.images[self._row(name)].source)
        paths = (holder / name, holder, self.path)
        return next((path.stat().st_mtime for path in paths if path.exists()), 0.0)

    def path_of(self, name: str) -> str:
        """Path of an image for display."""
        return str(self._holder(self._dataset.images[self._row(name)].source) / name)

    def features(self, names: Sequence[str]) -> FeatureRows | None:
        """Features of some images; ``None`` if the images themselves are read."""
        if self._features is None:
            return None
        rows = [self._row(name) for name in names]
        counts = [count for row in rows if (count := self._features.regions(row)) is not None]
        values = np.asarray(self._features.take(rows), dtype=np.float32)
        return FeatureRows(values, np.array(counts, dtype=np.int64) if len(counts) == len(rows) else None)

    @cached_property
    def _texts(self) -> dict[str, tuple[str, ...]]:
        texts: dict[str, list[str]] = {}
        for caption in self._dataset.captions if self._with_captions else ():
            if caption.text.strip():
                texts.setdefault(caption.image_id, []).append(caption.text.strip())
        return {image: tuple(dict.fromkeys(lines)) for image, lines in texts.items()}

    @cached_property
    def _rows(self) -> dict[str, int]:
        """Row of each image by its file name, or by its id where several share a file name or it is unknown."""
        ids = self._dataset.image_ids
        names = [image_id if self._features is not None else self._file(image_id) for image_id in ids]
        times = Counter(names)
        return {name if times[name] == 1 else ids[row]: row for row, name in enumerate(names)}

    def _file(self, image_id: str) -> str:
        try:
            return self._dataset.file_of(image_id)
        except (OSError, ValueError):
            return image_id

    def _row(self, name: str) -> int:
        if name not in self._rows:
            raise FileNotFoundError(2, f"no image {name!r} in the dataset", str(self.path))
        return self._rows[name]

    def _holder(self, source: int) -> Path:
        places = self._dataset.manifest.images
        return self.path / places[source].path if source < len(places) else self.path


PhotoSource: TypeAlias = FileSource | DatasetSource


def _stamp(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "-"
    return f"{found.st_size}:{found.st_mtime_ns}"


def read_sidecar(extension: str, content: bytes) -> tuple[str, ...]:
    r"""Captions in a file beside a photo.

    A ``.txt`` file has one caption per line. A ``.json`` file is a string, a list of strings, or an object with
    ``captions``, ``caption``, ``text``, ``description`` or ``title``; other contents are ignored, since many programs
    write JSON files beside photos.

    Args:
        extension: ``".txt"`` or ``".json"``.
        content: The file's bytes.

    Example:
        >>> read_sidecar(".txt", b"A dog.\n\n A beach. \n")
        ('A dog.', 'A beach.')
        >>> read_sidecar(".json", b'{"title": "Sea", "captions": ["A boat."]}')
        ('A boat.', 'Sea')
    """
    if len(content) > MAX_BYTES:
        return ()
    text = content.decode("utf-8-sig", errors="replace").replace("\0", "")
    if extension == ".txt":
        lines: list[Any] = text.splitlines()
    else:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return ()
        values = [value.get(key) for key in _KEYS] if isinstance(value, dict) else [value]
        lines = [line for one in values for line in (one if isinstance(one, list) else [one])]
    # JSON can contain unpaired surrogates, which cannot be written to a file.
    texts = (line.encode(errors="replace").decode().strip() for line in lines if isinstance(line, str))
    return tuple(dict.fromkeys(text for text in texts if text))


class ExifInfo(NamedTuple):
    """When (seconds since 1970) and where (degrees) a photo was taken, if the file contains it.

    A camera's clock has no time zone, so its date is read as UTC.
    """

    date: float | None = None
    latitude: float | None = None
    longitude: float | None = None


def read_exif(content: bytes) -> ExifInfo:
    """Read date and location from the EXIF data of an image file; damaged data counts as missing.

    Example:
        >>> read_exif(b"not an image")
        ExifInfo(date=None, latitude=None, longitude=None)
    """
    try:
        with open_image(content, "a photo") as image:
            exif = image.getexif()
            if not exif:
                return ExifInfo()
            inner, gps = dict(exif.get_ifd(ExifTags.IFD.Exif)), dict(exif.get_ifd(ExifTags.IFD.GPSInfo))
    except Exception:  # noqa: BLE001, RUF100 - Pillow's readers raise many types; the image itself is decoded later
        return ExifInfo()
    date = next((found for tag in _DATES if (found := _date(inner.get(tag, exif.get(tag)))) is not None), None)
    latitude = _degrees(gps.get(ExifTags.GPS.GPSLatitude), gps.get(ExifTags.GPS.GPSLatitudeRef), 90)
    longitude = _degrees(gps.get(ExifTags.GPS.GPSLongitude), gps.get(ExifTags.GPS.GPSLongitudeRef), 180)
    return ExifInfo(date) if latitude is None or longitude is None else ExifInfo(date, latitude, longitude)


def _date(value: Any) -> float | None:
    try:
        return datetime.strptime(str(value).strip("\0 ")[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def _degrees(parts: Any, direction: Any, most: float) -> float | None:
    try:
        degrees, minutes, seconds = (float(part) for part in parts)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    value = degrees + minutes / 60 + seconds / 3600
    if not math.isfinite(value) or not 0 <= value <= most:
        return None
    return -value if str(direction).strip("\0 ").upper() in {"S", "W"} else value
