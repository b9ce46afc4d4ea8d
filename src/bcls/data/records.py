"""Images and captions as records, and the two files that hold them.

``manifest.json``: what a dataset folder holds. It is written last, so a folder that has one is complete.

``quarantine.json``: images and captions that training should skip, each with the reason.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from bcls._core.errors import check_whole, fail, reason_of
from bcls._core.extras import require
from bcls._core.files import write_whole
from bcls.data.text_files import is_unicode, read_json, read_json_lines

CAPTIONS = "captions.jsonl"
PARQUET = "captions.parquet"
IMAGES = "images.jsonl"


class ImageRecord(NamedTuple):
    """An image: its id, its split, its file's name in the ``source``-th place that the manifest names."""

    image_id: str
    split: str
    file: str | None = None
    source: int = 0


class Caption(NamedTuple):
    """A caption: ids of itself and of its image, its text and its split."""

    caption_id: str
    image_id: str
    text: str
    split: str


def read_captions(folder: Path) -> tuple[Caption, ...]:
    """Read ``captions.jsonl``, or ``captions.parquet`` where only that is there.

    Raises:
        ValueError: A line is not a caption, or two have one id; the message names file and line.
    """
    path = folder / CAPTIONS
    rows: Iterator[tuple[int, Mapping[str, Any]]]
    if not path.exists() and (folder / PARQUET).exists():
        path = folder / PARQUET
        rows = _parquet_rows(path)
    else:
        rows = read_json_lines(path)
    captions = []
    lines: dict[str, int] = {}
    for number, row in rows:
        where = f"{path}, line {number}"
        text = row.get("text")
        if not isinstance(text, str):
            _wrong(where, "text", "a string", row)
        if not is_unicode(text):
            _wrong(where, "text", "valid Unicode", row)
        caption = Caption(_id(where, "caption_id", row), _id(where, "image_id", row), text, _split(where, row))
        first = lines.setdefault(caption.caption_id, number)
        if first != number:
            fail(where, "a caption_id of its own", f"{caption.caption_id!r} as in line {first}", "give it another id")
        captions.append(caption)
    return tuple(captions)


def read_images(folder: Path) -> tuple[ImageRecord, ...] | None:
    """Read ``images.jsonl``; ``None`` where there is none.

    Raises:
        ValueError: A line is not an image, or two have one id; the message names file and line.
    """
    path = folder / IMAGES
    if not path.exists():
        return None
    images = []
    lines: dict[str, int] = {}
    for number, row in read_json_lines(path):
        where = f"{path}, line {number}"
        file, source = row.get("file"), row.get("source", 0)
        if file is not None and not isinstance(file, str):
            _wrong(where, "file", "a string", row)
        if not isinstance(source, int) or source < 0:
            _wrong(where, "source", "a whole number from 0 up", row)
        image = ImageRecord(_id(where, "image_id", row), _split(where, row), file, source)
        first = lines.setdefault(image.image_id, number)
        if first != number:
            fail(where, "an image_id of its own", f"{image.image_id!r} as in line {first}", "give it another id")
        images.append(image)
    return tuple(images)


def images_of(captions: Iterable[Caption]) -> tuple[ImageRecord, ...]:
    """The images that captions belong to, in the order of their first captions.

    Raises:
        ValueError: Captions of one image are in two splits.
    """
    splits: dict[str, str] = {}
    for caption in captions:
        if splits.setdefault(caption.image_id, caption.split) != caption.split:
            got = f"{caption.caption_id!r} in {caption.split!r} and others in {splits[caption.image_id]!r}"
            fail(
                f"captions of image {caption.image_id!r}",
                "one split",
                got,
                "put all captions of an image into one split",
            )
    return tuple(ImageRecord(image, split) for image, split in splits.items())


def write_records(folder: Path, images: Iterable[ImageRecord], captions: Iterable[Caption]) -> None:
    """Write ``images.jsonl`` and ``captions.jsonl``."""
    _write(folder / IMAGES, (_image_row(image) for image in images))
    _write(folder / CAPTIONS, (caption._asdict() for caption in captions))


def _image_row(image: ImageRecord) -> dict[str, Any]:
    row: dict[str, Any] = {"image_id": image.image_id, "split": image.split}
    if image.file is not None:
        row["file"] = image.file
    if image.source:
        row["source"] = image.source
    return row


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _parquet_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    parquet = require("pyarrow.parquet", "arrow", f"reading {path.name}")
    arrow = require("pyarrow", "arrow", f"reading {path.name}")
    try:
        with parquet.ParquetFile(path) as file:
            rows = file.read().to_pylist()
    except (arrow.ArrowException, OSError, ValueError, ArithmeticError, LookupError, TypeError) as error:
        fail(str(path), "a whole parquet file", f"a damaged one ({reason_of(error)})", "make or copy it again")
    return enumerate(rows, start=1)


def _id(where: str, key: str, row: Mapping[str, Any]) -> str:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        _wrong(where, key, "a string or whole number", row)
    if not is_unicode(str(value)):
        _wrong(where, key, "valid Unicode", row)
    return str(value)


def _split(where: str, row: Mapping[str, Any]) -> str:
    value = row.get("split")
    if not isinstance(value, str) or not value or not is_unicode(value):
        _wrong(where, "split", "a name such as 'train'", row)
    return value


def _wrong(where: str, key: str, expected: str, row: Mapping[str, Any]) -> NoReturn:
    got = repr(row[key])[:60] if key in row else f"only {', '.join(row)[:200] or 'nothing'}"
    fail(where, f"{key!r} to be {expected}", got, "mend that line")


FILE = "manifest.json"
FORMAT = "bcls-dataset"
VERSION = 1
_REMEDY = "see the dataset page of the documentation, or import the dataset again"


