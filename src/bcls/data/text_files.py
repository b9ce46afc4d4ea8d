"""Reading of text, JSON and JSONL files, plain or gzip, with errors that name the file and the line."""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bcls._core.errors import fail, reason_of, refuse_damage

#: Largest size of an unpacked text file in bytes. Larger ones are a mistake or a decompression bomb.
MAX_BYTES = 8 * 2**30
_CHUNK = 2**20
_TYPE_NAMES = {str: "a Unicode string", int: "an integer", list: "a list"}


def find_file(path: Path) -> Path:
    """Return ``path``, or ``PATH.gz`` if only the compressed file exists."""
    if path.exists():  # such as ".", which has no name
        return path
    compressed = path.with_name(path.name + ".gz")
    return compressed if compressed.exists() else path


def refuse_broken_gzip(path: Path) -> AbstractContextManager[None]:
    """Report errors of a damaged gzip file that is read inside a ``with`` block."""
    errors = (EOFError, zlib.error, gzip.BadGzipFile)
    return refuse_damage(str(path), "a complete gzip file", "copy or download it again", *errors)


def read_bytes(path: Path) -> bytes:
    """Read a file and decompress it if it is gzip; ``PATH.gz`` is read if only that exists.

    Raises:
        ValueError: The gzip file is damaged, or unpacks to more than :data:`MAX_BYTES`.
    """
    path = find_file(path)
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return path.read_bytes()
    parts = []
    size = 0
    with refuse_broken_gzip(path), gzip.open(path, "rb") as unpacked:
        while part := unpacked.read(_CHUNK):
            parts.append(part)
            size += len(part)
            if size > MAX_BYTES:
                fail(str(path), f"at most {MAX_BYTES} bytes unpacked", "more", "check the origin of the file")
    return b"".join(parts)


def read_text(path: Path, encoding: str | None = None) -> str:
    r"""Read a text file, plain or gzip, without a byte order mark.

    Args:
        path: The file; ``PATH.gz`` is read if only that exists.
        encoding: Value of ``--encoding``. ``None`` means UTF-8, for files that have no such option.

    Raises:
        ValueError: The text is not in ``encoding``; the message names the line.
    """
    content = read_bytes(path)
    used = encoding or "utf-8"
    try:
        return content.decode("utf-8-sig" if used.lower().replace("_", "-") in {"utf-8", "utf8"} else used)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        hint = "convert the file" if encoding is None else "convert the file, or set its encoding with --encoding"
        fail(f"{path}, line {line}", f"{used} text", f"the byte 0x{content[error.start]:02x}", hint)
    except LookupError:
        fail("--encoding", "the name of a text encoding", repr(encoding), "use utf-8, latin-1 or cp1252, for example")


def read_lines(path: Path, encoding: str | None = None) -> list[str]:
    r"""Read the lines of a file. Only ``\n`` and ``\r\n`` end a line, since captions may contain other separators."""
    lines = [line.removesuffix("\r") for line in read_text(path, encoding).split("\n")]
    return lines if lines[-1] else lines[:-1]


def read_json(path: Path) -> Any:
    """Read a JSON file, plain or gzip.

    Raises:
        ValueError: The file is not JSON; the message names the line.
    """
    return parse_json(read_text(path), str(path))


def read_json_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the object of each non-empty line of a JSONL file.

    Raises:
        ValueError: A line is not a JSON object; the message names it.
    """
    for number, line in enumerate(read_lines(path, encoding), start=1):
        if line.strip():
            value = parse_json(line, str(path), number)
            if not isinstance(value, dict):
                fail(f"{path}, line {number}", "a JSON object", type(value).__name__, "write one object per line")
            yield number, value


def parse_json(text: str, file: str, line: int | None = None) -> Any:
    """Parse JSON text.

    Args:
        text: The text.
        file: Name of the file, for error messages.
        line: Line of the file that ``text`` is; ``None`` if it is the whole file.

    Raises:
        ValueError: The text is not JSON.

    Example:
        >>> parse_json('{"a": 1}', "a.json")
        {'a': 1}
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        got = f"an error ({error.msg})"
        fail(f"{file}, line {line or error.lineno}", "JSON", got, "fix that line or create the file again")
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, deeply nested brackets
        fail(f"{file}, line {line}" if line else file, "JSON", reason_of(error), "create the file again")


def get_field(where: str, row: object, key: str, *types: type, hint: str, empty: bool = False) -> Any:
    """Return a value of a parsed JSON object after checking its type.

    Args:
        where: Location of the object, for error messages.
        row: The object.
        key: Name of the field.
        types: Accepted types: ``str``, ``int`` or ``list``.
        hint: End of the error message.
        empty: Accept an empty string.

    Raises:
        ValueError: The field is missing, has another type, or is not valid Unicode.

    Example:
        >>> get_field("a.jsonl, line 1", {"text": "A dog."}, "text", str, hint="fix that line")
        'A dog.'
    """
    value = row.get(key) if isinstance(row, dict) else None
    is_valid = (value or empty) and is_unicode(value) if isinstance(value, str) else True
    # Types are compared exactly, since a bool is an int.
    if type(value) not in types or not is_valid:
        expected = " or ".join(_TYPE_NAMES[one] for one in types)
        if not empty:
            expected = expected.replace("a Unicode string", "a non-empty Unicode string")
        got = repr(value)[:60]
        if isinstance(row, dict) and key not in row:
            got = f"only the fields {', '.join(map(str, row))[:200]}"
        fail(where, f"{key!r} to be {expected}", got, hint)
    return value


def is_unicode(text: str) -> bool:
    """Return whether a string can be encoded: JSON can contain half of a surrogate pair, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
