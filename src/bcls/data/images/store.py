"""One way to read pictures by name, whatever holds them."""

import zipfile
from pathlib import Path
from typing import NoReturn, Protocol

from bcls._checks import fail
from bcls.data.images.archive import TarStore, ZipStore, is_tar
from bcls.data.images.folder import FolderStore


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
