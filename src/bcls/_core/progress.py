"""Progress of long work: a bar on a terminal, plain lines elsewhere, always on standard error."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

#: Seconds between two plain lines.
_EVERY = 10.0


class Step(Protocol):
    """Says how far the work is."""

    def __call__(self, done: int, note: str = "") -> None:
        """``done`` of the total is done; ``note`` says what is going on."""
        ...


@contextmanager
def progress(what: str, total: int) -> Iterator[Step]:
    """Show how far a piece of work is, with the time that is left.

    Args:
        what: The work, such as ``"reading captions"``.
        total: How many units it has.

    Yields:
        A function to call with the number of units done.

    Example:
        >>> with progress("counting", 2) as step:
        ...     step(1)
        ...     step(2, "nearly there")
    """
    with (_bar if sys.stderr.isatty() else _lines)(what, total) as step:
        yield step


@contextmanager
def _bar(what: str, total: int) -> Iterator[Step]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<20}", markup=False),  # names may hold brackets
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
    """Keep transformers from drawing a bar while it reads a file.

    Args:
        logging: ``transformers.utils.logging``.
    """
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
