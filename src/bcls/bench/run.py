"""All of ``bcls bench``: subjects one after the other, each written as soon as it is measured."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bcls._checks import fail
from bcls._extras import MissingExtraError
from bcls._files import write_whole
from bcls.bench.plots import draw
from bcls.bench.report import page, write_result
from bcls.bench.subjects import run_subject


def run_all(names: Sequence[str], folder: Path, device: str = "auto", *, quick: bool = False) -> list[dict[str, Any]]:
    """Measure subjects and write figures, plots and a page; what is measured is kept if a later one is stopped.

    Args:
        names: Of :data:`bcls.bench.SUBJECTS`.
        folder: Where; made if it is not there.
        device: ``"cuda"``, ``"cpu"``, or ``"auto"``.
        quick: Few sizes and few steps.

    Returns:
        The results.

    Raises:
        ValueError: If there is no GPU for ``"cuda"``.
    """
    where = _device(device)
    folder.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    plots: dict[str, str] = {}
    for name in names:
        result = run_subject(name, where, quick=quick)
        write_result(folder, result)
        results.append(result)
        try:
            write_whole(folder / f"bench-{name}.svg", draw(result))
            plots[name] = f"bench-{name}.svg"
        except MissingExtraError as error:
            print(f"no plot: {error}", file=sys.stderr)
        write_whole(folder / "bench.md", page(results, plots))
    return results


def _device(device: str) -> torch.device:
    gpu = torch.cuda.is_available()
    if device == "cuda" and not gpu:
        fail("--device", "a GPU that torch sees", "none", "leave it out to measure on the CPU")
    if device == "auto" and not gpu:
        print("torch sees no GPU: the CPU's paths are measured, the fused ones are left out", file=sys.stderr)
    return torch.device("cuda", torch.cuda.current_device()) if gpu and device != "cpu" else torch.device("cpu")
