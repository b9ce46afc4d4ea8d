"""Settings and helpers of all importers, and those of caption files: Karpathy's splits, MS-COCO, tables of captions."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from bcls._core.errors import fail
from bcls._core.files import user_path
from bcls.data.image_files import match_names, open_store
from bcls.data.records import Caption, Content, ImageRecord
from bcls.data.text_files import find_file, get_field, read_json, read_json_lines, read_text

#: Columns with file names come before those that may have other ids.
IMAGE_COLUMNS = ("image", "file_name", "filename", "image_name", "file", "path", "image_path", "image_id", "name")
CAPTION_COLUMNS = ("captions", "caption", "text", "comment", "sentence", "raw", "description")
_SPLITS = ("train", "val", "dev", "testall", "test")
_KARPATHY = 'the format is {"images": [{"filename", "split", "sentences": [{"raw"}]}]}'
_COCO = 'the format is {"images": [{"id", "file_name"}], "annotations": [{"id", "image_id", "caption"}]}, or a list'
_CAPTION_FILES = tuple(
    f"{stem}.{extension}{packed}"
    for stem in ("captions", "metadata", "results")
    for extension in ("jsonl", "csv", "tsv", "txt")
    for packed in ("", ".gz")
)
_FIX = "fix that line"
#: A line of Flickr8k.token.txt and similar files: file name, number of the caption, caption.
_TOKEN_LINE = re.compile(r"(\S.*)#(\d+)\t(.*)")


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


def split_from_name(name: str) -> str:
    """Return the split that a file name contains, ``"train"`` if there is none.

    Example:
        >>> [split_from_name(name) for name in ("captions_val2014.json", "shard-test-0001.tar", "0001.tar")]
        ['val', 'test', 'train']
    """
    words = re.split(r"[^a-z]+", name.lower())
    if "validation" in words or "valid" in words:
        return "val"
    return next((split for split in _SPLITS if split in words), "train")


def source_name(source: Path) -> str:
    """Return the name of a dataset that is imported from a folder or file."""
    source = source.resolve()
    return source.name if source.is_dir() else source.stem


def source_files(source: Path, pattern: str, expected: str, hint: str) -> list[Path]:
    """Return the files of a folder whose names match a pattern, in order; or the file itself.

    Args:
        source: The folder or file.
        pattern: A regular expression.
        expected: What the folder should contain, for the error message.
        hint: What to do otherwise.

    Raises:
        ValueError: The folder has none.
    """
    if not source.is_dir():
        return [source]
    files = sorted(path for path in source.iterdir() if re.fullmatch(pattern, path.name))
    if not files:
        fail(str(source), expected, "none", hint)
    return files


def find_column(where: str, columns: Iterable[str], settings: ImportSettings, kind: str) -> str:
    """Return the column with the image or the caption. The usual names are found in upper and lower case.

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
    columns = tuple(columns)
    name = _column(columns, *usual) if given is None else given
    if name not in columns:
        expected = f"a column {given!r}" if given is not None else f"a column for the {kind}, such as {kind!r}"
        fail(where, expected, ", ".join(columns)[:200] or "nothing", f"set it with --{kind}-column")
    return name


@lru_cache  # called for every row, of which most have the same columns
def _column(columns: tuple[str, ...], *names: str) -> str:
    """Return the column with the first of some names that there is, in upper or lower case; else the first name."""
    spelled = {column.lower(): column for column in columns} | {column: column for column in columns}
    return next((spelled[name] for name in names if name in spelled), names[0])


def find_images(content: Content, wanted: Sequence[Sequence[str]], source: str | Path | None) -> Content:
    """Find the file of each image.

    Args:
        content: A dataset without files.
        wanted: Possible file names of each image, the most likely first.
        source: Folder, zip or tar with the files; ``None`` if there are none.

    Returns:
        The dataset with the files of its images, and messages for the user.

    Raises:
        ValueError: None of the files exists.
    """
    if source is None:
        return replace(content, notes=("the dataset has no images; add them with --images PATH", *content.notes))
    path = user_path(source).resolve()
    available = open_store(path).names()
    stems = {PurePosixPath(name).stem for name in available}
    likely = [next((one for one in names if PurePosixPath(one).stem in stems), names[0]) for names in wanted]
    files, notes = match_names(likely, available)
    found = tuple(image._replace(file=file) for image, file in zip(content.images, files, strict=True))
    missing = [(image.image_id, name) for image, name in zip(found, likely, strict=True) if image.file is None]
    if found and len(missing) == len(found):
        got = f"{len(available)} other images" if available else "no images"
        hint = "set --images to the folder or archive with the images"
        fail("--images", f"files such as {wanted[0][0][:60]!r} in {path}", got, hint)
    if missing:
        first, name = missing[0]
        shared = sum(PurePosixPath(one).stem == PurePosixPath(name).stem for one in available)
        several = f", the name of {shared} files" if shared > 1 else ""
        notes += (f"{len(missing)} of {len(found)} images have no file in {path}, the first is {first!r}{several}",)
    unused = len(set(available) - {image.file for image in found})
    if unused:
        notes += (f"{unused} images in {path.name} have no captions and are left out",)
    return replace(content, images=found, sources=(path,), notes=notes + content.notes)


