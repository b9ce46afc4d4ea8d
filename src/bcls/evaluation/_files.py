"""Lines of text files, plain or compressed."""

import gzip
from collections.abc import Iterator
from pathlib import Path

from bcls._checks import fail


def read_lines(path: str | Path) -> Iterator[str]:
    """Read the lines of a text file, also of one that ends in ``.gz``, with their ends.

    Raises:
        ValueError: If there is no such file.
    """
    path = Path(path)
    if not path.is_file():
        fail("path", "a file", f"nothing at {path}", "check the name")
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8", newline="") as packed:
            yield from packed
    else:
        with path.open(encoding="utf-8", newline="") as plain:
            yield from plain
