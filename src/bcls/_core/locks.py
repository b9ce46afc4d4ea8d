"""A lock that a forked process finds open, whichever thread of its parent had it.

One writer at a time.
"""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bcls._core.errors import fail
from bcls._core.files import take


class ForkLock:
    """As ``threading.Lock``, in a ``with`` statement; every forked process gets a fresh one.

    A child has only the thread that forked: a lock that another thread held would stay locked for ever.

    Example:
        >>> with ForkLock():
        ...     print("alone")
        alone
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _LIVE.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = threading.Lock()


_LIVE: "weakref.WeakSet[ForkLock]" = weakref.WeakSet()


def _renew_all() -> None:
    for lock in tuple(_LIVE):
        lock.renew()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_all)


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system drops it when the process ends, however that happens.

    Raises:
        ValueError: Another process holds it; the message has its number.
    """
    with (folder / "lock").open("a+", encoding="utf-8", errors="replace") as file:
        holder = take(file)
        if holder is not None:
            got = f"one that {holder} is writing"
            fail(str(folder), "an index that nobody else is writing", got, "wait for it, or choose another --out")
        yield
