"""``dataset_flickr8k.json`` and its like: captions with the splits of Karpathy and Fei-Fei (2015)."""

from pathlib import Path
from typing import Any

from bcls._core.errors import fail
from bcls.data.importers.pictures import find_pictures
from bcls.data.importers.settings import ImportSettings
from bcls.data.records import Caption, ImageRecord
from bcls.data.text_files import read_json
from bcls.data.write import Content

_SCHEMA = 'it should look like {"images": [{"filename", "split", "sentences": [{"raw"}]}]}'


def read(source: Path, settings: ImportSettings) -> Content:
    """Read a ``dataset_*.json[.gz]``.

    An image's id is its COCO id where the file has one, else its file name. A caption's id is its ``sentid``.

    Args:
        source: The JSON file.
        settings: ``images`` names the folder, zip or tar with the pictures; ``restval`` the split for those images.

    Raises:
        ValueError: The file has another schema; the message names the place.
    """
    content = read_json(source)
    entries = content.get("images") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        fail(str(source), '"images" with a list', "something else", _SCHEMA)
    images: list[ImageRecord] = []
    wanted: list[tuple[str]] = []
    captions: list[Caption] = []
    moved = 0
    for number, entry in enumerate(entries):
        where = f"{source}, images[{number}]"
        split = _field(where, entry, "split", str)
        if split == "restval" and settings.restval != "restval":
            split = settings.restval
            moved += 1
        filename = _field(where, entry, "filename", str)
        image_id = str(entry.get("cocoid", filename))
        folder = entry.get("filepath")
        images.append(ImageRecord(image_id, split))
        wanted.append((f"{folder}/{filename}" if folder else filename,))
        for place, sentence in enumerate(_field(where, entry, "sentences", list)):
            text = _field(f"{where}.sentences[{place}]", sentence, "raw", str)
            captions.append(Caption(str(sentence.get("sentid", f"{image_id}#{place}")), image_id, text, split))
    found, sources, notes = find_pictures(images, wanted, settings.images)
    if moved:
        notes += (f"{moved} images of split 'restval' went to {settings.restval!r}",)
    name = settings.name or str(content.get("dataset") or source.name.split(".")[0].removeprefix("dataset_"))
    return Content(name, found, tuple(captions), sources, notes=notes)


def _field(where: str, entry: Any, key: str, kind: type) -> Any:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or value == "":
        got = repr(value)[:60] if isinstance(entry, dict) and key in entry else "none"
        fail(where, f"{key!r} with a {'list' if kind is list else 'text'}", got, _SCHEMA)
    return value
