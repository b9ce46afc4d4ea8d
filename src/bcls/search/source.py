"""Photo sources of an index (folder, zip, tar or dataset), caption files beside photos, and EXIF data."""

import fnmatch
import hashlib
import json
import math
import os
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from itertools import count, permutations
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from PIL import ExifTags

from bcls._core.errors import fail, visible
from bcls.data.dataset import Dataset, open_dataset
from bcls.data.image_files import ImageStore, check_member, is_image_file, open_store
from bcls.data.images import open_image
from bcls.data.records import FORMAT, MANIFEST_FILE
from bcls.data.text_files import is_unicode, read_json
from bcls.models.light import ImageBatch

#: Larger caption files are ignored.
MAX_BYTES = 16_384
#: Extensions of caption files, in the order in which they are read.
EXTENSIONS = (".txt", ".json")
_KEYS = ("captions", "caption", "text", "description", "title")
_VIDEOS = frozenset({".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".3gp", ".mts", ".m2ts", ".wmv", ".mpg", ".mpeg"})
_OTHER_IMAGES = frozenset(
    [".svg", ".eps", ".ps", ".ai", ".jxl", ".jxr", ".xcf", ".psb", ".wmf", ".emf", ".raw", ".exr", ".hdr"]
)
_CAMERA_WORDS = (
    "bild camera canon caption copy dcim default description digital dsc dscf dscn edited exif file foto fujifilm "
    "image images imagen img jpeg jpg kodak minolta mg mvi na nikon no none null olympus panasonic photo photos pic "
    "pict picture pictures png pxl samsung scan screenshot sony still title undefined unknown unnamed untitled "
    "vid whatsapp"
)
#: Words of titles that cameras and programs write; a caption of these alone describes nothing.
_EMPTY_WORDS = frozenset(_CAMERA_WORDS.split())
_DATES = (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTimeDigitized, ExifTags.Base.DateTime)


class SourceItem(NamedTuple):
    """A photo of a source: its name, and a stamp that changes when its files do."""

    name: str
    stamp: str


class SourceScan(NamedTuple):
    """Photos of a source, and what was skipped.

    Attributes:
        items: The photos, each once.
        skipped: Why other files and folders were skipped, by name.
        others: Number of files of other kinds, such as videos, by kind.
    """

    items: list[SourceItem]
    skipped: dict[str, str]
    others: dict[str, int]

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Names of folders that could not be listed, each with a slash at its end."""
        return tuple(name for name in self.skipped if name.endswith("/"))


def open_source(
    *paths: Path,
    features: str | None = None,
    captions: bool = True,
    exclude: Sequence[str] = (),
    follow_links: bool = False,
) -> "PhotoSource":
    """Open folders, archives or datasets.

    Args:
        *paths: Folders, zip or tar files, or folders of datasets.
        features: Name of features of the dataset that are used instead of its images.
        captions: Whether to read captions.
        exclude: Patterns of names that are left out, such as ``"*.png"`` or ``"2023/raw"``. A pattern without a slash
            is compared with each folder and file name. One with a slash begins at the folder; the name as it is
            displayed with several folders, and the whole path, match as well.
        follow_links: Whether to follow links that leave a folder.

    Raises:
        FileNotFoundError: A path does not exist.
        ValueError: It is something else, has no such features, or contains another path.
    """
    roots = [absolute(path) for path in paths]
    for inner, outer in permutations(roots, 2):
        if inner.resolve().is_relative_to(outer.resolve()):
            got = f"{inner}, which is {'the same as' if inner.resolve() == outer.resolve() else 'in'} {outer}"
            fail("photos", "folders that do not contain each other", got, "leave it out")
    if features is not None and len(roots) > 1:
        fail("features", "one dataset", f"{len(roots)} paths", "index each dataset with features on its own")
    sources = [_open_one(path, features, captions, exclude, follow_links) for path in roots]
    return sources[0] if len(sources) == 1 else CombinedSource(sources)


def absolute(path: Path) -> Path:
    """Absolute path without ``..``, as it is stored in an index. Links are kept: their names are displayed."""
    return path.resolve() if ".." in path.parts else path.absolute()


def _open_one(
    path: Path, features: str | None, captions: bool, exclude: Sequence[str], follow_links: bool
) -> "FileSource | DatasetSource":
    if not path.exists():
        raise FileNotFoundError(2, "no such folder, zip, tar or dataset of photos", str(path))
    if path.is_dir() and (path / MANIFEST_FILE).is_file():
        content = read_json(path / MANIFEST_FILE)
        if isinstance(content, dict) and content.get("format") == FORMAT:
            return DatasetSource(open_dataset(path), features, captions=captions, exclude=exclude)
    if features is not None:
        fail("features", "a dataset that has features", str(path), "create one with `bcls data import`, or omit it")
    return FileSource(open_store(path), captions=captions, exclude=exclude, follow_links=follow_links)


class _OneSource:
    """A source that is not combined of others: a folder, an archive or a dataset."""

    #: What stands before its names in a :class:`CombinedSource`.
    label = ""

    def locate(self, name: str) -> tuple[Self, str]:
        """The source of a photo, and its name there; see :class:`CombinedSource`."""
        return self, name


class FileSource(_OneSource):
    """Photos in a folder, a zip or a tar, with captions in files beside them; threads may read at the same time.

    Only regular files are read. Links to files inside the folder count as files.

    Args:
        store: The folder or archive.
        captions: Whether to read captions.
        exclude: Patterns of names that are left out.
        follow_links: Whether to follow links that leave the folder.
    """

    def __init__(
        self, store: ImageStore, *, captions: bool = True, exclude: Sequence[str] = (), follow_links: bool = False
    ) -> None:
        self.path = store.path
        self._store, self._exclude, self._follow = store, exclude, follow_links
        self._extensions: tuple[str, ...] = EXTENSIONS if captions else ()
        self._archive = None if store.path.is_dir() else store.path.stat()

    def scan(self) -> SourceScan:
        """All photos, and what is skipped; a folder that cannot be listed is skipped.

        Raises:
            OSError: The folder itself cannot be listed.
        """
        skipped: dict[str, str] = {}
        others: Counter[str] = Counter()
        files = self._store.names(images=False) if self._archive else self._walk(skipped, others)
        photos = []
        for name in dict.fromkeys(files):
            path = PurePosixPath(name)
            if self._archive and self._is_excluded(name, others):
                continue
            if is_image_file(name) and is_unicode(name):
                photos.append(name)
            elif is_image_file(name):
                skipped[name] = f"`{name!a}`: the name is not valid text; rename the file"
            elif not path.name.startswith("."):
                others["video"] += path.suffix.lower() in _VIDEOS
                others[f"image format {path.suffix.lower()}"] += path.suffix.lower() in _OTHER_IMAGES
        items = [SourceItem(name, self.stamp(name)) for name in (photos if self._archive else sorted(photos))]
        return SourceScan(items, skipped, dict(+others))

    def _is_excluded(self, name: str, others: Counter[str], *, is_folder: bool = False) -> bool:
        """Whether a pattern excludes a photo or folder, which is counted in ``others``."""
        found = _matches(name, self._exclude, ("", self.label, f"{self.path}/"))
        others["excluded folder" if is_folder else "excluded"] += found and (is_folder or is_image_file(name))
        return found

    def _walk(self, skipped: dict[str, str], others: Counter[str]) -> Iterator[str]:
        """Names of all regular files of the folder; explains in ``skipped`` why others are left out."""
        pending, links, seen = [""], deque[str](), set[str]()
        while pending or links:
            # Links are followed last, so that names have the real folder where possible.
            base = pending.pop() if pending else links.popleft()
            if (real := os.path.realpath(self.path / base)) in seen:
                continue
            seen.add(real)
            try:
                with os.scandir(self.path / base) as entries:
                    found = sorted(entries, key=lambda entry: entry.name)
            except OSError as error:
                if not base:
                    raise
                skipped[base] = visible(f"`{base}`: {error.strerror or error}; its photos in the index are kept")
                continue
            for entry in found:
                name, is_folder = base + entry.name, _is(entry, "is_dir")
                if (is_folder and entry.name.startswith(".")) or self._is_excluded(name, others, is_folder=is_folder):
                    continue
                if reason := self._refusal(entry, name):
                    if is_folder or is_image_file(name):
                        skipped[name] = visible(f"`{name}`: {reason}")
                    others[f"caption ({reason.partition(';')[0]})"] += entry.name.endswith(self._extensions)
                elif not is_folder:
                    yield name
                else:
                    (links if entry.is_symlink() else pending).append(f"{name}/")

    def _refusal(self, entry: "os.DirEntry[str]", name: str) -> str:
        """Why a file or folder is not read; empty if it is."""
        if entry.is_symlink() and not self._is_allowed(name):
            return "a link that leaves the folder; see --follow-links"
        if not (_is(entry, "is_dir") or _is(entry, "is_file")):
            return "not a regular file"
        return ""

    def _is_allowed(self, name: str) -> bool:
        """Whether a file or folder may be read: if links are followed, or it does not leave the folder."""
        return self._follow or Path(os.path.realpath(self.path / name)).is_relative_to(os.path.realpath(self.path))

    def read(self, name: str) -> bytes:
        """Contents of a photo's file, which the index hashes."""
        if not self._archive and not self._is_allowed(check_member(str(self.path), name)):
            fail(str(self.path), "files inside the folder", f"the link {name!r}", "see --follow-links")
        return self._store.read(name)

    read_image = read

    def captions(self, name: str) -> tuple[str, ...]:
        """Captions in files beside the photo that describe something; see :func:`describes`."""
        found: list[str] = []
        for extension in self._extensions:
            beside = str(PurePosixPath(name).with_suffix(extension))
            file = self.path / beside
            if self._archive is None and file.is_file() and file.stat().st_size > MAX_BYTES:
                continue
            with suppress(OSError, ValueError):  # missing or damaged, which says nothing about the photo
                found += filter(describes, read_sidecar(extension, self.read(beside)))
        return tuple(dict.fromkeys(found))

    def date(self, name: str) -> float:
        """Modification time of the file, or of the archive that contains it, in seconds since 1970."""
        return self._archive.st_mtime if self._archive else (self.path / name).stat().st_mtime

    def path_of(self, name: str) -> str:
        """Path of a photo for display; in an archive, the archive's path followed by the name."""
        return str(self.path / name)

    def features(self, names: Sequence[str]) -> ImageBatch | None:
        """``None``: the images are read."""
        return None

    def stamp(self, name: str) -> str:
        """Size and time of a photo's file and of the caption files beside it, or of the archive."""
        if self._archive:
            return " ".join((_stamp(self.path), *self._extensions))
        beside = [str(PurePosixPath(name).with_suffix(extension)) for extension in self._extensions]
        refused = {one for one in beside if os.path.islink(self.path / one) and not self._is_allowed(one)}
        return " ".join("-" if one in refused else _stamp(self.path / one) for one in (name, *beside))


class DatasetSource(_OneSource):
    """Images of a dataset, or their features, with the dataset's captions; same methods as :class:`FileSource`.

    Args:
        dataset: The dataset.
        features: Name of features that are used instead of the images.
        captions: Whether to use captions.
        exclude: Patterns of names that are left out.
    """

    def __init__(
        self, dataset: Dataset, features: str | None = None, *, captions: bool = True, exclude: Sequence[str] = ()
    ) -> None:
        self.path = dataset.folder
        self._exclude = exclude
        self._dataset = dataset
        self._features = None if features is None else dataset.features(features)
        self._with_captions = captions

    def scan(self) -> SourceScan:
        """All images."""
        names = [name for name in self._rows if not _matches(name, self._exclude, ("", self.label, f"{self.path}/"))]
        others = Counter(excluded=len(self._rows) - len(names))
        return SourceScan([SourceItem(name, self.stamp(name)) for name in names], {}, dict(+others))

    def stamp(self, name: str) -> str:
        """Size and time of an image's file, or of the archive with it, and a hash of its captions."""
        image = self._dataset.images[self._row(name)]
        holder = self._holder(image.source)
        file = holder / image.file if holder.is_dir() and image.file is not None else holder
        text_hash = hashlib.sha256("\n".join(self._texts.get(image.image_id, ())).encode()).hexdigest()[:16]
        return f"{_stamp(file)} {text_hash}"

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
        """Captions of the dataset that describe something; see :func:`describes`."""
        return self._texts.get(self._dataset.image_ids[self._row(name)], ())

    def date(self, name: str) -> float:
        """Modification time of the image's file, or of the archive that contains it."""
        holder = self._holder(self._dataset.images[self._row(name)].source)
        paths = (holder / name, holder, self.path)
        return next((path.stat().st_mtime for path in paths if path.exists()), 0.0)

    def path_of(self, name: str) -> str:
        """Path of an image for display."""
        return str(self._holder(self._dataset.images[self._row(name)].source) / name)

    def features(self, names: Sequence[str]) -> ImageBatch | None:
        """Features of some images; ``None`` if the images themselves are read."""
        if self._features is None:
            return None
        rows = [self._row(name) for name in names]
        counts = [count for row in rows if (count := self._features.regions(row)) is not None]
        values = np.asarray(self._features.take(rows), dtype=np.float32)
        return ImageBatch(values, np.array(counts, dtype=np.int64) if len(counts) == len(rows) else None)

    @cached_property
    def _texts(self) -> dict[str, tuple[str, ...]]:
        texts: dict[str, list[str]] = {}
        for caption in self._dataset.captions if self._with_captions else ():
            if describes(caption.text.strip()):
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


class CombinedSource:
    """Several sources; the names of each begin with the name of its folder.

    Args:
        sources: The sources. Folders of the same name are numbered: ``photos``, ``photos (2)``.
    """

    def __init__(self, sources: Sequence[FileSource | DatasetSource]) -> None:
        self._sources: dict[str, FileSource | DatasetSource] = {}
        for source in sources:
            names = (f"{source.path.name} ({number})" if number > 1 else source.path.name for number in count(1))
            label = next(name for name in names if name not in self._sources)
            self._sources[label], source.label = source, f"{label}/"

    def scan(self) -> SourceScan:
        """All photos of all sources."""
        items: list[SourceItem] = []
        skipped: dict[str, str] = {}
        others: Counter[str] = Counter()
        for label, source in self._sources.items():
            found = source.scan()
            items += [SourceItem(f"{label}/{name}", stamp) for name, stamp in found.items]
            skipped |= {f"{label}/{name}": reason for name, reason in found.skipped.items()}
            others.update(found.others)
        return SourceScan(items, skipped, others)

    def features(self, names: Sequence[str]) -> ImageBatch | None:
        """``None``: the images are read."""
        return None

    def locate(self, name: str) -> tuple[FileSource | DatasetSource, str]:
        """The source of a photo, and its name there."""
        label, _, rest = name.partition("/")
        if label not in self._sources:
            raise FileNotFoundError(2, "no such photo", name)
        return self._sources[label], rest


PhotoSource: TypeAlias = FileSource | DatasetSource | CombinedSource


def _matches(name: str, globs: Sequence[str], prefixes: Sequence[str]) -> bool:
    """Whether a pattern matches a name or a folder of it, or with no slash in it one of the name's parts.

    Args:
        name: The name.
        globs: The patterns.
        prefixes: What may stand before the name in a pattern with a slash.

    Example:
        >>> [_matches("2023/raw/a.png", [glob], ("", "p/")) for glob in ("raw/", "./2023", "p/2023/r*", "./raw")]
        [True, True, True, False]
    """
    parts = name.split("/")
    whole = [prefix + "/".join(parts[: end + 1]) for prefix in prefixes for end in range(len(parts)) if globs]
    plain = (glob.rstrip("/") for glob in globs)
    return any(
        fnmatch.fnmatchcase(one, glob.removeprefix("./")) for glob in plain for one in (whole if "/" in glob else parts)
    )


def _is(entry: "os.DirEntry[str]", what: str) -> bool:
    """Result of a method of an entry; false for a link that leads nowhere.

    What may not be inspected counts as a file, so that reading it reports the reason.
    """
    try:
        return bool(getattr(entry, what)())
    except PermissionError:
        return what == "is_file"
    except OSError:
        return False


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


def describes(caption: str) -> bool:
    """Whether a caption describes a photo: not if it is a file name, a number, or only what cameras and programs write.

    Example:
        >>> [describes(text) for text in ("IMG_0001.jpg", "DSC_0042", "OLYMPUS DIGITAL CAMERA", "...", "two dogs")]
        [False, False, False, False, True]
    """
    if is_image_file(caption) or PurePosixPath(caption).suffix.lower() in _VIDEOS:
        return False
    words = [word for word in re.findall(r"[^\W_]+", caption.casefold()) if word.isalpha()]
    return not _EMPTY_WORDS.issuperset(words) and caption.casefold() != "n/a"


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
