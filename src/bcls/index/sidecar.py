"""Captions from files beside a photo: ``photo.txt`` and ``photo.json``."""

import json
from typing import Any

#: A file of more bytes is no caption.
MAX_BYTES = 16_384
#: Endings, in the order in which captions are taken from them.
ENDINGS = (".txt", ".json")
_KEYS = ("captions", "caption", "text", "description", "title")


def read_sidecar(ending: str, content: bytes) -> tuple[str, ...]:
    r"""Captions in a file beside a photo.

    A ``.txt`` file has one a line. A ``.json`` file is a string, a list of strings, or an object with ``captions``,
    ``caption``, ``text``, ``description`` or ``title``; anything else in it is passed over, since many programs leave
    files of that ending beside photos.

    Args:
        ending: ``".txt"`` or ``".json"``.
        content: The file's bytes.

    Example:
        >>> read_sidecar(".txt", b"A dog.\n\n A beach. \n")
        ('A dog.', 'A beach.')
        >>> read_sidecar(".json", b'{"title": "Sea", "captions": ["A boat."]}')
        ('A boat.', 'Sea')
    """
    if len(content) > MAX_BYTES:
        return ()
    text = content.decode("utf-8-sig", errors="replace").replace("\0", "")
    if ending == ".txt":
        return _clean(text.splitlines())
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if isinstance(value, dict):
        return _clean([one for key in _KEYS for one in _strings(value.get(key))])
    return _clean(_strings(value))


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _clean(lines: list[str]) -> tuple[str, ...]:
    # JSON can hold half of a surrogate pair, which is no text and fits no file.
    texts = (line.encode(errors="replace").decode().strip() for line in lines)
    return tuple(dict.fromkeys(text for text in texts if text))