@dataclass(frozen=True)
class ImageFiles:
    """A folder, zip or tar with pictures; ``bytes`` and ``sha256`` of an archive where they are known."""

    path: str
    bytes: int | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        _check_path("path", self.path)


@dataclass(frozen=True)
class FeatureFile:
    """An ``.npy`` file with features of a split: row ``i * every`` belongs to the split's image ``i``.

    ``counts`` is an ``.npy`` file with the number of real regions of each row, where it differs between images. The
    first ``views`` of an image's ``every`` rows are its views: the whole picture, then random ones.
    """

    path: str
    every: int = 1
    counts: str | None = None
    views: int = 1

    def __post_init__(self) -> None:
        _check_path("path", self.path)
        check_whole("every", self.every, least=1)
        if self.counts is not None:
            _check_path("counts", self.counts)
        if check_whole("views", self.views, least=1) > self.every:
            fail("views", f"at most {self.every}, the rows of an image that `every` tells", self.views, _REMEDY)


@dataclass(frozen=True)
class Manifest:
    """Contents of the manifest; paths are absolute or relative to its folder.

    Attributes:
        name: Name of the dataset.
        splits: Numbers of images and captions of each split, where they are stated.
        images: Where the pictures are, in the order that ``source`` in ``images.jsonl`` counts.
        features: Feature files by the features' name and the split.
        sha256: Checksums of files in the folder.
    """

    name: str
    splits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    images: tuple[ImageFiles, ...] = ()
    features: Mapping[str, Mapping[str, FeatureFile]] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a dataset folder.

    Only ``format`` and ``version`` have to be there, so that a manifest is quickly made by hand. Where it does not say
    where the pictures are, they are looked for in ``images``, ``images.zip`` and ``images.tar``.

    Raises:
        ValueError: There is no manifest, so the folder is no dataset or was never finished; or it is not valid.
    """
    path = folder / FILE
    if not folder.exists():
        raise FileNotFoundError(2, "no such dataset folder", str(folder))
    if not path.exists():
        fail(str(folder), f"a dataset with a {FILE}", "none", "import it first, again if an import was broken off")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        fail(str(path), f'a JSON object with "format": "{FORMAT}"', "something else", _REMEDY)
    if content.get("version") != VERSION:
        fail(str(path), f'"version": {VERSION}', repr(content.get("version")), "use the release of bcls that wrote it")
    try:
        return Manifest(
            str(content.get("name", folder.resolve().name)),
            {str(split): (int(n["images"]), int(n["captions"])) for split, n in content.get("splits", {}).items()},
            _image_files(folder, content),
            {
                str(name): {str(split): FeatureFile(**file) for split, file in files.items()}
                for name, files in content.get("features", {}).items()
            },
            {str(file): str(digest) for file, digest in content.get("sha256", {}).items()},
        )
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        fail(str(path), "fields as bcls writes them", f"a wrong one ({str(error)[:200]})", _REMEDY)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest; every other file must be in place before."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": manifest.name,
        "splits": {split: {"images": n, "captions": c} for split, (n, c) in manifest.splits.items()},
        "images": [_without_none(vars(one)) for one in manifest.images],
        "features": {
            name: {split: _feature_entry(file) for split, file in files.items()}
            for name, files in manifest.features.items()
        },
        "sha256": dict(manifest.sha256),
    }
    write_whole(folder / FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def add_features(folder: Path, name: str, split: str, file: FeatureFile) -> None:
    """Enter a feature file of a split; whatever else stands in the manifest is kept."""
    read_manifest(folder)
    content = read_json(folder / FILE)
    entry = _feature_entry(file)
    files = content.setdefault("features", {}).setdefault(name, {})
    if files.get(split) != entry:
        files[split] = entry
        write_whole(folder / FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _image_files(folder: Path, content: Mapping[str, Any]) -> tuple[ImageFiles, ...]:
    if "images" in content:
        return tuple(ImageFiles(**one) for one in content["images"])
    usual = [name for name in ("images", "images.zip", "images.tar") if (folder / name).exists()]
    return tuple(ImageFiles(name) for name in usual[:1])


def _check_path(name: str, path: object) -> None:
    if not isinstance(path, str) or not path or "\0" in path or not is_unicode(path):
        fail(name, "the path of a file or folder", repr(path)[:60], _REMEDY)


def _feature_entry(file: FeatureFile) -> dict[str, Any]:
    entry = _without_none(vars(file))
    if file.views == 1:  # so that releases that know no views read the manifest as well
        del entry["views"]
    return entry


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


QUARANTINE_FILE = "quarantine.json"


@dataclass(frozen=True)
class Quarantine:
    """Ids of bad images and captions, each with the reason."""

    images: Mapping[str, str] = field(default_factory=dict)
    captions: Mapping[str, str] = field(default_factory=dict)


def read_quarantine(folder: Path) -> Quarantine:
    """Read a dataset's quarantine; an empty one where no check has written any.

    Raises:
        ValueError: The file is not what ``bcls data check`` writes.
    """
    path = folder / QUARANTINE_FILE
    if not path.exists():
        return Quarantine()
    content = read_json(path)
    parts = [content.get(part) if isinstance(content, dict) else None for part in ("images", "captions")]
    images, captions = parts
    if not isinstance(images, dict) or not isinstance(captions, dict):
        fail(str(path), '"images" and "captions" with ids and reasons', "something else", "run `bcls data check` again")
    return Quarantine(images, captions)


def write_quarantine(folder: Path, quarantine: Quarantine) -> None:
    """Write a dataset's quarantine, in place of an older one."""
    content = {"images": dict(quarantine.images), "captions": dict(quarantine.captions)}
    write_whole(folder / QUARANTINE_FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
