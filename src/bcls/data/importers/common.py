"""Settings of an import, and helpers that several formats use: splits, columns and image files."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bcls._core.errors import fail
from bcls.data.image_files import match_names, open_store
from bcls.data.records import ImageRecord

IMAGE_COLUMNS = ("image", "image_id", "file_name", "filename", "image_name", "file", "path", "image_path", "name")
CAPTION_COLUMNS = ("text", "caption", "captions", "comment", "sentence", "raw", "description")
_SPLITS = ("train", "val", "dev", "testall", "test")


@dataclass(frozen=True)
class ImportSettings:
    """Flags of ``bcls data import``.

    Attributes:
        out: Folder for the dataset, new or empty; for butd, the dataset that gets the features.
        images: Folder, zip or tar with the images.
        captions: File with the captions if it is not found in the source folder (folder).
        name: Name of the dataset; taken from the source by default.
        split: Split of all imported images if the source has none (folder, coco, webdataset).
        held_out: Share of the images for `val`, and the same share for `test`, if the source has no splits (folder,
            coco, webdataset, huggingface).
        restval: Split for COCO's `restval` images (karpathy).
        image_column: Column or key with the file name of the image (folder, huggingface).
        caption_column: Column or key with the caption (folder, huggingface).
        encoding: Encoding of text files (folder, scan).
        copy: Copy images and features into the dataset folder; otherwise they stay in place.
        json: Print the result as JSON.
    """

    out: str
    images: str | None = None
    captions: str | None = None
    name: str | None = None
    split: str | None = None
    held_out: float | None = None
    restval: str = "train"
    image_column: str | None = None
    caption_column: str | None = None
    encoding: str = "utf-8"
    copy: bool = False
    json: bool = False


def split_from_name(name: str, default: str = "train") -> str:
    """Return the split that a file name contains.

    Example:
        >>> [split_from_name(name) for name in ("captions_val2014.json", "shard-test-0001.tar", "0001.tar")]
        ['val', 'test', 'train']
    """
    words = re.split(r"[^a-z]+", name.lower())
    if "validation" in words or "valid" in words:
        return "val"
    return next((split for split in _SPLITS if split in words), default)


def source_name(source: Path) -> str:
    """Return the name of a dataset that is imported from a folder or file."""
    source = source.resolve()
    return source.name if source.is_dir() else source.stem


def find_column(where: str, columns: Iterable[str], settings: ImportSettings, kind: str) -> str:
    """Return the column with the image or the caption.

    Args:
        where: File and line, for the error message.
        columns: Existing columns.
        settings: ``image_column`` and ``caption_column``, if set, name the column.
        kind: ``"image"`` or ``"caption"``.

    Raises:
        ValueError: There is no such column.
    """
    given = settings.image_column if kind == "image" else settings.caption_column
    usual = IMAGE_COLUMNS if kind == "image" else CAPTION_COLUMNS
    columns = list(columns)
    name = next((name for name in (usual if given is None else (given,)) if name in columns), None)
    if name is None:
        expected = f"a column {given!r}" if given is not None else f"a column for the {kind}, such as {kind!r}"
        fail(where, expected, ", ".join(columns)[:200] or "nothing", f"set it with --{kind}-column")
    return name


def find_images(
    images: Sequence[ImageRecord], wanted: Sequence[Sequence[str]], source: str | Path | None
) -> tuple[tuple[ImageRecord, ...], tuple[Path, ...], tuple[str, ...]]:
    """Find the file of each image.

    Args:
        images: The images.
        wanted: Possible file names of each image, the most likely first.
        source: Folder, zip or tar with the files; ``None`` if there are none.

    Returns:
        The images with their files, the source as a tuple, and messages for the user.

    Raises:
        ValueError: None of the files exists.
    """
    if source is None:
        return tuple(images), (), ("the dataset has no images; add them with --images PATH",)
    path = Path(source).resolve()
    available = open_store(path).names()
    files: list[str | None] = [None] * len(images)
    notes: list[str] = []
    for rank in range(max(map(len, wanted), default=0)):
        left = [index for index, names in enumerate(wanted) if files[index] is None and rank < len(names)]
        match = match_names([wanted[index][rank] for index in left], available)
        notes += match.notes
        taken = set(files)
        for index, file in zip(left, match.files, strict=True):
            files[index] = None if file in taken else file
    missing = [image.image_id for image, file in zip(images, files, strict=True) if file is None]
    if images and len(missing) == len(images):
        got = f"{len(available)} other images" if available else "no images"
        hint = "set --images to the folder or archive with the images"
        fail("--images", f"files such as {wanted[0][0][:60]!r} in {path}", got, hint)
    if missing:
        notes.append(f"{len(missing)} of {len(images)} images have no file in {path}, the first is {missing[0]!r}")
    unused = len(available) - len(set(files) - {None})
    if unused:
        notes.append(f"{unused} images in {path.name} have no captions and are left out")
    found = tuple(image._replace(file=file) for image, file in zip(images, files, strict=True))
    return found, (path,), tuple(notes)
