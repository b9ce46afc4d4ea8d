"""Rows of captions from CSV, TSV and JSONL files."""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bcls._core.errors import fail
from bcls.data.importers.settings import ImportSettings
from bcls.data.text_files import read_json_lines, read_text

IMAGE_NAMES = ("image", "image_id", "file_name", "filename", "image_name", "file", "path", "image_path", "name")
TEXT_NAMES = ("text", "caption", "captions", "comment", "sentence", "raw", "description")
#: A line of Flickr8k.token.txt and its like: a file name, the caption's number, the caption.
_TOKEN = re.compile(r"(\S.*)#(\d+)\t(.*)")


class Row(NamedTuple):
    """A caption with the name of its image, and where it was read."""

    where: str
    image: str
    text: str
    split: str
    caption_id: str | None


def read_table(path: Path, settings: ImportSettings) -> Iterator[Row]:
    """Read a file of captions, plain or gzip, by its ending.

    Columns are found by their usual names, or named by ``image_column`` and ``caption_column``. A column ``split`` and
    a column ``caption_id`` are used where they are there. A JSONL row may have a list of captions. Lines such as
    ``name.jpg#0<TAB>caption``, as the Flickr datasets have them, need no header.

    Raises:
        ValueError: A column is missing or a row has too many or too few; the message names the line.
    """
    ending = path.name.removesuffix(".gz").rpartition(".")[2].lower()
    if ending == "jsonl":
        yield from _json_rows(path, settings)
        return
    if ending not in {"csv", "tsv", "txt"}:
        fail(str(path), "a .csv, .tsv, .txt or .jsonl file", f".{ending}", "convert it, or name it by what it is")
    text = read_text(path, settings.encoding)
    first = text.partition("\n")[0].removesuffix("\r")
    if _TOKEN.fullmatch(first):
        yield from _token_rows(path, text, settings)
    else:
        yield from _cell_rows(path, text, _delimiter(ending, first), settings)


def _delimiter(ending: str, header: str) -> str:
    if ending == "tsv":
        return "\t"
    return max(",\t|;", key=header.count)


def _json_rows(path: Path, settings: ImportSettings) -> Iterator[Row]:
    for number, row in read_json_lines(path, settings.encoding):
        where = f"{path}, line {number}"
        image = row[_column(where, row, settings.image_column, IMAGE_NAMES, "image")]
        texts = row[_column(where, row, settings.caption_column, TEXT_NAMES, "caption")]
        several = isinstance(texts, list)
        for text in texts if several else [texts]:
            yield _row(where, image, text, row, settings, None if several else row.get("caption_id"))


def _token_rows(path: Path, text: str, settings: ImportSettings) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        match = _TOKEN.fullmatch(line.removesuffix("\r"))
        if match is None:
            fail(where, "name#number, a tab, a caption", repr(line[:60]), "mend that line")
        yield _row(where, match[1], match[3], {}, settings, f"{match[1]}#{match[2]}")


def _cell_rows(path: Path, text: str, delimiter: str, settings: ImportSettings) -> Iterator[Row]:
    # Not splitlines(), which also breaks at separators that belong to a caption.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for cells in reader:
            where = f"{path}, line {reader.line_num}"
            if not cells:
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                names = dict.fromkeys(header)
                image = _column(where, names, settings.image_column, IMAGE_NAMES, "image")
                caption = _column(where, names, settings.caption_column, TEXT_NAMES, "caption")
                continue
            if len(cells) != len(header):
                fail(where, f"{len(header)} columns", f"{len(cells)}", "put captions that hold the separator in quotes")
            row = dict(zip(header, cells, strict=True))
            yield _row(where, row[image].strip(), row[caption].strip(), row, settings, row.get("caption_id"))
    except csv.Error as error:
        fail(f"{path}, line {reader.line_num}", "quotes that close", str(error), "double the quotes inside quoted text")


def _column(where: str, row: Mapping[str, Any], asked: str | None, usual: tuple[str, ...], what: str) -> str:
    name = next((name for name in ((asked,) if asked is not None else usual) if name in row), None)
    if name is None:
        expected = f"a column {asked!r}" if asked is not None else f"a column for the {what}, such as {usual[1]!r}"
        fail(where, expected, ", ".join(map(str, row))[:200] or "nothing", f"name it with --{what}_column")
    return name


def _row(where: str, image: Any, text: Any, row: Mapping[str, Any], settings: ImportSettings, caption_id: Any) -> Row:
    if isinstance(image, bool) or not isinstance(image, str | int) or image == "":
        fail(where, "the name of an image", repr(image)[:60], "mend that line")
    if not isinstance(text, str):
        fail(where, "a caption", repr(text)[:60], "mend that line")
    split = row.get("split") or ""
    if not isinstance(split, str):
        fail(where, "the name of a split", repr(split)[:60], "mend that line")
    named = "" if caption_id is None else str(caption_id).strip()
    return Row(where, str(image), text, split.strip() or settings.split or "train", named or None)
