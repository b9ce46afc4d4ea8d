"""What a run ran on.

The folder of a run: what is where in it, and one process at a time.

Ctrl-C and SIGTERM: finish the step, write a checkpoint, then leave.

What a training run gives back.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

import bcls
from bcls._core.errors import fail
from bcls._core.files import take, write_whole

_PACKAGES = ("accelerate", "numpy", "safetensors", "scipy", "torch", "transformers", "sentence-transformers")


def describe(processes: int) -> dict[str, Any]:
    """Versions, hardware, command line and the revision of the code, as plain values."""
    return {
        "bcls": bcls.__version__,
        "revision": _revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(one) for one in range(torch.cuda.device_count())],
        "processes": processes,
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def add_environment(path: Path, processes: int) -> None:
    """Write what this part of the run runs on; a continued run has an entry for each part."""
    parts: list[dict[str, Any]] = []
    if path.is_file():
        try:
            parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
        except (ValueError, KeyError, TypeError):
            parts = []  # a description, nothing that the run needs
    write_whole(path, json.dumps({"parts": [*parts, describe(processes)]}, indent=1) + "\n")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The git revision of the code, where it lies in a repository."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return run.stdout.strip() or None


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


class Interrupt:
    """Whether the run was asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def agreed(self, device: torch.device, *, look: bool = True) -> bool:
        """Whether all processes stop now; each asks at the same steps, and one that was told is enough.

        Args:
            device: Where tensors for the question live.
            look: Ask the others now. Without it only a single process answers for itself.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return self.asked
        if not look:
            return False
        flag = torch.tensor([self.asked], dtype=torch.int64, device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


@contextmanager
def listening(interrupt: Interrupt | None = None) -> Iterator[Interrupt]:
    """Turn the first Ctrl-C or SIGTERM into a request; a second Ctrl-C stops at once.

    Outside of the main thread signals cannot be caught, and nothing is changed.

    Args:
        interrupt: What is told, if it was made before.
    """
    interrupt = Interrupt() if interrupt is None else interrupt
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if interrupt.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        interrupt.asked = True
        print("stopping after this step, with a checkpoint ...", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes:
        folder: The run's folder; ``bcls.models.load(folder)`` is its best model.
        epochs: Epochs trained.
        best: Figures of the best epoch on the validation split; empty without one.
        best_epoch: Which it was, from 1; 0 without a validation split.
        history: Figures of every epoch.
        seconds: Time spent, over all parts of the run.
    """

    folder: Path
    epochs: int
    best: dict[str, float]
    best_epoch: int
    history: list[dict[str, float]]
    seconds: float
