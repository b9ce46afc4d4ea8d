"""The folder of a run: what is where in it, and one process at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bcls._checks import fail
from bcls._files import take

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
        owner = take(file)
        if owner is not None:
            fail("out", "a run that nobody else works on", f"{folder}, in use by {owner}", "wait for it, or stop it")
        yield
