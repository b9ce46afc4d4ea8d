"""Captions from files beside a photo: ``photo.txt`` and ``photo.json``.

Where the photos of an index come from: a folder, a zip or tar, or a dataset.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail
from bcls.data.dataset import Dataset, open_dataset
from bcls.data.image_files import ImageStore, open_store
from bcls.data.records import FORMAT, MANIFEST_FILE
from bcls.data.text_files import read_json

#: A file of more bytes is no caption.
MAX_BYTES = 16_384
#: Endings, in the order in which captions are taken from them.
ENDINGS = (".txt", ".json")
_KEYS = ("captions", "caption", "text", "description", "title")


def read_sidecar(ending: str, content: bytes) -> tuple[str, ...]:
    r"""Captions in a file beside a photo.

    A ``.txt`` file has one a line. A ``.json`` file is a string, a list of strings, or an object with ``captions``,
    ``caption``, ``text``, ``description`` or ``title``; anything else in it is passed over, since many programs leave
    files of that ending beside photos.

    Args:
        ending: ``".txt"`` or ``".json"``.
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
    if ending == ".txt":
        return _clean(text.splitlines())
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if isinstance(value, dict):
        return _clean([one for key in _KEYS for one in _strings(value.get(key))])
    return _clean(_strings(value))


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _clean(lines: list[str]) -> tuple[str, ...]:
    # JSON can hold half of a surrogate pair, which is no text and fits no file.
    texts = (line.encode(errors="replace").decode().strip() for line in lines)
    return tuple(dict.fromkeys(text for text in texts if text))


class Item(NamedTuple):
    """A photo that is there: its name, and a quick look at its files that changes when they do."""

    name: str
    look: str


class FeatureRows(NamedTuple):
    """Features of images: ``(N, d)`` vectors or ``(N, R, d)`` regions, and how many regions of each are real."""

    values: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64] | None = None


class Source(Protocol):
    """Photos under names; threads may read at once."""

    path: Path

    def items(self) -> list[Item]:
        """All photos."""
        ...

    def read(self, name: str) -> bytes:
        """A photo's file, or its features as bytes."""
        ...

    def picture(self, name: str) -> bytes:
        """A photo's file, also where features stand for it."""
        ...

    def captions(self, name: str) -> tuple[str, ...]:
        """What is written about a photo."""
        ...

    def date(self, name: str) -> float:
        """When its file was last changed, in seconds since 1970."""
        ...

    def place(self, name: str) -> str:
        """The photo's path as a person knows it; inside an archive, the archive's path comes first."""
        ...

    def features(self, names: Sequence[str]) -> FeatureRows | None:
        """Features of photos for a model that reads them; ``None`` where pictures are read."""
        ...


def open_source(path: Path, features: str | None = None, *, captions: bool = True) -> Source:
    """Find out what holds the photos.

    Args:
        path: A folder, a zip or tar file, or the folder of a dataset.
        features: Name of features of the dataset that stand for its pictures.
        captions: Whether captions are read.

    Raises:
        FileNotFoundError: There is nothing at ``path``.
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
        fail("features", "a dataset that has features", str(path), "make one with `bcls data import`, or leave it out")
    return StoreSource(open_store(path), captions=captions)


class StoreSource:
    """A folder, a zip or a tar, with captions in files beside the photos."""

    def __init__(self, store: ImageStore, *, captions: bool = True) -> None:
        self.path = store.path
        self._store = store
        self._endings = ENDINGS if captions else ()
        self._archive = None if store.path.is_dir() else store.path.stat()

    def items(self) -> list[Item]:
        """All photos, each once."""
        return [Item(name, self._look(name)) for name in dict.fromkeys(self._store.names())]

    def read(self, name: str) -> bytes:
        """A photo's file."""
        return self._store.read(name)

    picture = read

    def captions(self, name: str) -> tuple[str, ...]:
        """Captions in files beside the photo."""
        found: list[str] = []
        for ending in self._endings:
            beside = str(PurePosixPath(name).with_suffix(ending))
            if self._archive is None and self._size(beside) > MAX_BYTES:
                continue
            try:
                found += read_sidecar(ending, self._store.read(beside))
            except (OSError, ValueError):  # not there, or damaged: the photo itself may be whole
                continue
        return tuple(dict.fromkeys(found))

    def date(self, name: str) -> float:
        """When its file was last changed; an archive's own date stands for all in it."""
        return self._archive.st_mtime if self._archive else (self.path / name).stat().st_mtime

    def place(self, name: str) -> str:
        """The photo's path."""
        return str(self.path / name)

    def features(self, names: Sequence[str]) -> None:
        """None: pictures are read."""
        return

    def _size(self, name: str) -> int:
        file = self.path / name
        return file.stat().st_size if file.is_file() else 0

    def _look(self, name: str) -> str:
        if self._archive:
            return " ".join((_stamp(self.path), *self._endings))
        beside = [str(PurePosixPath(name).with_suffix(ending)) for ending in self._endings]
        return " ".join(_stamp(self.path / one) for one in (name, *beside))


