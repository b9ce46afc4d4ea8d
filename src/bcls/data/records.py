"""Records of images and captions, and the files of a dataset folder that contain them, read and written.

``captions.jsonl`` and ``images.jsonl`` have one record per line. ``manifest.json`` describes the contents of the
folder; it is written last, so a folder with a manifest is complete. ``quarantine.json`` lists images and captions that
training skips, with the reasons.
"""

import json
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bcls._core.config import check_shape
from bcls._core.errors import check_whole, fail, quoted, refuse_damage
from bcls._core.extras import require, sha256_of
from bcls._core.files import sync_tree, write_whole
from bcls._core.locks import lock_folder
from bcls._core.progress import track
from bcls.data.image_files import check_member
from bcls.data.text_files import get_field, is_unicode, read_json, read_json_lines

CAPTIONS = "captions.jsonl"
PARQUET = "captions.parquet"
IMAGES = "images.jsonl"
MANIFEST_FILE = "manifest.json"
QUARANTINE_FILE = "quarantine.json"
FORMAT = "bcls-dataset"
VERSION = 1
_FIX = "fix that record"
_FIX_MANIFEST = "see the dataset page of the documentation, or import the dataset again"


class ImageRecord(NamedTuple):
    """An image: id, split, and the name of its file in source number ``source`` of the manifest's ``images``."""

    image_id: str
    split: str
    file: str | None = None
    source: int = 0


class Caption(NamedTuple):
    """A caption: its id, the id of its image, its text and its split."""

    caption_id: str
    image_id: str
    text: str
    split: str


_Record = TypeVar("_Record", Caption, ImageRecord)


def read_captions(folder: Path) -> tuple[Caption, ...]:
    """Read ``captions.jsonl``, or ``captions.parquet`` if only that exists.

    Raises:
        ValueError: A line is not a caption, or two captions have the same id; the message names file and line.
    """
    path, parquet = folder / CAPTIONS, folder / PARQUET
    if parquet.exists() and not path.exists():
        return _parse(f"{parquet}, line", enumerate(_read_parquet(parquet), start=1), _caption)
    return _parse(f"{path}, line", read_json_lines(path), _caption)


def read_images(folder: Path, captions: Iterable[Caption]) -> tuple[ImageRecord, ...]:
    """Read ``images.jsonl``; without that file, return the images of the captions in the order of their first captions.

    Raises:
        ValueError: A line is not an image, or two images have the same id; the message names file and line.
    """
    path = folder / IMAGES
    if path.exists():
        return _parse(f"{path}, line", read_json_lines(path), _image)
    splits: dict[str, str] = {}
    for caption in captions:
        splits.setdefault(caption.image_id, caption.split)
    return tuple(ImageRecord(image_id, split) for image_id, split in splits.items())


def check_splits(where: str, images: Iterable[ImageRecord], captions: Iterable[Caption]) -> None:
    """Check that the image of every caption exists and is in the caption's split.

    Raises:
        ValueError: It is not; the message names the caption.
    """
    splits = {image.image_id: image.split for image in images}
    for one in captions:
        split = splits.get(one.image_id)
        if split != one.split:
            expected = f"image {one.image_id[:60]!r} of caption {one.caption_id[:60]!r} in split {one.split[:60]!r}"
            got = "no such image" if split is None else f"an image of split {split[:60]!r}"
            fail(where, expected, got, "put all captions of an image into the split of the image")


