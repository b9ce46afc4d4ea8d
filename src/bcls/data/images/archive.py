"""Pictures inside zip and tar files, read in place."""

import os
import stat
import tarfile
import threading
import zipfile
import zlib
from pathlib import Path
from typing import Any, NoReturn

from bcls._checks import fail
from bcls.data.images.members import check_member, check_size, is_picture


class ZipStore:
    """Pictures in a zip file. The file is opened by the first reader, and again in every process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
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
                return archive.read(name)
            except KeyError:
                _missing(self.path, name)
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
                fail(f"{self.path}: {name}", "a whole member", f"a damaged one ({error})", "copy the archive again")

    def _archive(self) -> zipfile.ZipFile:
        # A forked process shares the position in the file with its parent, so it needs a file of its own.
        if self._open is None or self._open[0] != os.getpid():
            try:
                archive = zipfile.ZipFile(self.path)
            except zipfile.BadZipFile as error:
                fail(str(self.path), "a zip file", f"a damaged one ({error})", "copy or download it again")
            for info in archive.infolist():
                _check_zip_member(str(self.path), info)
            self._open = os.getpid(), archive
        return self._open[1]


class TarStore:
    """Pictures in an uncompressed tar file. Readers share one index and need no lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._members: dict[str, tuple[int, int]] | None = None
        self._file: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return TarStore, (self.path,)

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def names(self) -> tuple[str, ...]:
        """Names of the pictures, in the order of the file."""
        return tuple(name for name in self.members() if is_picture(name))

    def read(self, name: str) -> bytes:
        """Bytes of one member."""
        members = self.members()
        if name not in members or self._file is None:
            _missing(self.path, name)
        start, size = members[name]
        content = os.pread(self._file, size, start)
        if len(content) != size:
            fail(f"{self.path}: {name}", f"{size} bytes", len(content), "the archive is cut short: copy it again")
        return content

    def members(self) -> dict[str, tuple[int, int]]:
        """Where each file of the archive begins, and its size; the first of several with one name counts."""
        with self._lock:
            if self._members is None:
                self._members = _tar_members(self.path)
                self._file = os.open(self.path, os.O_RDONLY)
            return self._members


def _tar_members(path: Path) -> dict[str, tuple[int, int]]:
    members: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for info in archive:
                check_member(str(path), info.name)
                if info.isdir():
                    continue
                if not info.isreg() or info.issparse():
                    fail(str(path), "plain files", f"the link or device {info.name!r}", "pack the files themselves")
                if is_picture(info.name):
                    check_size(str(path), info.name, info.size)
                members.setdefault(info.name, (info.offset_data, info.size))
    except tarfile.TarError as error:
        fail(str(path), "a tar file", f"a damaged one ({error})", "copy or download it again")
    return members


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
