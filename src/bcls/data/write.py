"""Writing of a dataset folder: records, optionally copied images and features, and the manifest last."""

import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import bcls.data.records as records
from bcls._core.errors import fail
from bcls._core.extras import sha256_of
from bcls._core.files import sync_folder
from bcls._core.locks import lock_folder
from bcls._core.progress import progress
from bcls.data.image_files import check_member
from bcls.data.records import Caption, FeatureFile, ImageFiles, ImageRecord, Manifest, write_manifest
from bcls.data.text_files import is_unicode

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


def write_dataset(folder: str | Path, content: Content, *, copy: bool = False) -> Manifest:
    """Write a dataset folder.

    Args:
        folder: A new or empty folder. Files of an interrupted import are replaced.
        content: The dataset.
        copy: Copy images and features into the folder. Otherwise they stay in place, and the manifest contains their
            paths. Archives remain archives in both cases.

    Returns:
        The manifest, which is written last.

    Raises:
        ValueError: The folder is not empty, or there are no captions.
        OSError: A file cannot be written.
    """
    folder = Path(folder)
    check_free(folder)
    if not content.captions:
        fail("source", "at least one caption", "none", "check that the file contains captions")
    check_records(content)
    with lock_folder(folder, "a folder that no other import writes to", argument="--out", name=_LOCK):
        check_free(folder)  # another import may have finished between the first check and the lock
        (folder / _UNFINISHED).touch()
        records.write_records(folder, content.images, content.captions)
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
            {name: sha256_of(folder / name) for name in (records.CAPTIONS, records.IMAGES)},
        )
        _sync(folder)
        write_manifest(folder, manifest)
        (folder / _UNFINISHED).unlink()
    (folder / _LOCK).unlink(missing_ok=True)
    return manifest


def check_free(folder: Path) -> None:
    """Check that a dataset can be written to a folder: it is new, empty, or left by an interrupted import.

    Raises:
        ValueError: The folder contains a dataset or other files.
    """
    if (folder / records.MANIFEST_FILE).exists():
        fail("--out", "a new folder", f"{folder} with a dataset in it", "choose another folder or remove that dataset")
    others = {path.name for path in folder.iterdir()} - {_LOCK} if folder.is_dir() else set()
    if others and _UNFINISHED not in others:
        fail("--out", "a new or empty folder", f"{folder} with files in it", "choose another folder")


def check_records(content: Content) -> None:
    """Check that images and captions can be written: ids are present and unique, texts valid, splits consistent.

    Raises:
        ValueError: They are not; the message names the first one.
    """
    if not is_unicode(content.name):
        fail("source", "a name in valid Unicode", ascii(content.name)[:80], "set the name of the dataset with --name")
    for what, rows in (("image", content.images), ("caption", content.captions)):
        seen = set()
        for record in rows:
            for key, value in zip(record._fields, record, strict=True):
                if isinstance(value, str) and not is_unicode(value):
                    hint = "fix the source: it contains half of a surrogate pair"
                    fail("source", f"{key!r} in valid Unicode", ascii(value[:80]), hint)
            if not record[0] or not record.split:
                got = f"{record[0]!r} in split {record.split!r}"
                fail("source", f"an id and a split for every {what}", got, "fix the source")
            if record[0] in seen:
                fail("source", f"a unique id for every {what}", f"{record[0]!r} twice", "fix the source")
            seen.add(record[0])
    records.check_splits("source", content.images, content.captions)


def _place_source(folder: Path, number: int, content: Content, copy: bool) -> ImageFiles:
    source = content.sources[number]
    path = _reference(folder, source)
    if copy and source.is_dir():
        path = f"images{number or ''}"
        files = [image.file for image in content.images if image.file is not None and image.source == number]
        with progress("copying images", len(files)) as step:
            for done, file in enumerate(files, start=1):
                _copy(source / file, folder / path / check_member(str(source), file))
                step(done)
    elif copy:
        path = source.name if len(content.sources) > 1 else f"images{source.suffix}"
        _copy(source, folder / path)
    return ImageFiles(path) if source.is_dir() else _archive(folder, path)


def _pack(path: Path, image_bytes: Iterable[tuple[str, bytes]], total: int) -> ImageFiles:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive, progress("packing images", total) as step:
        for done, (name, content) in enumerate(image_bytes, start=1):
            archive.writestr(name, content)
            step(done)
    return _archive(path.parent, path.name)


def _archive(folder: Path, path: str) -> ImageFiles:
    return ImageFiles(path, (folder / path).stat().st_size, sha256_of(folder / path))


def _place_features(folder: Path, name: str, file: FeatureFile, copy: bool) -> FeatureFile:
    def place(path: str) -> str:
        if not copy:
            return _reference(folder, Path(path))
        target = f"features/{name}/{Path(path).name}"
        _copy(Path(path), folder / target)
        return target

    return replace(file, path=place(file.path), counts=file.counts and place(file.counts))


def _copy(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, to)


def _reference(folder: Path, path: Path) -> str:
    """Return the path relative to the folder if it lies inside, so that the folder can be moved; else absolute."""
    path, folder = path.resolve(), folder.resolve()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _sync(folder: Path) -> None:
    """Flush all files of a folder to disk; at the end, which is faster than after every file."""
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
