"""Files and folders that appear complete or not at all."""

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

#: A name on the hub. Both parts begin with a letter or digit, so that "./model" and "../model" are folders.
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file under a temporary name, make sure that it is on the disk, then give it its name.

    Args:
        path: Where; the folder must exist.
        content: Bytes, or text that is written as UTF-8.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder anew so that a complete one is there at every moment.

    The new one is complete on the disk under a hidden name (:func:`beside`) before the old one gets another and the new
    one takes its name. :func:`recover` puts every state in between right.

    Args:
        folder: Where.
        write: Writes the files into the folder that it is given; each must be on the disk when it returns.
    """
    new, old = beside(folder)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    write(new)
    for inner in (*(path for path in new.rglob("*") if path.is_dir()), new):
        sync_folder(inner)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    new.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(folder: Path) -> bool:
    """Put a folder right whose replacing was cut short; whether there is one."""
    new, old = beside(folder)
    if not folder.exists() and old.exists():
        old.rename(folder)
        sync_folder(folder.parent)
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return folder.exists()


def reserve(path: Path) -> None:
    """Take the room on the disk that a file's length asks for.

    A file that is mapped into memory may have holes. Where the disk is full, filling one kills the process; asked for
    beforehand, it is an error like any other.

    Raises:
        OSError: The disk is full.
    """
    if not hasattr(os, "posix_fallocate"):  # not on macOS and Windows
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            # Some file systems cannot do it, which is no reason to stop.
            if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}:
                raise OSError(error.errno, error.strerror, str(path)) from error


def sync_folder(folder: Path) -> None:
    """See that a folder's list of files is on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def beside(folder: Path) -> tuple[Path, Path]:
    """The names that a folder has while it is replaced: the new one's and the old one's; nobody else gives such."""
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}.new-bcls"), folder.with_name(f".{folder.name}.old-bcls")


def user_path(place: str | Path) -> Path:
    """A path with its ``~`` written out; of a user who does not exist it stays as it is, and is a path to nothing."""
    try:
        return Path(place).expanduser()
    except RuntimeError:
        return Path(place)


def take(file: TextIO, *, wait: bool = False) -> str | None:
    """Lock an open file for this process; the system lets go when it is closed or the process ends, however it ends.

    Args:
        file: Opened with ``a+``; it then says who has it.
        wait: Wait until the other one is done.

    Returns:
        ``None``, or who has it where somebody else does and we do not wait.
    """
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        file.seek(0)
        return file.read(64).strip() or "another process"
    file.truncate(0)
    file.write(f"process {os.getpid()}\n")
    file.flush()
    return None
