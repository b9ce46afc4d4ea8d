"""Writes a dataset folder: records, pictures where asked for, and the manifest last."""

import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bcls._core.errors import fail
from bcls._core.extras import sha256_of
from bcls._core.files import sync_folder, take
from bcls._core.progress import progress
from bcls.data.image_files import check_member, open_store
from bcls.data.records import (
    CAPTIONS,
    FILE,
    IMAGES,
    Caption,
    FeatureFile,
    ImageFiles,
    ImageRecord,
    Manifest,
    write_manifest,
    write_records,
)
from bcls.data.text_files import is_unicode

#: Lies in the folder while a dataset is written, so that another import may take up what a broken-off one left.
_UNFINISHED = ".unfinished"


@dataclass(frozen=True)
class Content:
    """What an importer found.

    Attributes:
        name: Name of the dataset.
        images: Its images, in order.
        captions: Its captions, in order.
        sources: Folders and archives that the images' files are in.
        features: Feature files by name and split, with absolute paths.
        pictures: Names and bytes of pictures that lie in no file yet; they are written to ``images.zip``.
        notes: What the user should be told.
    """

    name: str
    images: tuple[ImageRecord, ...]
    captions: tuple[Caption, ...]
    sources: tuple[Path, ...] = ()
    features: Mapping[str, Mapping[str, FeatureFile]] = field(default_factory=dict)
    pictures: Iterable[tuple[str, bytes]] | None = None
    notes: tuple[str, ...] = ()


