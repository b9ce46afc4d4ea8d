"""Image files in folders, zip and tar archives, and the matching of file names to images."""

import io
import lzma
import os
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, NoReturn

from bcls._core.errors import fail, refuse_damage
from bcls._core.locks import ForkLock

_EXTENSIONS = (
    "jpg jpeg jpe jfif mpo png apng webp gif bmp dib tif tiff ppm pgm pbm pnm pfm jp2 j2k j2c jpc jpf jpx avif avifs "
    "heic heif hif blp bw cur dcx dds fit fits flc fli ftc ftu gbr icb icns ico im msp pcd pcx psd pxr qoi ras rgb "
    "rgba sgi tga vda vst xbm xpm "
    "3fr arw cr2 cr3 dng erf iiq kdc mef mos nef nrw orf pef raf rw2 rwl sr2 srf srw x3f"
)
#: Extensions of image files: those of :data:`bcls.data.images.FORMATS`, of HEIC, and of RAW files of cameras.
SUFFIXES = frozenset(f".{one}" for one in _EXTENSIONS.split())
#: Largest size of an image file in bytes; larger ones are refused without reading them.
MAX_BYTES = 256 * 2**20
#: Errors of the standard library for damaged archives, in addition to its own classes.
_DAMAGE = (EOFError, RuntimeError, ValueError, ArithmeticError, LookupError, struct.error, zlib.error, lzma.LZMAError)
_COPY_AGAIN = "copy or download it again"
_CHUNK = 2**20


class ImageStore(ABC):
    """A folder or archive with image files; threads and forked processes can read it concurrently."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = ForkLock()  # of an archive that is being opened or read

    def names(self, *, images: bool = True) -> tuple[str, ...]:
        """Return the names of the image files, or of all files, in the order of the archive, sorted for a folder.

        Raises:
            ValueError: An archive is damaged, or has a member that is refused.
            OSError: A folder cannot be listed. Its images would otherwise look deleted.
        """
        return tuple(name for name in self._all_names() if is_image_file(name) or not images)

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the contents of one file."""

    @abstractmethod
    def _all_names(self) -> Iterable[str]:
        """List all files."""


def open_store(path: str | Path) -> ImageStore:
    """Open a folder or archive with images. Nothing is unpacked to disk.

    Args:
        path: A folder, a zip file or an uncompressed tar file.

    Returns:
        The store. The file is opened on the first read.

    Raises:
        FileNotFoundError: ``path`` does not exist.
        ValueError: It is none of the three.
    """
    path = Path(path)
    if path.is_dir():
        return FolderStore(path)
    if not path.exists():
        raise FileNotFoundError(2, "no such folder, zip or tar of images", str(path))
    # Tar first: a zip is recognized by its end, and a tar may end with a zip, such as an .npz member.
    if path.stat().st_size and _is_tar(path):
        return TarStore(path)
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            compressed = file.read(6).startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"))
        got = "a compressed file" if compressed else "something else"
        hint = "unpack it to a .tar file" if compressed else "check that the file is complete"
        fail(str(path), "a folder, a zip or an uncompressed tar", got, hint)
    return ZipStore(path)


class FolderStore(ImageStore):
    """Image files in a folder and its subfolders; names are relative paths with forward slashes."""

    def _all_names(self) -> list[str]:
        found = []
        for folder, folders, files in os.walk(self.path, onerror=_raise, followlinks=False):
            folders[:] = [one for one in folders if not one.startswith(".")]
            base = Path(folder).relative_to(self.path)
            found += [(base / file).as_posix() for file in files]
        return sorted(found)

    def read(self, name: str) -> bytes:
        """Return the contents of one file."""
        file = self.path / check_member(str(self.path), name)
        # Without waiting for the other end of a named pipe.
        opened = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(opened, "rb") as content:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode):
                fail(f"{self.path}: {name}", "a regular file", "a pipe, device or folder", "remove it")
            check_size(str(self.path), name, found.st_size)
            return content.read()


