"""Text files as they come: plain or gzip, with errors that name the file and the line."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bcls._core.errors import fail

#: A text file that unpacks to more than this is refused: it is a mistake or a trap.
MAX_BYTES = 8 * 2**30
_GZIP = b"\x1f\x8b"
_CHUNK = 2**20


def find_file(path: Path) -> Path:
    """The file itself, or its gzip twin where only ``PATH.gz`` is there."""
    twin = path.with_name(path.name + ".gz")
    return twin if not path.exists() and twin.exists() else path


def read_bytes(path: Path) -> bytes:
    """Contents of a file, unpacked where it is gzip; ``PATH.gz`` is read where only that exists.

    Raises:
        ValueError: The file is a broken gzip file, or unpacks to more than :data:`MAX_BYTES`.
    """
    path = find_file(path)
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    if not packed:
        return path.read_bytes()
    parts = []
    size = 0
    try:
        with gzip.open(path, "rb") as unpacked:
            while part := unpacked.read(_CHUNK):
                parts.append(part)
                size += len(part)
                if size > MAX_BYTES:
                    fail(str(path), f"at most {MAX_BYTES} bytes unpacked", "more", "check where the file comes from")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        fail(str(path), "a whole gzip file", f"a broken one ({error})", "copy or download it again")
    return b"".join(parts)


def read_text(path: Path, encoding: str | None = None) -> str:
    r"""Text of a file, plain or gzip, without a byte order mark.

    Args:
        path: The file; ``PATH.gz`` is read where only that exists.
        encoding: What the user says it is in, by ``--encoding``; UTF-8 where there is no such choice.

    Raises:
        ValueError: The text is not in ``encoding``; the message names the line.
    """
    content = read_bytes(path)
    asked = encoding or "utf-8"
    name = "utf-8-sig" if asked.lower().replace("_", "-") in {"utf-8", "utf8"} else asked
    try:
        return content.decode(name)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        got = f"the byte 0x{content[error.start]:02x}"
        remedy = "convert the file" if encoding is None else "convert the file, or name its encoding with --encoding"
        fail(f"{path}, line {line}", f"{asked} text", got, remedy)
    except LookupError:
        fail("encoding", "the name of a text encoding", repr(encoding), "use utf-8, latin-1 or cp1252, say")


def read_lines(path: Path, encoding: str | None = None) -> list[str]:
    r"""Lines of a file; only ``\n`` and ``\r\n`` end one, since captions may hold other separators."""
    lines = [line.removesuffix("\r") for line in read_text(path, encoding).split("\n")]
    if lines and not lines[-1]:
        lines.pop()
    return lines


def read_json(path: Path) -> Any:
    """The value in a JSON file, plain or gzip.

    Raises:
        ValueError: The file is not JSON; the message names the line.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f"{path}, line {error.lineno}" if isinstance(error, json.JSONDecodeError) else str(path)
        fail(where, "JSON", json_trouble(error), "make or download the file again")


def read_json_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and contents of each line of a JSONL file; empty lines are passed over.

    Raises:
        ValueError: A line is not a JSON object; the message names it.
    """
    for number, line in enumerate(read_lines(path, encoding), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            fail(f"{path}, line {number}", "a JSON object", json_trouble(error), "write one object a line")
        if not isinstance(value, dict):
            fail(f"{path}, line {number}", "a JSON object", type(value).__name__, "write one object a line")
        yield number, value


def json_trouble(error: Exception) -> str:
    """What ``json.loads`` does not like about a text, in a few words.

    Example:
        >>> json_trouble(RecursionError())
        'brackets nested too deep'
    """
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    # Python converts no number of thousands of digits: the time would grow with their square.
    return "brackets nested too deep" if isinstance(error, RecursionError) else "a number of too many digits"


def is_unicode(text: str) -> bool:
    """Whether a text can be written down: JSON can hold half of a surrogate pair, which is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
