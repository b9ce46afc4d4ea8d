"""Atomic writes: files and folders that are either complete or absent."""

import errno
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

#: A model name on the Hugging Face hub. Both parts begin with a letter or digit, so "./model" is a folder.
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file atomically: under a temporary name, flushed to the disk, then renamed.

    Args:
        path: The file; its folder must exist.
        content: Bytes, or text, which is written as UTF-8.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            sync(file)
        rename(temporary, path)
    except OSError as error:
        error.filename = str(path)  # not the temporary name, which users have not chosen
        raise
    finally:
        temporary.unlink(missing_ok=True)


def replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Replace a folder so that a complete one exists at every moment.

    The new folder is written completely under a hidden name (:func:`beside`); then the old one is renamed and the new
    one gets its name. :func:`recover` repairs every intermediate state.

    Args:
        folder: The folder to replace.
        write: Writes the files into the folder that it gets; each must be flushed to the disk when it returns.
    """
    new, old = beside(folder)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    write(new)
    for inner in (*(path for path in new.rglob("*") if path.is_dir()), new):
        sync_folder(inner)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        rename(folder, old)
    rename(new, folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(folder: Path) -> bool:
    """Complete or undo an interrupted :func:`replace_folder`; returns whether the folder exists."""
    new, old = beside(folder)
    if not folder.exists() and old.exists():
        rename(old, folder)
        sync_folder(folder.parent)
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return folder.exists()


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder; a file of the target's name is replaced.

    Retried for a second: on Windows this fails while a file is open, in any process.
    """
    for attempt in range(21):
        try:
            source.replace(target)
            break
        except PermissionError:
            if attempt == 20:
                raise
            time.sleep(0.05)


def reserve(path: Path) -> None:
    """Allocate the disk space of a file.

    A file that is mapped into memory may have holes. If the disk is full, writing to a hole kills the process;
    allocating the space beforehand raises an ordinary error.

    Raises:
        OSError: The disk is full.
    """
    if not hasattr(os, "posix_fallocate"):  # not on macOS and Windows
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            # Some file systems do not support it.
            if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}:
                raise OSError(error.errno, error.strerror, str(path)) from error


def sync_tree(folder: Path) -> None:
    """Flush all files below a folder to the disk, and the lists of files of its folders.

    The files are flushed in several threads: file systems combine calls that come together, so many small files take a
    fraction of the time of one call after another.
    """
    from concurrent.futures import ThreadPoolExecutor

    paths = [*folder.rglob("*"), folder]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(_sync_file, (path for path in paths if not path.is_dir())))
    for path in paths:
        if path.is_dir():
            sync_folder(path)


def _sync_file(path: Path) -> None:
    with path.open("r+b") as file:  # Windows flushes only files that are open for writing
        sync(file)


def sync(file: IO[bytes]) -> None:
    """Flush an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the list of files of a folder to the disk, except on Windows, where a folder cannot be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def beside(folder: Path) -> tuple[Path, Path]:
    """The temporary names of the new and the old folder during :func:`replace_folder`."""
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}.new-bcls"), folder.with_name(f".{folder.name}.old-bcls")


def user_path(path: str | Path) -> Path:
    """A path with ``~`` expanded; unchanged if the user does not exist."""
    return Path(os.path.expanduser(path))
