"""The files that a package brought, with their hashes."""

import csv
from collections.abc import Iterator
from importlib import metadata
from pathlib import PurePosixPath
from typing import NamedTuple


class Recorded(NamedTuple):
    """A line of a RECORD."""

    path: PurePosixPath
    """Where the file lies, from the folder of packages."""
    mode: str
    """Name of the hash."""
    value: str
    """The hash, in base64 for names of files and without filling."""


def recorded(found: metadata.Distribution) -> Iterator[Recorded]:
    """Files of an installed package that have a hash.

    Read from its RECORD: ``Distribution.files`` leaves out files that are gone, from Python 3.12 on.

    Args:
        found: The package.
    """
    for row in csv.reader((found.read_text("RECORD") or "").splitlines()):
        mode, _, value = row[1].partition("=") if len(row) > 1 else ("", "", "")
        if value:
            yield Recorded(PurePosixPath(row[0]), mode, value)