def read_karpathy(source: Path, settings: ImportSettings) -> Content:
    """Read a ``dataset_*.json[.gz]`` with the splits of Karpathy and Fei-Fei (2015).

    The id of an image is its COCO id if the file has one, else its file name. The id of a caption is its ``sentid``.

    Args:
        source: The JSON file.
        settings: ``images`` is the folder, zip or tar with the images; ``restval`` the split for those images.

    Raises:
        ValueError: The file has another format; the message names the position.
    """
    content = read_json(source)
    images: list[ImageRecord] = []
    wanted: list[tuple[str]] = []
    captions: list[Caption] = []
    moved = 0
    for number, entry in enumerate(get_field(str(source), content, "images", list, hint=_KARPATHY)):
        where = f"{source}, images[{number}]"
        split = get_field(where, entry, "split", str, hint=_KARPATHY)
        if split == "restval" and settings.restval != "restval":
            split = settings.restval
            moved += 1
        filename = get_field(where, entry, "filename", str, hint=_KARPATHY)
        image_id = str(filename if entry.get("cocoid") is None else entry["cocoid"])
        folder = entry.get("filepath")
        images.append(ImageRecord(image_id, split))
        wanted.append((f"{folder}/{filename}" if folder else filename,))
        for index, sentence in enumerate(get_field(where, entry, "sentences", list, hint=_KARPATHY)):
            text = get_field(f"{where}.sentences[{index}]", sentence, "raw", str, hint=_KARPATHY)
            own_id = sentence.get("sentid")
            captions.append(Caption(f"{image_id}#{index}" if own_id is None else str(own_id), image_id, text, split))
    notes = (f"{moved} images of split 'restval' are in {settings.restval!r}",) if moved else ()
    name = settings.name or str(content.get("dataset") or source.name.split(".")[0].removeprefix("dataset_"))
    return find_images(Content(name, tuple(images), tuple(captions), notes=notes), wanted, settings.images)


def read_coco(source: Path, settings: ImportSettings) -> Content:
    """Read a captions file of MS-COCO, a plain list of captions, or all ``*captions*.json[.gz]`` files of a folder.

    The split is ``settings.split``, else taken from the file name, such as ``captions_val2014.json``.

    Args:
        source: The file or folder.
        settings: ``images`` is the folder, zip or tar with the images.

    Raises:
        ValueError: A file has another format; the message names the position.
    """
    hint = "pass the file itself"
    files = source_files(find_file(source), r".*captions.*\.json(\.gz)?", "captions_*.json files", hint)
    captions: list[Caption] = []
    names: dict[str, str] = {}
    for path in files:
        split = settings.split or split_from_name(path.name)
        rows = read_json(path)
        if not isinstance(rows, list):
            for number, image in enumerate(get_field(str(path), rows, "images", list, hint=_COCO)):
                key = str(get_field(f"{path}, images[{number}]", image, "id", str, int, hint=_COCO))
                names[key] = str(image.get("file_name", ""))
            rows = get_field(str(path), rows, "annotations", list, hint=_COCO)
        for number, row in enumerate(rows):
            where = f"{path}, caption {number}"
            image_id = str(get_field(where, row, "image_id", str, int, hint=_COCO))
            key = "caption_id" if "caption_id" in row else "id"
            caption_id = str(get_field(where, row, key, str, int, hint=_COCO))
            text = get_field(where, row, "caption", str, hint=_COCO, empty=True)
            captions.append(Caption(caption_id, image_id, text, split))
    splits = {caption.image_id: caption.split for caption in captions}
    images = tuple(ImageRecord(image, split) for image, split in splits.items())
    wanted = [_coco_names(image, names.get(image, "")) for image in splits]
    uncaptioned = len(names.keys() - splits.keys())
    notes = (f"{uncaptioned} images without captions are left out",) if uncaptioned else ()
    return find_images(Content(settings.name or "coco", images, tuple(captions), notes=notes), wanted, settings.images)


def _coco_names(image_id: str, file_name: str) -> tuple[str, ...]:
    """Return the names that an image has in the official archives."""
    usual: tuple[str, ...] = ()
    if image_id.isdecimal() and len(image_id) <= 12:
        number = f"{int(image_id):012d}.jpg"
        usual = (f"COCO_val2014_{number}", f"COCO_train2014_{number}", number)
    return (file_name, *usual) if file_name else (*usual, image_id)


