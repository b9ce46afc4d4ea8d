"""One writer at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bcls._checks import fail


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system drops it when the process ends, however that happens.

    Raises:
        ValueError: Another process holds it; the message has its number.
    """
    path = folder / "lock"
    # Not opened with "w": that would empty the file of the process that holds it.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            got = f"one that process {holder} is writing"
            fail(str(folder), "an index that nobody else is writing", got, "wait for it, or choose another --out")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
