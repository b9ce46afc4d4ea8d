"""The folder of a run: names of its files, ``environment.json``, and requests to stop."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import bcls
from bcls._core.errors import fail
from bcls._core.extras import version_of
from bcls._core.files import write_whole

CONFIG, METRICS, ENVIRONMENT, REPORT = "config.yaml", "metrics.jsonl", "environment.json", "report.html"
CHECKPOINTS, LAST, BEST, EPOCH = "checkpoints", "last", "best", "epoch-{}"
_PACKAGES = ("accelerate", "numpy", "safetensors", "scipy", "torch", "transformers", "sentence-transformers")


def check_folder(folder: Path, *, resume: bool) -> None:
    """Check that a folder can take a new run, or holds one to resume.

    Raises:
        ValueError: It holds a run although ``resume`` is not set, or it holds none.
    """
    # A run that was killed before it wrote its settings leaves an empty folder of checkpoints.
    started = (folder / CONFIG, folder / METRICS, *(folder / CHECKPOINTS).glob("*"))
    if not resume and any(path.exists() for path in started):
        got = f"{folder}, which holds a run"
        fail("out", "a new or empty folder", got, "continue it with --resume, or use another")
    if resume and not (folder / CONFIG).exists():
        fail("resume", f"a run in {folder}", "none", "leave --resume out to start one")


def describe(processes: int) -> dict[str, Any]:
    """Versions, hardware, command line and the revision of the code, as plain values."""
    import torch

    return {
        "bcls": bcls.__version__,
        "revision": _revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name in _PACKAGES if (version := version_of(name))},
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "processes": processes,
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def add_environment(folder: Path, processes: int) -> None:
    """Add an entry to ``environment.json``; a resumed run has one for each part."""
    path = folder / ENVIRONMENT
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        parts = []  # only a description: the run does not depend on it
    write_whole(path, json.dumps({"parts": [*parts, describe(processes)]}, indent=1) + "\n")


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    """Handle signals in a block; they can be caught in the main thread only, in another one nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def catch_signals(stop: threading.Event) -> AbstractContextManager[None]:
    """Turn the first Ctrl-C or SIGTERM into a request to stop; a second Ctrl-C raises KeyboardInterrupt at once.

    Args:
        stop: Set by the first signal.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()
        print("stopping after this step, with a checkpoint ...", file=sys.stderr, flush=True)

    return handle_signals(handle, signal.SIGINT, signal.SIGTERM)


def _revision() -> str | None:
    """The git revision of the code, if it lies in a repository."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    run = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)  # noqa: S603
    return run.stdout.strip() or None
