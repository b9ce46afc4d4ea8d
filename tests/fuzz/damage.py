"""Damage to bytes and to JSON."""

import copy
import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

#: Difficult byte sequences: marks of encodings and formats, extreme numbers, syntax of parsers.
BITS = (
    b"",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\r",
    b"\r\n",
    b"\n",
    b"\t",
    b'"',
    b"'",
    b",",
    b"[" * 3000,
    b"{",
    b"}",
    b"]",
    b"9" * 5000,
    b"-1",
    b"1e999",
    b"NaN",
    b"Infinity",
    b"null",
    b"true",
    b"../",
    b"/",
    b"\x1f\x8b\x08",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"\x93NUMPY\x01\0",
    b"#0\t",
    b"\xe2\x80\xa8",
    b"%s",
    b"a" * 200_000,
    struct.pack("<q", -1),
    struct.pack("<q", 2**62),
    struct.pack("<i", 2**31 - 1),
    struct.pack(">i", 2**31 - 1),
)
#: Replacement values in JSON.
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    2**31,
    2**63,
    2**64,
    10**400,
    0.5,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "a",
    "\ud800",
    "\0",
    "../../a",
    "/etc/passwd",
    "0",
    "1e5",
    "x" * 3000,
    [],
    {},
    [[]],
    [None],
    {"": None},
    [0] * 50,
    "a/b",
    "train",
)


def damage(draw: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a valid input with a few changes: flipped bits, truncation, repeats, pieces of another input, inserts."""
    content = bytearray(draw.choice(seeds))
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        content = bytearray(draw.choice(_CHANGES)(draw, content, seeds))
    return bytes(content[: 2**21])


def damage_json(draw: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return JSON or JSON lines with changed values; sometimes with damaged bytes instead."""
    if draw.random() < 0.3:
        return damage(draw, seeds)
    content = draw.choice(seeds)
    try:
        return _dump(change_value(draw, json.loads(content)))
    except ValueError:
        lines = content.splitlines()
        place = draw.randrange(len(lines))
        try:
            lines[place] = _dump(change_value(draw, json.loads(lines[place])))
        except ValueError:
            return damage(draw, seeds)
        if draw.random() < 0.1:
            lines.insert(draw.randrange(len(lines)), draw.choice(lines))
        return b"\n".join(lines) + b"\n"


def change_value(draw: random.Random, value: Any) -> Any:
    """Return a JSON value with one to three changes."""
    box = [value]
    for _ in range(draw.choice((1, 1, 2, 3))):
        holder, key = draw.choice(list(_slots(box)))
        how = draw.random()
        if how < 0.15 and isinstance(key, str):
            del holder[key]
        elif how < 0.25:
            holder[key] = [holder[key]]
        elif how < 0.3 and isinstance(holder[key], dict):
            holder[key][draw.choice(("", "name", "extra", "0"))] = copy.deepcopy(draw.choice(VALUES))
        elif how < 0.33:
            holder[key] = _deep(draw.choice((50, 5000)))
        else:
            holder[key] = copy.deepcopy(draw.choice(VALUES))
    return box[0]


def or_plain(make: Callable[[random.Random, Sequence[bytes]], bytes], share: float = 0.5):
    """Use ``make`` for a share of the cases, and :func:`damage` for the others."""
    return lambda draw, seeds: (make if draw.random() < share else damage)(draw, seeds)


def _slots(value: Any):
    """Yield every container in a value with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _slots(inner)


def _deep(levels: int) -> Any:
    return _Raw("[" * levels + "]" * levels)


class _Raw(float):
    """A number that is written to JSON as a given text."""

    def __new__(cls, text):
        made = super().__new__(cls, 0.0)
        made.text = text
        return made

    def __repr__(self):
        return self.text


def _dump(value: Any) -> bytes:
    marks: list[str] = []
    text = json.dumps(_marked(value, marks))
    for number, raw in enumerate(marks):
        text = text.replace(f'"raw {number} raw"', raw)
    return text.encode()


def _marked(value: Any, marks: list[str]) -> Any:
    if isinstance(value, _Raw):
        marks.append(value.text)
        return f"raw {len(marks) - 1} raw"
    if isinstance(value, int) and abs(value) > 10**300:
        marks.append("9" * 5000)
        return f"raw {len(marks) - 1} raw"
    if isinstance(value, dict):
        return {key: _marked(inner, marks) for key, inner in value.items()}
    if isinstance(value, list):
        return [_marked(inner, marks) for inner in value]
    return value


def _flip(draw, content, seeds):
    for _ in range(draw.choice((1, 1, 4, 16))):
        if content:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return content


def _set(draw, content, seeds):
    if content:
        content[draw.randrange(len(content))] = draw.choice((0, 1, 9, 10, 13, 32, 34, 48, 57, 92, 127, 128, 255))
    return content


def _cut(draw, content, seeds):
    return content[: draw.randrange(len(content) + 1)]


def _drop(draw, content, seeds):
    first, length = draw.randrange(len(content) + 1), draw.choice((1, 2, 8, 64, 512))
    return content[:first] + content[first + length :]


def _repeat(draw, content, seeds):
    first, length = draw.randrange(len(content) + 1), draw.choice((1, 8, 64, 512))
    return content[:first] + content[first : first + length] * draw.choice((2, 3, 20)) + content[first:]


def _insert(draw, content, seeds):
    at = draw.randrange(len(content) + 1)
    return content[:at] + draw.choice(BITS) + content[at:]


def _overwrite(draw, content, seeds):
    at, bits = draw.randrange(len(content) + 1), draw.choice(BITS)[:64]
    return content[:at] + bits + content[at + len(bits) :]


def _splice(draw, content, seeds):
    other = draw.choice(seeds)
    return content[: draw.randrange(len(content) + 1)] + other[draw.randrange(len(other) + 1) :]


_CHANGES = (_flip, _flip, _set, _cut, _drop, _repeat, _insert, _overwrite, _splice)
