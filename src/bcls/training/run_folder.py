"""The folder of a run: one process at a time, and folders in it that are replaced whole."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bcls._checks import fail

CONFIG, METRICS, ENVIRONMENT, REPORT = "config.yaml", "metrics.jsonl", "environment.json", "report.html"
CHECKPOINTS, LAST, BEST, EPOCH = "checkpoints", "last", "best", "epoch-{}"
_LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder for this process; the system lets go of it when the process ends, however it ends.

    Raises:
        ValueError: Another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            fail("out", "a run that nobody else works on", f"{folder}, in use by {owner}", "wait for it, or stop it")
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield


def replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder anew so that a complete one is there at every moment.

    The new one is complete on the disk as ``NAME.new`` before the old one becomes ``NAME.old`` and the new one takes
    its name. :func:`recover` puts every state in between right.

    Args:
        folder: Where.
        write: Writes the files into the folder that it is given; each must be on the disk when it returns.
    """
    new, old = _beside(folder)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    write(new)
    for inner in (*(path for path in new.rglob("*") if path.is_dir()), new):
        sync(inner)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    new.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(folder: Path) -> bool:
    """Put a folder right whose replacing was cut short; whether there is one."""
    new, old = _beside(folder)
    if not folder.exists() and old.exists():
        old.rename(folder)
        sync(folder.parent)
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return folder.exists()


def sync(folder: Path) -> None:
    """See that a folder's list of files is on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _beside(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")