class DatasetSource:
    """A dataset: its images that have a file, or a row of features, with its captions."""

    def __init__(self, dataset: Dataset, features: str | None = None, *, captions: bool = True) -> None:
        self.path = dataset.folder
        self._dataset = dataset
        self._features = None if features is None else dataset.features(features)
        self._with_captions = captions

    def items(self) -> list[Item]:
        """All images."""
        places = {number: _stamp(self._holder(number)) for number in range(max(1, len(self._dataset.manifest.images)))}
        texts = self._texts
        found = []
        for name, row in self._rows.items():
            image = self._dataset.images[row]
            stamp = places.get(image.source, "")
            if (holder := self._holder(image.source)).is_dir() and image.file is not None:
                stamp = _stamp(holder / image.file)
            written = hashlib.sha256("\n".join(texts.get(image.image_id, ())).encode()).hexdigest()[:16]
            found.append(Item(name, f"{stamp} {written}"))
        return found

    def read(self, name: str) -> bytes:
        """A photo's file, or the bytes of its features."""
        if self._features is not None:
            return np.ascontiguousarray(self._features[self._row(name)]).tobytes()
        return self.picture(name)

    def picture(self, name: str) -> bytes:
        """A photo's file.

        Raises:
            ValueError: The dataset has features alone.
            OSError: The file is gone.
        """
        return self._dataset.read_bytes(self._dataset.image_ids[self._row(name)])

    def captions(self, name: str) -> tuple[str, ...]:
        """Captions of the dataset."""
        return self._texts.get(self._dataset.image_ids[self._row(name)], ())

    def date(self, name: str) -> float:
        """When the photo's file, or the archive that holds it, was last changed."""
        for path in (Path(self.place(name)), self._holder(self._dataset.images[self._row(name)].source), self.path):
            if path.exists():
                return path.stat().st_mtime
        return 0.0

    def place(self, name: str) -> str:
        """The photo's path."""
        return str(self._holder(self._dataset.images[self._row(name)].source) / name)

    def features(self, names: Sequence[str]) -> FeatureRows | None:
        """Features of some images."""
        if self._features is None:
            return None
        rows = [self._row(name) for name in names]
        counts = [self._features.regions(row) for row in rows]
        values = np.asarray(self._features.take(rows), dtype=np.float32)
        known = [count for count in counts if count is not None]
        return FeatureRows(values, np.array(known, dtype=np.int64) if len(known) == len(rows) else None)

    @cached_property
    def _texts(self) -> dict[str, tuple[str, ...]]:
        texts: dict[str, list[str]] = {}
        for caption in self._dataset.captions if self._with_captions else ():
            if caption.text.strip():
                texts.setdefault(caption.image_id, []).append(caption.text.strip())
        return {image: tuple(dict.fromkeys(lines)) for image, lines in texts.items()}

    @cached_property
    def _rows(self) -> dict[str, int]:
        """Row of each image by the name of its file, or by its id where files share a name or are not known."""
        names = [
            image.image_id if self._features is not None else self._file(image.image_id)
            for image in self._dataset.images
        ]
        times = Counter(names)
        return {name if times[name] == 1 else self._dataset.image_ids[row]: row for row, name in enumerate(names)}

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


def _stamp(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "-"
    return f"{found.st_size}:{found.st_mtime_ns}"
