"""What a run ran on."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import bcls
from bcls._files import write_whole

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