def write_records(folder: Path, images: Iterable[ImageRecord], captions: Iterable[Caption]) -> None:
    """Write ``images.jsonl`` and ``captions.jsonl``. Fields of images that have their default are left out."""
    defaults = ImageRecord._field_defaults
    image_rows = (
        {key: value for key, value in image._asdict().items() if key not in defaults or value != defaults[key]}
        for image in images
    )
    for name, rows in ((IMAGES, image_rows), (CAPTIONS, (caption._asdict() for caption in captions))):
        write_whole(folder / name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _parse(
    where: str, rows: Iterable[tuple[int, dict[str, Any]]], parse: Callable[[str, dict[str, Any]], _Record]
) -> tuple[_Record, ...]:
    """Check numbered rows and convert them to records with unique ids; ``where`` is followed by the number."""
    records = []
    numbers: dict[str, int] = {}
    for number, row in rows:
        record = parse(f"{where} {number}", row)
        first = numbers.setdefault(record[0], number)
        if first != number:
            got = f"{record[0]!r} as in {where.rpartition(' ')[2]} {first}"
            fail(f"{where} {number}", f"a unique {record._fields[0]}", got, "choose another id")
        records.append(record)
    return tuple(records)


def _caption(where: str, row: dict[str, Any]) -> Caption:
    caption_id, image_id = (str(get_field(where, row, key, str, int, hint=_FIX)) for key in ("caption_id", "image_id"))
    text = get_field(where, row, "text", str, hint=_FIX, empty=True)
    return Caption(caption_id, image_id, text, get_field(where, row, "split", str, hint=_FIX))


def _image(where: str, row: dict[str, Any]) -> ImageRecord:
    file = None if row.get("file") is None else get_field(where, row, "file", str, hint=_FIX, empty=True)
    source = row.get("source", 0)
    if not isinstance(source, int) or source < 0:
        fail(where, "'source' to be an integer of at least 0", repr(source)[:60], _FIX)
    image_id = str(get_field(where, row, "image_id", str, int, hint=_FIX))
    return ImageRecord(image_id, get_field(where, row, "split", str, hint=_FIX), file, source)


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    parquet = require("pyarrow.parquet", "arrow", f"reading {path.name}")
    arrow = require("pyarrow", "arrow", f"reading {path.name}")
    errors = (arrow.ArrowException, OSError, ValueError, ArithmeticError, LookupError, TypeError)
    damage = refuse_damage(str(path), "a complete parquet file", "create or copy it again", *errors)
    with damage, parquet.ParquetFile(path) as file:
        rows: list[dict[str, Any]] = file.read().to_pylist()
    return rows


@dataclass(frozen=True)
class ImageFiles:
    """A folder, zip or tar with images; ``bytes`` and ``sha256`` of an archive if they are known."""

    path: str
    bytes: int | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        _check_path("path", self.path)


@dataclass(frozen=True)
class FeatureFile:
    """An ``.npy`` file with features of a split: row ``i * every`` belongs to the split's image ``i``.

    ``counts`` is an ``.npy`` file with the number of valid regions of each row, if it differs between images. The first
    ``views`` of an image's ``every`` rows are its views: the whole image, then random crops.
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
            fail("views", f"at most `every`, which is {self.every}", self.views, _FIX_MANIFEST)


@dataclass(frozen=True)
class Manifest:
    """Contents of the manifest; paths are absolute or relative to its folder.

    Attributes:
        name: Name of the dataset.
        splits: Numbers of images and captions of each split, if they are recorded.
        images: Folders and archives with the images; ``source`` in ``images.jsonl`` is an index into them.
        features: Feature files by the name of the features and the split.
        sha256: Checksums of files in the folder.
    """

    name: str
    splits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    images: tuple[ImageFiles, ...] = ()
    features: Mapping[str, Mapping[str, FeatureFile]] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a dataset folder.

    Only ``format`` and ``version`` are required, so that a manifest is easily written by hand. If it does not list
    ``images``, they are expected in ``images``, ``images.zip`` or ``images.tar``.

    Raises:
        ValueError: There is no manifest, so the folder is not a dataset or its import was interrupted; or it is not
            valid.
    """
    path = folder / MANIFEST_FILE
    if not folder.exists():
        raise FileNotFoundError(2, "no such dataset folder", str(folder))
    if not path.exists():
        fail(str(folder), f"a dataset with a {MANIFEST_FILE}", "none", "import it, again if an import was interrupted")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        fail(str(path), f'a JSON object with "format": "{FORMAT}"', "something else", _FIX_MANIFEST)
    if content.get("version") != VERSION:
        fail(str(path), f'"version": {VERSION}', repr(content.get("version")), "use the release of bcls that wrote it")
    usual = [{"path": name} for name in ("images", "images.zip", "images.tar") if (folder / name).exists()]
    try:
        return Manifest(
            str(content.get("name", folder.resolve().name)),
            {str(split): (int(n["images"]), int(n["captions"])) for split, n in content.get("splits", {}).items()},
            tuple(ImageFiles(**one) for one in content.get("images", usual[:1])),
            {
                str(name): {str(split): FeatureFile(**file) for split, file in files.items()}
                for name, files in content.get("features", {}).items()
            },
            {str(file): str(digest) for file, digest in content.get("sha256", {}).items()},
        )
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        fail(str(path), "fields as bcls writes them", f"an invalid one ({str(error)[:200]})", _FIX_MANIFEST)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest. All other files must have been written before."""
    features = manifest.features.items()
    content = {
        "format": FORMAT,
        "version": VERSION,
        "name": manifest.name,
        "splits": {split: {"images": n, "captions": c} for split, (n, c) in manifest.splits.items()},
        "images": [_entry(one) for one in manifest.images],
        "features": {name: {split: _entry(one) for split, one in files.items()} for name, files in features},
        "sha256": dict(manifest.sha256),
    }
    _write_json(folder / MANIFEST_FILE, content)


def add_features(folder: Path, name: str, split: str, file: FeatureFile) -> None:
    """Add the feature file of a split to the manifest and keep everything else in it, what other processes add, too."""
    with lock_folder(folder / "features", wait=True):
        read_manifest(folder)
        content = read_json(folder / MANIFEST_FILE)
        files = content.setdefault("features", {}).setdefault(name, {})
        if files.get(split) != _entry(file):
            files[split] = _entry(file)
            _write_json(folder / MANIFEST_FILE, content)


def _entry(file: ImageFiles | FeatureFile) -> dict[str, Any]:
    entry = {key: value for key, value in vars(file).items() if value is not None}
    if entry.get("views") == 1:  # releases without views read the manifest as well
        del entry["views"]
    return entry


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _check_path(name: str, path: object) -> None:
    if not isinstance(path, str) or not path or "\0" in path or not is_unicode(path):
        fail(name, "the path of a file or folder", repr(path)[:60], _FIX_MANIFEST)


@dataclass(frozen=True)
class Quarantine:
    """Ids of images and captions to skip, each with the reason."""

    images: Mapping[str, str] = field(default_factory=dict)
    captions: Mapping[str, str] = field(default_factory=dict)


def read_quarantine(folder: Path) -> Quarantine:
    """Read the quarantine of a dataset; it is empty if no check has been run.

    Raises:
        ValueError: The file is not what ``bcls data check`` writes.
    """
    path = folder / QUARANTINE_FILE
    if not path.exists():
        return Quarantine()
    content = read_json(path)
    check_shape(str(path), content, {"images": dict, "captions": dict}, f"run `bcls data check {quoted(folder)}` again")
    return Quarantine(content["images"], content["captions"])


def write_quarantine(folder: Path, quarantine: Quarantine) -> None:
    """Write the quarantine of a dataset and replace an older one."""
    _write_json(folder / QUARANTINE_FILE, {"images": dict(quarantine.images), "captions": dict(quarantine.captions)})


#: File that exists while a dataset is written. A folder with it may be overwritten by another import.
_UNFINISHED = ".unfinished"
_LOCK = ".lock"


@dataclass(frozen=True)
class Content:
    """Contents of a dataset, as returned by an importer.

    Attributes:
        name: Name of the dataset.
        images: Its images, in order.
        captions: Its captions, in order.
        sources: Folders and archives with the files of the images.
        features: Feature files by name and split, with absolute paths.
        image_bytes: File names and contents of images that are in no file yet; they are written to ``images.zip``.
        notes: Messages for the user.
    """

    name: str
    images: tuple[ImageRecord, ...]
    captions: tuple[Caption, ...]
    sources: tuple[Path, ...] = ()
    features: Mapping[str, Mapping[str, FeatureFile]] = field(default_factory=dict)
    image_bytes: Iterable[tuple[str, bytes]] | None = None
    notes: tuple[str, ...] = ()


def write_dataset(folder: str | Path, content: Content, *, copy: bool = False, where: str = "source") -> Manifest:
    """Write a dataset folder.

    Args:
        folder: A new or empty folder. Files of an interrupted import are replaced.
        content: The dataset.
        copy: Copy images and features into the folder. Otherwise they stay in place, and the manifest contains their
            paths. Archives remain archives in both cases.
        where: Where the content is from, for error messages.

    Returns:
        The manifest, which is written last.

    Raises:
        ValueError: The folder is not empty, or there are no captions.
        OSError: A file cannot be written.
    """
    folder = Path(folder)
    check_free(folder)
    if not content.captions:
        fail(where, "at least one caption", "none", "check that the file contains captions")
    check_records(content, where)
    with lock_folder(folder, "a folder that no other import writes to", argument="--out", name=_LOCK):
        check_free(folder)  # another import may have finished between the first check and the lock
        (folder / _UNFINISHED).touch()
        write_records(folder, content.images, content.captions)
        images = tuple(_place_source(folder, number, content, copy) for number in range(len(content.sources)))
        if content.image_bytes is not None:
            images = (_pack(folder / "images.zip", content.image_bytes, len(content.images)),)
        captions = Counter(caption.split for caption in content.captions)
        counts = Counter(image.split for image in content.images)
        manifest = Manifest(
            content.name,
            {split: (count, captions[split]) for split, count in counts.items()},
            images,
            {
                name: {split: _place_features(folder, name, file, copy) for split, file in files.items()}
                for name, files in content.features.items()
            },
            {name: sha256_of(folder / name) for name in (CAPTIONS, IMAGES)},
        )
        sync_tree(folder)
        write_manifest(folder, manifest)
        (folder / _UNFINISHED).unlink()
    (folder / _LOCK).unlink(missing_ok=True)
    return manifest


def check_free(folder: Path) -> None:
    """Check that a dataset can be written to a folder: it is new, empty, or left by an interrupted import.

    Raises:
        ValueError: The folder contains a dataset or other files.
    """
    if (folder / MANIFEST_FILE).exists():
        fail("--out", "a new folder", f"{folder} with a dataset in it", "choose another folder or remove that dataset")
    others = {path.name for path in folder.iterdir()} - {_LOCK} if folder.is_dir() else set()
    if others and _UNFINISHED not in others:
        fail("--out", "a new or empty folder", f"{folder} with files in it", "choose another folder")


def check_records(content: Content, where: str = "source") -> None:
    """Check that images and captions can be written: ids are present and unique, texts valid, splits consistent.

    Args:
        content: The images and captions.
        where: Where they are from, for error messages.

    Raises:
        ValueError: They are not; the message names the first one.
    """
    if not is_unicode(content.name):
        fail(where, "a name in valid Unicode", ascii(content.name)[:80], "set the name of the dataset with --name")
    _parse(f"{where}, image", enumerate(one._asdict() for one in content.images), _image)
    _parse(f"{where}, caption", enumerate(one._asdict() for one in content.captions), _caption)
    check_splits(where, content.images, content.captions)


def _place_source(folder: Path, number: int, content: Content, copy: bool) -> ImageFiles:
    source = content.sources[number]
    if not source.is_dir():
        target = source.name if len(content.sources) > 1 else f"images{source.suffix}"
        return _archive(folder, _place(folder, source, target, copy))
    if not copy:
        return ImageFiles(_reference(folder, source))
    target = f"images{number or ''}"
    files = [image.file for image in content.images if image.file is not None and image.source == number]
    for file in track("copying images", files, len(files)):
        _place(folder, source / file, f"{target}/{check_member(str(source), file)}", copy)
    return ImageFiles(target)


def _pack(path: Path, image_bytes: Iterable[tuple[str, bytes]], total: int) -> ImageFiles:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in track("packing images", image_bytes, total):
            archive.writestr(name, content)
    return _archive(path.parent, path.name)


def _archive(folder: Path, path: str) -> ImageFiles:
    return ImageFiles(path, (folder / path).stat().st_size, sha256_of(folder / path))


def _place_features(folder: Path, name: str, file: FeatureFile, copy: bool) -> FeatureFile:
    def place(path: str) -> str:
        return _place(folder, Path(path), f"features/{name}/{Path(path).name}", copy)

    return replace(file, path=place(file.path), counts=file.counts and place(file.counts))


def _place(folder: Path, source: Path, target: str, copy: bool) -> str:
    """Return the path of a file for the manifest: where it is, or in the folder, to which it is copied."""
    if not copy:
        return _reference(folder, source)
    (folder / target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, folder / target)
    return target


def _reference(folder: Path, path: Path) -> str:
    """Return the path relative to the folder if it lies inside, so that the folder can be moved; else absolute."""
    path, folder = path.resolve(), folder.resolve()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
