"""Pictures inside zip and tar files, read in place."""

import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from bcls._checks import fail, reason_of
from bcls.data.images._lock import ForkLock
from bcls.data.images.members import check_member, check_size, is_picture

#: What the standard library raises over damaged archives, beside its own errors.
_DAMAGE = (EOFError, RuntimeError, ValueError, ArithmeticError, LookupError, struct.error, zlib.error, lzma.LZMAError)
_CHUNK = 2**20


class ZipStore:
    """Pictures in a zip file. The file is opened by the first reader, and again in every process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = ForkLock()
        self._open: tuple[int, zipfile.ZipFile] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ZipStore, (self.path,)

    def __del__(self) -> None:
        if self._open:
            self._open[1].close()

    def names(self) -> tuple[str, ...]:
        """Names of the pictures, in the order of the file."""
        with self._lock:
            return tuple(info.filename for info in self._archive().infolist() if is_picture(info.filename))

    def read(self, name: str) -> bytes:
        """Bytes of one picture file."""
        check_member(str(self.path), name)
        with self._lock:  # the file has one position for all threads
            archive = self._archive()
            try:
                info = archive.getinfo(name)
            except KeyError:
                _missing(self.path, name)
            check_size(str(self.path), name, info.file_size)
            try:
                return _unpacked(archive, info)
            except (zipfile.BadZipFile, OSError, *_DAMAGE) as error:
                fail(
                    f"{self.path}: {name}",
                    "a whole member",
                    f"a damaged one ({reason_of(error)})",
                    "copy the archive again",
                )

    def _archive(self) -> zipfile.ZipFile:
        # A forked process shares the position in the file with its parent, so it needs a file of its own.
        if self._open is None or self._open[0] != os.getpid():
            try:
                archive = zipfile.ZipFile(self.path)
            except (zipfile.BadZipFile, *_DAMAGE) as error:
                fail(str(self.path), "a zip file", f"a damaged one ({reason_of(error)})", "copy or download it again")
            for info in archive.infolist():
                _check_zip_member(str(self.path), info)
            self._open = os.getpid(), archive
        return self._open[1]


class TarStore:
    """Pictures in an uncompressed tar file. Readers share one index and need no lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = ForkLock()
        self._members: dict[str, tuple[int, int]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return TarStore, (self.path,)

    def names(self) -> tuple[str, ...]:
        """Names of the pictures, in the order of the file."""
        return tuple(name for name in self.members() if is_picture(name))

    def read(self, name: str) -> bytes:
        """Bytes of one member."""
        members = self.members()
        if name not in members:
            _missing(self.path, name)
        start, size = members[name]
        check_size(str(self.path), name, size)
        # Opened for every picture, which takes microseconds: a dataset may have more tars than a process may open.
        with self.path.open("rb", buffering=0) as file:
            content = os.pread(file.fileno(), size, start)
        if len(content) != size:
            fail(f"{self.path}: {name}", f"{size} bytes", len(content), "the archive is cut short: copy it again")
        return content

    def members(self) -> dict[str, tuple[int, int]]:
        """Where each file of the archive begins, and its size; the first of several with one name counts."""
        with self._lock:
            if self._members is None:
                self._members = _tar_members(self.path)
            return self._members


class _Bounded(io.BufferedReader):
    """A file of which no more is asked than it has, whatever sizes are written in it."""

    def read(self, size: int | None = -1) -> bytes:
        """As that of any file."""
        length = os.fstat(self.fileno()).st_size
        return super().read(-1 if size is None or size < 0 else min(size, length))


def is_tar(path: Path) -> bool:
    """Whether a file begins as an uncompressed tar does."""
    try:
        with _Bounded(io.FileIO(path)) as file, tarfile.open(fileobj=file, mode="r:"):
            return True
    except (tarfile.TarError, *_DAMAGE):
        return False


def _tar_members(path: Path) -> dict[str, tuple[int, int]]:
    members: dict[str, tuple[int, int]] = {}
    for info in _tar_infos(path):
        check_member(str(path), info.name)
        if info.isdir():
            continue
        if not info.isreg() or info.issparse():
            fail(str(path), "plain files", f"the link or device {info.name!r}", "pack the files themselves")
        if is_picture(info.name):
            check_size(str(path), info.name, info.size)
        members.setdefault(info.name, (info.offset_data, info.size))
    return members


def _tar_infos(path: Path) -> Iterator[tarfile.TarInfo]:
    at = -1
    with _Bounded(io.FileIO(path)) as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for info in archive:
                    # A size below zero would lead back to where we were, again and again.
                    if info.size < 0 or info.offset_data <= at:
                        raise tarfile.ReadError("members that go backwards")
                    at = info.offset_data
                    yield info
        except (tarfile.TarError, *_DAMAGE) as error:
            fail(str(path), "a tar file", f"a damaged one ({reason_of(error)})", "copy or download it again")


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Bytes of a member, in small parts: asked for at once, far more than the stated size may be unpacked."""
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise zipfile.BadZipFile("neither stored nor deflated, the two kinds that every program writes")
    with archive.open(info) as member:
        parts = []
        while part := member.read(_CHUNK):
            parts.append(part)
    return b"".join(parts)


def _check_zip_member(where: str, info: zipfile.ZipInfo) -> None:
    check_member(where, info.filename)
    if stat.S_ISLNK(info.external_attr >> 16):
        fail(where, "plain files", f"the link {info.filename!r}", "pack the files themselves")
    if is_picture(info.filename):
        check_size(where, info.filename, info.file_size)
        if info.flag_bits & 1:
            fail(where, "files without a password", repr(info.filename), "pack the files again without one")


def _missing(path: Path, name: str) -> NoReturn:
    raise FileNotFoundError(2, f"no member {name!r} in the archive", str(path))
