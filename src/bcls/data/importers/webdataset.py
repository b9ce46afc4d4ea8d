"""Tar files in the style of WebDataset: members that share a key are one sample."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

from bcls._core.errors import fail
from bcls.data.image_files import TarStore, is_picture, open_store
from bcls.data.importers.settings import ImportSettings
from bcls.data.importers.splits import split_of
from bcls.data.records import Caption, ImageRecord
from bcls.data.text_files import json_trouble
from bcls.data.write import Content

_KEYS = ("captions", "caption", "text")
#: A text member of more bytes than this is no caption.
_MOST = 10 * 2**20


def read(source: Path, settings: ImportSettings) -> Content:
    """Read one tar file, or all of a folder.

    A sample is a picture with a caption in ``KEY.txt``, or in ``KEY.json`` under ``caption``, ``captions`` or ``text``.
    The key is the image's id. The split is ``settings.split``, else taken from the tar's name.

    Args:
        source: The file or folder.
        settings: See above.

    Raises:
        ValueError: A file is no plain tar, or a caption is wrong; the message names the member.
    """
    tars = sorted(source.glob("*.tar")) if source.is_dir() else [source]
    if not tars:
        fail(str(source), "a .tar file or a folder of them", "none", "point to the folder with the tar files")
    images: list[ImageRecord] = []
    captions: list[Caption] = []
    without = 0
    for number, path in enumerate(tars):
        store = open_store(path)
        if not isinstance(store, TarStore):
            fail(str(path), "a tar file", "something else", "name the tar files, or their folder")
        split = settings.split or split_of(path.name)
        for key, members in _samples(store).items():
            picture = next((member for member in members if is_picture(member)), None)
            texts = _texts(store, members)
            if picture is None or texts is None:
                without += 1
                continue
            images.append(ImageRecord(key, split, picture, number))
            captions += [Caption(f"{key}#{place}", key, text, split) for place, text in enumerate(texts)]
    notes = (f"{without} samples without a picture or a caption are left out",) if without else ()
    sources = tuple(path.resolve() for path in tars)
    whole = source.resolve()
    name = settings.name or (whole.name if whole.is_dir() else whole.stem)
    return Content(name, tuple(images), tuple(captions), sources, notes=notes)


def _samples(store: TarStore) -> dict[str, list[str]]:
    samples: dict[str, list[str]] = {}
    for member in store.members():
        path = PurePosixPath(member)
        key = str(path.parent / path.name.split(".")[0])
        samples.setdefault(key, []).append(member)
    return samples


def _texts(store: TarStore, members: list[str]) -> list[str] | None:
    for ending in (".txt", ".json"):
        for member in members:
            if member.endswith(ending) and store.members()[member][1] <= _MOST:
                where = f"{store.path}: {member}"
                texts = _parse(where, store.read(member), ending)
                if texts is not None:
                    return texts
    return None


def _parse(where: str, content: bytes, ending: str) -> list[str] | None:
    try:
        text = content.decode("utf-8-sig")
        if ending == ".txt":
            return [text.strip()]
        value: Any = json.loads(text)
    except UnicodeDecodeError as error:
        fail(where, "utf-8 text", f"the byte 0x{content[error.start]:02x}", "convert the captions")
    except (ValueError, RecursionError) as error:
        fail(where, "JSON", json_trouble(error), "mend that member")
    if isinstance(value, dict):
        value = next((value[key] for key in _KEYS if key in value), None)
        if value is None:
            return None
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str) for one in texts):
        fail(where, "captions as text", repr(value)[:60], "mend that member")
    return texts
