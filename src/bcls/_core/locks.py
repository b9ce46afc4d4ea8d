"""Locks: one process at a time in a folder, and a thread lock that survives a fork."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bcls._core.errors import fail


class FolderInUseError(ValueError):
    """Another process holds the lock of a folder; the message names the folder and the process."""


@contextmanager
def lock_folder(
    folder: str | Path,
    expected: str = "a folder that no other process is writing to",
    hint: str = "wait until it has finished, or choose another folder",
    *,
    argument: str = "out",
    name: str = ".lock",
    wait: bool = False,
) -> Iterator[None]:
    """Hold the lock of a folder inside a ``with`` block.

    The operating system releases the lock when the process ends, however it ends, so a killed process never leaves a
    locked folder behind. The lock file itself stays; it holds the process id of the last owner.

    Args:
        folder: The folder; created if it does not exist.
        expected: What the caller needs, for the error message.
        hint: What the user can do, for the error message.
        argument: The argument or flag that named the folder, for the error message.
        name: File name of the lock inside the folder.
        wait: Wait for the other process instead of raising an error.

    Raises:
        FolderInUseError: Another process holds the lock and ``wait`` is false.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, lock_folder(folder):
        ...     print(sorted(os.listdir(folder)))
        ['.lock']
    """
    from filelock import FileLock, Timeout

    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        owner = ""
        with suppress(OSError):
            owner = path.read_bytes()[:64].decode("utf-8", "replace").strip()
        fail(argument, expected, f"{folder}, in use by {owner or 'another process'}", hint, FolderInUseError)
    try:
        with suppress(OSError):  # Windows does not allow writes to a locked file; the id is only for messages
            path.write_text(f"process {os.getpid()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


class ForkLock:
    """A ``threading.Lock`` for use in a ``with`` statement, which forked and spawned processes start unlocked.

    A forked child has only the thread that called fork. A lock held by another thread of the parent would never be
    released in the child, so every process has a lock of its own.

    Example:
        >>> with ForkLock():
        ...     print("locked")
        locked
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        self._locks.setdefault(os.getpid(), threading.Lock()).acquire()

    def __exit__(self, *_: object) -> None:
        self._locks[os.getpid()].release()

    def __reduce__(self) -> tuple[type["ForkLock"], tuple[()]]:
        return ForkLock, ()
