"""One writer at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bcls._checks import fail
from bcls._files import take


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
