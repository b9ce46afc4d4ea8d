"""Names of pictures inside folders and archives, and which of them are refused.

Pictures as files in a folder and the folders below it.

Pictures inside zip and tar files, read in place.

One way to read pictures by name, whatever holds them.

Finds the file of each image that a caption file names, where endings or folders differ.
"""

import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn, Protocol

from bcls._core.errors import fail, reason_of
from bcls._core.locks import ForkLock

#: Endings of files that are taken for pictures.
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
#: A picture file of more bytes than this is refused unread.
MAX_BYTES = 256 * 2**20


def is_picture(name: str) -> bool:
    """Whether a name is that of a picture, going by its ending; the files macOS adds to archives are not.

    Example:
        >>> is_picture("photos/a.JPG"), is_picture("captions.txt"), is_picture("__MACOSX/photos/._a.jpg")
        (True, False, False)
    """
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith("._") and "__MACOSX" not in path.parts


def check_member(where: str, name: str) -> str:
    r"""Refuse names that lead out of their folder.

    Args:
        where: The folder or archive, for the message.
        name: Name of a member.

    Returns:
        The name.

    Raises:
        ValueError: It is absolute, has a drive letter, ``..`` or a NUL character in it, or is no text.

    Example:
        >>> check_member("a.zip", "../../etc/passwd")
        Traceback (most recent call last):
        ...
        ValueError: `a.zip`: expected names inside the archive, got '../../etc/passwd'; do not trust this source
    """
    parts = name.replace("\\", "/").split("/")
    if not name or name[0] in "/\\" or ".." in parts or parts[0].endswith(":") or "\0" in name:
        fail(where, "names inside the archive", repr(name), "do not trust this source")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # JSON can hold half of a surrogate pair; files have no such names
        fail(where, "names of files", repr(name), "mend the name")
    return name


def check_size(where: str, name: str, size: int) -> None:
    """Refuse a picture whose file is absurdly large.

    Raises:
        ValueError: ``size`` is above :data:`MAX_BYTES`.
    """
    if size > MAX_BYTES:
        fail(f"{where}: {name}", f"a picture of at most {MAX_BYTES} bytes", size, "shrink it or leave it out")


class FolderStore:
    """Pictures in a folder; names are paths below it, with forward slashes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> tuple[str, ...]:
        """Names of the pictures, sorted; links to folders are not followed.

        Raises:
            OSError: A folder cannot be listed: its pictures are not gone, and must not be taken for it.
        """
        found = []
        for folder, folders, files in os.walk(self.path, onerror=_stop, followlinks=False):
            folders[:] = [one for one in folders if not one.startswith(".")]
            base = Path(folder).relative_to(self.path)
            found += [(base / file).as_posix() for file in files if is_picture(file)]
        return tuple(sorted(found))

    def read(self, name: str) -> bytes:
        """Bytes of one picture file."""
        file = self.path / check_member(str(self.path), name)
        check_size(str(self.path), name, file.stat().st_size)
        return file.read_bytes()


def _stop(error: OSError) -> NoReturn:
    raise error


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


class ImageStore(Protocol):
    """Holds picture files under names; threads and forked processes may read it at once."""

    path: Path

    def names(self) -> tuple[str, ...]:
        """Names of the pictures, in the order of the archive, sorted for a folder."""
        ...

    def read(self, name: str) -> bytes:
        """Bytes of one picture file."""
        ...


def open_store(path: str | Path) -> ImageStore:
    """Find out what holds the pictures; nothing is unpacked to disk.

    Args:
        path: A folder, a zip file or an uncompressed tar file.

    Returns:
        The store. The file is opened when something is read.

    Raises:
        FileNotFoundError: There is nothing at ``path``.
        ValueError: It is none of the three.
    """
    path = Path(path)
    if path.is_dir():
        return FolderStore(path)
    if not path.exists():
        raise FileNotFoundError(2, "no such folder, zip or tar of images", str(path))
    # A zip is told by its end, which a tar may have as well: that of a zip, an .npz say, that it holds.
    if path.stat().st_size and is_tar(path):
        return TarStore(path)
    if not zipfile.is_zipfile(path):
        _refuse(path)
    return ZipStore(path)


def _refuse(path: Path) -> NoReturn:
    with path.open("rb") as file:
        packed = file.read(6)
    if packed.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        fail(
            str(path),
            "a folder, a zip or a plain tar",
            "a compressed file",
            "unpack it to a .tar: pictures gain nothing",
        )
    fail(str(path), "a folder, a zip or a plain tar", "something else", "check that the file is whole")


@dataclass(frozen=True)
class Match:
    """What was found.

    Attributes:
        files: The name of each wanted file, or ``None``.
        notes: What a user should be told, one line a kind of difference.
    """

    files: tuple[str | None, ...]
    notes: tuple[str, ...]


def match_names(wanted: Sequence[str], available: Iterable[str]) -> Match:
    """Find a file for each wanted name.

    A file matches by its whole name, else by its name without folders, else by its stem: its name without folders and
    ending. Names that several files share, such as ``a/1.jpg`` and ``b/1.jpg`` for ``1.jpg``, match none of them, and
    neither do several names that one file is left for: one of them at most would get its own picture.

    Args:
        wanted: Names as a caption file has them.
        available: Names of the files that are there.

    Example:
        >>> found = match_names(["1.jpg", "2", "3.jpg"], ["images/1.webp", "images/2.webp"])
        >>> found.files
        ('images/1.webp', 'images/2.webp', None)
        >>> found.notes
        ('2 images have another file ending than in the captions (.webp for .jpg, .webp for none)',)
    """
    there = tuple(available)
    exact = set(there)
    by_base = _unique((PurePosixPath(name).name, name) for name in there)
    by_stem = _unique((PurePosixPath(name).stem, name) for name in there)
    # Otherwise than by its whole name, a file goes to one name only, and not where its own is wanted as well.
    guesses = {name: _guess(name, by_base, by_stem) for name in wanted if name not in exact}
    claims = Counter(file for file, _ in guesses.values())
    taken = exact.intersection(wanted)
    files: list[str | None] = []
    endings: Counter[str] = Counter()
    for name in wanted:
        file, ending = (name, "") if name in exact else guesses[name]
        if name not in exact and (file in taken or claims[file] > 1):
            file = None
        if file is not None and ending:
            endings[ending] += 1
        files.append(file)
    return Match(tuple(files), _notes(endings))


def _guess(name: str, by_base: dict[str, str], by_stem: dict[str, str]) -> tuple[str | None, str]:
    """The file that a name may mean, and how their endings differ, if they do."""
    path = PurePosixPath(name)
    if path.name in by_base:
        return by_base[path.name], ""
    # The name may have no ending and a dot of its own, so it is looked up whole first.
    whole = by_stem.get(path.name)
    file = whole or by_stem.get(path.stem)
    if file is None:
        return None, ""
    return file, f"{PurePosixPath(file).suffix} for {'none' if whole else path.suffix or 'none'}"


def _notes(endings: Counter[str]) -> tuple[str, ...]:
    total = endings.total()
    if not total:
        return ()
    have = "image has" if total == 1 else "images have"
    return (f"{total} {have} another file ending than in the captions ({', '.join(sorted(endings))})",)


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    shared = set()
    for key, name in pairs:
        if found.setdefault(key, name) != name:
            shared.add(key)
    return {key: name for key, name in found.items() if key not in shared}
