"""Images and captions as records, and the two files that hold them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from bcls._checks import fail, reason_of
from bcls._extras import require
from bcls._files import write_whole
from bcls.data.text_files import is_unicode, read_json_lines

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
