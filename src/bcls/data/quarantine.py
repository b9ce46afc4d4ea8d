"""``quarantine.json``: images and captions that training should skip, each with the reason."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bcls._checks import fail
from bcls._files import write_whole
from bcls.data.text_files import read_json

FILE = "quarantine.json"


@dataclass(frozen=True)
class Quarantine:
    """Ids of bad images and captions, each with the reason."""

    images: Mapping[str, str] = field(default_factory=dict)
    captions: Mapping[str, str] = field(default_factory=dict)


def read_quarantine(folder: Path) -> Quarantine:
    """Read a dataset's quarantine; an empty one where no check has written any.

    Raises:
        ValueError: The file is not what ``bcls data check`` writes.
    """
    path = folder / FILE
    if not path.exists():
        return Quarantine()
    content = read_json(path)
    parts = [content.get(part) if isinstance(content, dict) else None for part in ("images", "captions")]
    images, captions = parts
    if not isinstance(images, dict) or not isinstance(captions, dict):
        fail(str(path), '"images" and "captions" with ids and reasons', "something else", "run `bcls data check` again")
    return Quarantine(images, captions)


def write_quarantine(folder: Path, quarantine: Quarantine) -> None:
    """Write a dataset's quarantine, in place of an older one."""
    content = {"images": dict(quarantine.images), "captions": dict(quarantine.captions)}
    write_whole(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
