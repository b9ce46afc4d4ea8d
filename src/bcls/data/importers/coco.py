"""Captions of MS-COCO: the official ``captions_*.json``, or a plain list of captions."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bcls._core.errors import fail
from bcls.data.importers.pictures import find_pictures
from bcls.data.importers.settings import ImportSettings
from bcls.data.importers.splits import split_of
from bcls.data.records import Caption, ImageRecord
from bcls.data.text_files import find_file, read_json
from bcls.data.write import Content

_SCHEMA = 'it should hold {"images": [{"id", "file_name"}], "annotations": [{"id", "image_id", "caption"}]}, or a list'


def read(source: Path, settings: ImportSettings) -> Content:
    """Read one captions file, or all ``*captions*.json[.gz]`` files of a folder.

    The split is ``settings.split``, else taken from the file's name, such as ``captions_val2014.json``.

    Args:
        source: The file or folder.
        settings: ``images`` names the folder, zip or tar with the pictures.

    Raises:
        ValueError: A file has another schema; the message names the place.
    """
    captions: list[Caption] = []
    names: dict[str, str] = {}
    for path in _files(source):
        split = settings.split or split_of(path.name)
        content = read_json(path)
        if isinstance(content, dict):
            for number, image in enumerate(_list(path, content, "images")):
                where = f"{path}, images[{number}]"
                key = _key(where, image, "id")
                names[key] = str(image.get("file_name", ""))
            rows = _list(path, content, "annotations")
        else:
            rows = _list(path, {"captions": content}, "captions")
        captions += _captions(path, rows, split)
    splits = {caption.image_id: caption.split for caption in captions}
    images = [ImageRecord(image, split) for image, split in splits.items()]
    wanted = [_names(image.image_id, names.get(image.image_id, "")) for image in images]
    found, sources, notes = find_pictures(images, wanted, settings.images)
    without = len(names.keys() - splits.keys())
    if without:
        notes += (f"{without} images without captions are left out",)
    return Content(settings.name or "coco", found, tuple(captions), sources, notes=notes)


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [find_file(source)]
    files = sorted(path for path in source.iterdir() if re.fullmatch(r".*captions.*\.json(\.gz)?", path.name))
    if not files:
        fail(str(source), "captions_*.json files", "none", "name the file itself")
    return files


def _captions(path: Path, rows: Iterable[Any], split: str) -> list[Caption]:
    captions = []
    for number, row in enumerate(rows):
        where = f"{path}, caption {number}"
        image_id = _key(where, row, "image_id")
        text = row.get("caption")
        if not isinstance(text, str):
            fail(where, "'caption' with a text", repr(text)[:60], _SCHEMA)
        captions.append(Caption(_key(where, row, "caption_id" if "caption_id" in row else "id"), image_id, text, split))
    return captions


def _list(path: Path, content: dict[str, Any], key: str) -> list[Any]:
    value = content.get(key)
    if not isinstance(value, list):
        fail(str(path), f"{key!r} with a list", "something else", _SCHEMA)
    return value


def _key(where: str, row: Any, key: str) -> str:
    value = row.get(key) if isinstance(row, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        fail(where, f"{key!r} with a number or text", repr(value)[:60], _SCHEMA)
    return str(value)


def _names(image_id: str, file_name: str) -> tuple[str, ...]:
    """Names that the official archives have for an image."""
    usual: tuple[str, ...] = ()
    if image_id.isdecimal() and len(image_id) <= 12:
        number = f"{int(image_id):012d}.jpg"
        usual = (f"COCO_val2014_{number}", f"COCO_train2014_{number}", number)
    return (file_name, *usual) if file_name else (*usual, image_id)
