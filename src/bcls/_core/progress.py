"""Progress reports on standard error: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
#: Seconds between two plain lines.
_EVERY = 10.0


class Step(Protocol):
    """Reports progress."""

    def __call__(self, done: int, note: str = "") -> None:
        """Report that ``done`` units of the total are finished; ``note`` is shown beside it."""


@contextmanager
def progress(what: str, total: int, *, show: bool = True) -> Iterator[Step]:
    """Show the progress of a task and the remaining time.

    Args:
        what: The task, such as ``"reading captions"``.
        total: Number of units.
        show: If false, nothing is shown.

    Yields:
        A function to call with the number of finished units.

    Example:
        >>> with progress("counting", 2) as step:
        ...     step(1)
        ...     step(2, "nearly there")
    """
    if not show:
        yield lambda done, note="": None
        return
    with (_bar if sys.stderr.isatty() else _lines)(what, total) as step:
        yield step


def track(what: str, items: Iterable[Item], total: int) -> Iterator[Item]:
    """Yield items and show the progress; an item is finished when the next one is requested.

    Args:
        what: The task, as for :func:`progress`.
        items: The items.
        total: Their number.

    Example:
        >>> sum(track("adding", [1, 2, 3], 3))
        6
    """
    with progress(what, total) as step:
        for done, item in enumerate(items, start=1):
            yield item
            step(done)


@contextmanager
def _bar(what: str, total: int) -> Iterator[Step]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<20}", markup=False),  # names may contain brackets
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(what, total=total, note="")

        def step(done: int, note: str = "") -> None:
            bars.update(task, completed=done, note=note)

        yield step


@contextmanager
def _lines(what: str, total: int) -> Iterator[Step]:
    started = last = time.monotonic()

    def step(done: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if done < total and now - last < _EVERY:
            return
        last = now
        line = f"{what}: {done} of {total}"
        if 0 < done < total:
            line += f", {(now - started) / done * (total - done):.0f} s left"
        print(f"{line}{f' ({note})' if note else ''}", file=sys.stderr, flush=True)

    print(f"{what} ...", file=sys.stderr, flush=True)
    yield step


@contextmanager
def no_bars(logging: Any) -> Iterator[None]:
    """Disable the progress bars and warnings of transformers, which it shows while it reads files.

    Args:
        logging: ``transformers.utils.logging``.
    """
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