def write_dataset(folder: str | Path, content: Content, *, copy: bool = False) -> Manifest:
    """Write a dataset folder.

    Args:
        folder: Where to; new or empty. What a broken-off import left there is replaced.
        content: The dataset.
        copy: Copy pictures and features into the folder. Without it they stay where they are, and the manifest says
            where that is. Archives stay archives either way.

    Returns:
        The manifest, which was written last.

    Raises:
        ValueError: The folder is not empty, or there is nothing to write.
        OSError: Something cannot be written.
    """
    folder = Path(folder)
    check_free(folder)
    if not content.captions:
        fail("source", "at least one caption", "none", "check that the captions are in the file")
    check_records(content)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        return _write(folder, content, copy=copy)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process write; the system lets go of the lock when it ends, however it ends."""
    with (folder / _UNFINISHED).open("a+", encoding="utf-8") as file:
        owner = take(file)
        if owner is not None:
            got = f"{folder}, in use by {owner}"
            fail("out", "a folder that no other import writes to", got, "wait for it, or choose another")
        # Another import may have been finished between the first look and the lock.
        if (folder / FILE).exists():
            (folder / _UNFINISHED).unlink(missing_ok=True)
            check_free(folder)
        yield


def _write(folder: Path, content: Content, *, copy: bool) -> Manifest:
    write_records(folder, content.images, content.captions)
    images = tuple(_place_images(folder, number, content, copy) for number in range(len(content.sources)))
    if content.pictures is not None:
        images = (_pack(folder, content.pictures, len(content.images)),)
    manifest = Manifest(
        content.name,
        _count(content),
        images,
        {
            name: {split: _place_features(folder, name, file, copy) for split, file in files.items()}
            for name, files in content.features.items()
        },
        {name: sha256_of(folder / name) for name in (CAPTIONS, IMAGES)},
    )
    _sync(folder)
    write_manifest(folder, manifest)
    (folder / _UNFINISHED).unlink()
    return manifest


def check_free(folder: Path) -> None:
    """Refuse a folder that holds something, before any work is done; what a broken-off import left may be replaced.

    Raises:
        ValueError: It is not empty.
    """
    if (folder / FILE).exists():
        fail("out", "a new folder", f"{folder} with a dataset in it", "choose another, or remove that one first")
    if folder.is_dir() and not (folder / _UNFINISHED).exists() and any(folder.iterdir()):
        fail("out", "a new or empty folder", f"{folder} with files in it", "choose another")


def check_records(content: Content) -> None:
    """Refuse images and captions that cannot be written: without an id, with one twice, in two splits, or no text.

    Raises:
        ValueError: There are such; the message names the first.
    """
    _check_unicode(content)
    splits: dict[str, str] = {}
    for image in content.images:
        if not image.image_id or not image.split:
            got = f"{image.image_id!r} in split {image.split!r}"
            fail("source", "an id and a split for every image", got, "mend the source: one of the two is empty")
        if image.image_id in splits:
            fail("source", "each image once", f"{image.image_id!r} twice", "give the images ids of their own")
        splits[image.image_id] = image.split
    seen = set()
    for caption in content.captions:
        if not caption.caption_id:
            fail("source", "an id for every caption", f"none for {caption.text[:60]!r}", "mend the source")
        if caption.caption_id in seen:
            fail(
                "source", "each caption id once", f"{caption.caption_id!r} twice", "give the captions ids of their own"
            )
        seen.add(caption.caption_id)
        if splits.get(caption.image_id) != caption.split:
            got = f"{caption.image_id!r} in {splits.get(caption.image_id, 'none')!r}"
            fail("source", f"caption {caption.caption_id!r} and its image in one split", got, "mend the source")


def _check_unicode(content: Content) -> None:
    if not is_unicode(content.name):
        fail("source", "a name in valid Unicode", ascii(content.name)[:80], "name the dataset with --name")
    for text in (text for one in (*content.images, *content.captions) for text in one if isinstance(text, str)):
        if not is_unicode(text):
            fail("captions", "valid Unicode", ascii(text[:80]), "half of a surrogate pair: mend the source file")


def _count(content: Content) -> dict[str, tuple[int, int]]:
    counts = {image.split: [0, 0] for image in content.images}
    for image in content.images:
        counts[image.split][0] += 1
    for caption in content.captions:
        counts[caption.split][1] += 1
    return {split: (images, captions) for split, (images, captions) in counts.items()}


def _place_images(folder: Path, number: int, content: Content, copy: bool) -> ImageFiles:
    source = content.sources[number]
    if source.is_dir():
        if not copy:
            return ImageFiles(_reference(folder, source))
        _copy_pictures(folder, number, content)
        return ImageFiles(_images_folder(number))
    if not copy:
        return ImageFiles(_reference(folder, source), source.stat().st_size, sha256_of(source))
    name = source.name if len(content.sources) > 1 else f"images{source.suffix}"
    _copy_file(source, folder / name)
    return ImageFiles(name, source.stat().st_size, sha256_of(folder / name))


def _copy_pictures(folder: Path, number: int, content: Content) -> None:
    store = open_store(content.sources[number])
    files = [image.file for image in content.images if image.file is not None and image.source == number]
    with progress("copying images", len(files)) as step:
        for done, file in enumerate(files, start=1):
            to = folder / _images_folder(number) / check_member(str(store.path), file)
            to.parent.mkdir(parents=True, exist_ok=True)
            _copy_file(store.path / file, to)
            step(done)


def _images_folder(number: int) -> str:
    return f"images{number or ''}"


def _pack(folder: Path, pictures: Iterable[tuple[str, bytes]], total: int) -> ImageFiles:
    path = folder / "images.zip"
    temporary = folder / ".images.zip.tmp"
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive, progress("packing images", total) as step:
            for done, (name, picture) in enumerate(pictures, start=1):
                archive.writestr(name, picture)
                step(done)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return ImageFiles(path.name, path.stat().st_size, sha256_of(path))


def _place_features(folder: Path, name: str, file: FeatureFile, copy: bool) -> FeatureFile:
    path = _place_feature_file(folder, name, Path(file.path), copy)
    counts = None if file.counts is None else _place_feature_file(folder, name, Path(file.counts), copy)
    return replace(file, path=path, counts=counts)


def _place_feature_file(folder: Path, name: str, source: Path, copy: bool) -> str:
    if not copy:
        return _reference(folder, source)
    to = Path("features") / name / source.name
    (folder / to).parent.mkdir(parents=True, exist_ok=True)
    _copy_file(source, folder / to)
    return to.as_posix()


def _copy_file(source: Path, to: Path) -> None:
    temporary = to.with_name(f".{to.name}.{os.getpid()}.tmp")
    try:
        shutil.copyfile(source, temporary)
        temporary.replace(to)
    finally:
        temporary.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """See that everything in a folder is on the disk; all at once, which is faster than one file after another."""
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _reference(folder: Path, path: Path) -> str:
    """The path relative to the folder where it lies inside, so that the folder can be moved; else absolute."""
    path, folder = path.resolve(), folder.resolve()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
