"""Tensors out of a file that torch wrote with pickle, without running anything in it."""

import argparse
import pickle
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from bcls._core.errors import fail

#: How torch names what it will not call.
_CALLED = re.compile(r"GLOBAL (\w[\w.]*\.\w+)")
#: Bytes of a line in a pickle, which is the name of something to call; torch takes minutes over a much longer one.
_LONGEST_LINE = 200
#: Kinds of numbers, as numpy writes them down and as :mod:`struct` reads them.
_NUMBERS = {"f8": "<d", "f4": "<f", "i8": "<q", "i4": "<i", "b1": "<?"}


class _Kind:
    """Stands for numpy's dtype, which trusts the state that it is given and crashes on a damaged one."""

    def __init__(self, name: object = "", *_: object) -> None:
        self.name = str(name)

    def __setstate__(self, state: object) -> None:
        """Take nothing over: the name says all."""


def _number(kind: object, content: object) -> float | None:
    """Stands for what numpy rebuilds a number with; ``None`` for kinds that training does not write."""
    form = _NUMBERS.get(kind.name) if isinstance(kind, _Kind) else None
    if form is None or not isinstance(content, bytes):
        return None
    value: float = struct.unpack(form, content)[0]
    return value


#: Beside tensors and plain containers: the options, and numbers that numpy computed (in two versions' words).
_ALLOWED: list[Any] = [
    argparse.Namespace,
    (_Kind, "numpy.dtype"),
    (_number, "numpy.core.multiarray.scalar"),
    (_number, "numpy._core.multiarray.scalar"),
]
#: What torch's reader raises over damaged files.
_DAMAGE = (
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    SystemError,
    OSError,
    struct.error,
)


def read_tensors(path: Path) -> Any:
    """Read a ``torch.save`` file, zip or older, onto the CPU.

    Raises:
        ValueError: There is no such file, it is damaged, or it holds something else than tensors, plain containers,
            numbers and an ``argparse.Namespace``; nothing of it has been run then.
    """
    if not path.is_file():
        fail(str(path), "a checkpoint file", "no such file", "check the path")
    if _has_long_line(path):
        fail(str(path), "a whole checkpoint file", "a name of thousands of letters", "copy the file again")
    try:
        with torch.serialization.safe_globals(_ALLOWED):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = " ".join(str(error).split("\n", 1)[0].split())[:200]
        if named := _CALLED.search(str(error)):
            got = f"a call of {named[1]}"
            fail(str(path), "tensors and plain values", got, "such a file can run code: it was not read")
        fail(str(path), "a whole checkpoint file", reason, "copy the file again")
    except _DAMAGE as error:
        reason = f"one that does not read ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        fail(str(path), "a whole checkpoint file", reason, "copy the file again")


class _LongLineError(Exception):
    """A line of a pickle is longer than any name."""


class _Lines:
    """A pickle that is read no further than to a line that is too long."""

    def __init__(self, file: IO[bytes]) -> None:
        self.read, self._file = file.read, file

    def readline(self) -> bytes:
        line = self._file.readline(_LONGEST_LINE + 1)
        if len(line) > _LONGEST_LINE:
            raise _LongLineError
        return line


def _has_long_line(path: Path) -> bool:
    """Whether the pickles in a file have one, as far as they can be read; nothing is run."""
    try:
        for file in _pickles(path):
            # Torch reads in the same order, so it gets no further than this does.
            with suppress(zipfile.BadZipFile, zlib.error, *_DAMAGE):
                for _ in pickletools.genops(_Lines(file)):  # type: ignore[arg-type]  # read and readline are all it uses
                    pass
    except _LongLineError:
        return True
    return False


def _pickles(path: Path) -> Iterator[IO[bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith(".pkl"):
                    with archive.open(member) as file:
                        yield file
    except (zipfile.BadZipFile, *_DAMAGE):
        with path.open("rb") as file:
            for _ in range(5):  # what the older format has before its tensors
                yield file