class ZipStore(ImageStore):
    """Image files in a zip file, which is opened on the first read and again in every forked process."""

    _open: tuple[int, zipfile.ZipFile] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ZipStore, (self.path,)

    def _all_names(self) -> list[str]:
        with self._lock:
            return [info.filename for info in self._archive().infolist() if not info.is_dir()]

    def read(self, name: str) -> bytes:
        """Return the contents of one file."""
        check_member(str(self.path), name)
        where = f"{self.path}: {name}"
        with self._lock:  # threads share the open file
            archive = self._archive()
            try:
                info = archive.getinfo(name)
            except KeyError:
                _missing(self.path, name)
            check_size(str(self.path), name, info.file_size)
            if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                names = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma"}
                got = names.get(info.compress_type, f"method {info.compress_type}")
                fail(where, "a stored or deflated member", f"one compressed with {got}", "pack the archive again")
            errors = (zipfile.BadZipFile, OSError, *_DAMAGE)
            damage = refuse_damage(where, "a complete member", "copy the archive again", *errors)
            with damage, archive.open(info) as member:
                # In chunks: a single read could unpack far more than the stated size.
                return b"".join(iter(partial(member.read, _CHUNK), b""))

    def _archive(self) -> zipfile.ZipFile:
        # A forked process shares the file position with its parent, so it opens the file again.
        if self._open is None or self._open[0] != os.getpid():
            with refuse_damage(str(self.path), "a zip file", _COPY_AGAIN, zipfile.BadZipFile, *_DAMAGE):
                archive = zipfile.ZipFile(self.path)
            for info in archive.infolist():
                is_link = stat.S_ISLNK(info.external_attr >> 16)
                _check_entry(str(self.path), info.filename, info.file_size, "link", is_link)
                if info.flag_bits & 1 and is_image_file(info.filename):
                    hint = "pack the files again without one"
                    fail(str(self.path), "files without a password", repr(info.filename), hint)
            self._open = os.getpid(), archive
        return self._open[1]


class TarStore(ImageStore):
    """Image files in an uncompressed tar file, of which an index is built on the first read."""

    _members: dict[str, tuple[int, int]] | None = None

    def _all_names(self) -> Iterable[str]:
        return self.members()

    def read(self, name: str) -> bytes:
        """Return the contents of one member."""
        members = self.members()
        if name not in members:
            _missing(self.path, name)
        start, size = members[name]
        check_size(str(self.path), name, size)
        # Opened for every read, which takes microseconds: a dataset may have more tars than a process may open.
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            content = file.read(size)
        if len(content) != size:
            fail(f"{self.path}: {name}", f"{size} bytes", len(content), "the archive is truncated: copy it again")
        return content

    def members(self) -> dict[str, tuple[int, int]]:
        """Return offset and size of each file in the archive; the first one of several with the same name."""
        with self._lock:
            if self._members is None:
                members: dict[str, tuple[int, int]] = {}
                for info in _tar_infos(self.path):
                    is_link = not info.isdir() and (not info.isreg() or info.issparse())
                    _check_entry(str(self.path), info.name, info.size, "link or device", is_link)
                    if not info.isdir():
                        members.setdefault(info.name, (info.offset_data, info.size))
                self._members = members
            return self._members


def is_image_file(name: str) -> bool:
    """Return whether a name has the extension of an image; files that macOS adds to archives do not count.

    Example:
        >>> is_image_file("photos/a.JPG"), is_image_file("captions.txt"), is_image_file("__MACOSX/photos/._a.jpg")
        (True, False, False)
    """
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith("._") and "__MACOSX" not in path.parts