def read_folder(source: Path, settings: ImportSettings) -> Content:
    """Read images and a table with any number of captions per image.

    Args:
        source: Folder with the images and the captions file, or a zip or tar with the images.
        settings: ``captions`` and ``images`` locate the captions file and the images if they are not found in
            ``source``; ``split`` is the split of rows without one, ``"train"`` by default.

    Raises:
        ValueError: There is no captions file, or a row is invalid; the message names the line.
    """
    splits: dict[str, str] = {}
    captions = []
    counts: Counter[str] = Counter()
    for where, row in read_table(_captions_file(source, settings), settings):
        image_column, caption_column = (find_column(where, row, settings, kind) for kind in ("image", "caption"))
        image = str(get_field(where, row, image_column, str, int, hint=_FIX))
        split_column, id_column = (_column(tuple(row), name) for name in ("split", "caption_id"))
        stated = get_field(where, row, split_column, str, hint=_FIX, empty=True) if row.get(split_column) else ""
        split = stated.strip() or settings.split or "train"
        several = isinstance(row[caption_column], list)  # one caption_id cannot name several captions
        if several and not row[caption_column]:
            continue
        first = splits.setdefault(image, split)
        if first != split:
            got = f"{split!r} here and {first!r} above"
            fail(where, f"one split for image {image!r}", got, "put all captions of an image into one split")
        own_id = "" if several or row.get(id_column) is None else str(row[id_column]).strip()
        for value in row[caption_column] if several else [row[caption_column]]:
            text = get_field(where, {caption_column: value}, caption_column, str, hint=_FIX, empty=True)
            captions.append(Caption(own_id or f"{image}#{counts[image]}", image, text, split))
            counts[image] += 1
    images = tuple(ImageRecord(image, split) for image, split in splits.items())
    usual = [source / name for name in ("images", "images.zip", "images.tar") if (source / name).exists()]
    content = Content(settings.name or source_name(source), images, tuple(captions))
    return find_images(content, [(image,) for image in splits], settings.images or (usual[0] if usual else source))


def _captions_file(source: Path, settings: ImportSettings) -> Path:
    if settings.captions is not None:
        return find_file(user_path(settings.captions))
    if not source.exists():
        raise FileNotFoundError(2, "no such folder", str(source))
    found = [source / name for name in _CAPTION_FILES if (source / name).is_file()] if source.is_dir() else []
    if len(found) != 1:
        got = ", ".join(path.name for path in found) or "none"
        fail(str(source), "one captions file, such as captions.csv", got, "set it with --captions FILE")
    return found[0]


def read_table(path: Path, settings: ImportSettings) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Read a CSV, TSV or JSONL file of captions, plain or gzip.

    Columns are found by their usual names, or set by ``image_column`` and ``caption_column``. Columns ``split`` and
    ``caption_id`` are optional. A JSONL row may have a list of captions. Lines such as ``name.jpg#0<TAB>caption``, the
    format of the Flickr datasets, need no header.

    Yields:
        File and line of each row, for error messages, and its values by column.

    Raises:
        ValueError: A column is missing, or a row has another number of columns; the message names the line.
    """
    extension = PurePosixPath(path.name.removesuffix(".gz")).suffix.lower()
    if extension == ".jsonl":
        yield from ((f"{path}, line {number}", row) for number, row in read_json_lines(path, settings.encoding))
        return
    if extension not in {".csv", ".tsv", ".txt", ".token"}:
        got = extension or "no extension"
        fail(str(path), "a .csv, .tsv, .txt, .token or .jsonl file", got, "convert the file, or correct its name")
    text = read_text(path, settings.encoding)
    first = text.partition("\n")[0].removesuffix("\r")
    if _TOKEN_LINE.fullmatch(first):
        yield from _token_rows(path, text)
    else:
        yield from _csv_rows(path, text, "\t" if extension == ".tsv" else max(",\t|;", key=first.count), settings)


def _token_rows(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            match = _TOKEN_LINE.fullmatch(line.removesuffix("\r"))
            if match is None:
                fail(f"{path}, line {number}", "name#number, a tab, a caption", repr(line[:60]), _FIX)
            row = {"image": match[1], "caption": match[3], "caption_id": f"{match[1]}#{match[2]}"}
            yield f"{path}, line {number}", row


def _csv_rows(
    path: Path, text: str, delimiter: str, settings: ImportSettings
) -> Iterator[tuple[str, Mapping[str, str]]]:
    # Not splitlines(), which also splits at separators inside of captions.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = filter(None, reader)
    try:
        header = [cell.strip() for cell in next(rows, [])]
        for kind in ("image", "caption") if header else ():
            column = find_column(f"{path}, line {reader.line_num}", header, settings, kind)
            if header.count(column) > 1:
                got = f"{header.count(column)} of them"
                hint = "write one row for each caption, or rename the other columns"
                fail(f"{path}, line {reader.line_num}", f"one column {column!r}", got, hint)
        for cells in rows:
            where = f"{path}, line {reader.line_num}"
            if len(cells) != len(header):
                hint = "put captions that contain the separator in quotes"
                fail(where, f"{len(header)} columns", f"{len(cells)}", hint)
            yield where, {column: cell.strip() for column, cell in zip(header, cells, strict=True)}
    except csv.Error as error:
        hint = "double the quotes inside of quoted text"
        fail(f"{path}, line {reader.line_num}", "closed quotes", str(error), hint)