def check_member(where: str, name: str) -> str:
    r"""Refuse names that point outside of their folder or archive.

    Args:
        where: The folder or archive, for the error message.
        name: Name of a member.

    Returns:
        The name.

    Raises:
        ValueError: The name is absolute, has a drive letter, ``..`` or a NUL character, or cannot be encoded.

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
    except UnicodeEncodeError:  # JSON can contain half of a surrogate pair, which file names cannot
        fail(where, "valid file names", repr(name), "rename the file")
    return name


def check_size(where: str, name: str, size: int) -> None:
    """Refuse image files of more than :data:`MAX_BYTES` bytes.

    Raises:
        ValueError: The file is larger.
    """
    if size > MAX_BYTES:
        fail(f"{where}: {name}", f"an image of at most {MAX_BYTES} bytes", size, "shrink it or leave it out")


class NameMatch(NamedTuple):
    """Result of :func:`match_names`: the file of each wanted name or ``None``, and messages for the user."""

    files: tuple[str | None, ...]
    notes: tuple[str, ...]


def match_names(wanted: Sequence[str], available: Iterable[str]) -> NameMatch:
    """Find a file for each wanted name.

    A file matches by its full name, else by its name without folders, else by its stem: its name without folders and
    extension, in upper or lower case. A name that several files share, such as ``1.jpg`` for ``a/1.jpg`` and
    ``b/1.jpg``, matches none of them. Neither do several names for which one file remains, since at most one of them
    could be right. Backslashes separate folders, too, and accents may be written as in file names of macOS.

    Args:
        wanted: Names as given in a caption file.
        available: Names of the existing files.

    Example:
        >>> found = match_names(["1.jpg", "2", "3.jpg"], ["images/1.webp", "images/2.webp"])
        >>> found.files
        ('images/1.webp', 'images/2.webp', None)
        >>> found.notes
        ('2 images have another file extension than in the captions (.webp for .jpg, .webp for none)',)
    """
    names = tuple(available)
    exact = set(names)
    paths = [(_portable(name), name) for name in names]
    by_path = _unique((str(path), name) for path, name in paths)
    by_base = _unique((path.name, name) for path, name in paths)
    by_stem = _unique((path.stem, name) for path, name in paths)
    by_folded_stem = _unique((path.stem.casefold(), name) for path, name in paths)
    found: dict[str, str | None] = {}
    for name in wanted:
        path = _portable(name)
        similar = by_path.get(str(path)) or by_base.get(path.name)
        # A name without extension may contain a dot, so it is looked up as a whole before its stem.
        similar = similar or by_stem.get(path.name) or by_stem.get(path.stem)
        found[name] = name if name in exact else similar or by_folded_stem.get(path.stem.casefold())
    # Other than by its full name, a file is matched to a single name, and only if its own is not wanted.
    claims = Counter(found.values())
    files = tuple(found[name] if name in exact or claims[found[name]] == 1 else None for name in wanted)
    pairs = ((_portable(name), _portable(file)) for name, file in zip(wanted, files, strict=True) if file)
    changes = [
        f"{file.suffix} for {'none' if file.stem == name.name else name.suffix}"
        for name, file in pairs
        if name.suffix != file.suffix or name.name.casefold() != file.name.casefold()
    ]
    have = "image has" if len(changes) == 1 else "images have"
    note = f"{len(changes)} {have} another file extension than in the captions ({', '.join(sorted(set(changes)))})"
    return NameMatch(files, (note,) if changes else ())


def _portable(name: str) -> PurePosixPath:
    r"""A name as a path. Windows separates folders by backslashes, and macOS decomposes accents.

    Example:
        >>> str(_portable(r"photos\a.jpg"))
        'photos/a.jpg'
    """
    return PurePosixPath(unicodedata.normalize("NFC", name.replace("\\", "/")))


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    shared = set()
    for key, name in pairs:
        if found.setdefault(key, name) != name:
            shared.add(key)
    return {key: name for key, name in found.items() if key not in shared}


class _BoundedFile(io.BufferedReader):
    """A file whose reads are limited to its length, whatever sizes the headers in it state."""

    def read(self, size: int | None = -1) -> bytes:
        """Read at most the length of the file."""
        length = os.fstat(self.fileno()).st_size
        return super().read(-1 if size is None or size < 0 else min(size, length))


def _is_tar(path: Path) -> bool:
    try:
        with _BoundedFile(io.FileIO(path)) as file, tarfile.open(fileobj=file, mode="r:"):
            return True
    except (tarfile.TarError, *_DAMAGE):
        return False


def _tar_infos(path: Path) -> Iterator[tarfile.TarInfo]:
    offset = -1
    damage = refuse_damage(str(path), "a tar file", _COPY_AGAIN, tarfile.TarError, *_DAMAGE)
    with _BoundedFile(io.FileIO(path)) as file, damage, tarfile.open(fileobj=file, mode="r:") as archive:
        for info in archive:
            # A negative size would lead back to an earlier member, in an endless loop.
            if info.size < 0 or info.offset_data <= offset:
                raise tarfile.ReadError("members that overlap")
            offset = info.offset_data
            yield info


def _check_entry(where: str, name: str, size: int, kind: str, is_link: bool) -> None:
    """Refuse a member of an archive with an unsafe name, a link, or an image that is too large."""
    check_member(where, name)
    if is_link:
        fail(where, "regular files", f"the {kind} {name!r}", "pack the files themselves")
    if is_image_file(name):
        check_size(where, name, size)


def _missing(path: Path, name: str) -> NoReturn:
    raise FileNotFoundError(2, f"no member {name!r} in the archive", str(path))


def _raise(error: OSError) -> NoReturn:
    raise error
