"""The subjects of ``bcls bench``: what is varied, which paths are measured, and how far each of them goes."""

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from bcls._checks import check_choice
from bcls._progress import progress
from bcls.bench import rivals
from bcls.bench.inputs import embeddings, matrices
from bcls.bench.measure import COUNTED, Run, medians, megabytes, milliseconds, step
from bcls.kernels.engines import runs_triton
from bcls.losses import BCLSLoss, KendallLoss, KendallWindowLoss

#: The path that shows what the memory allows: nothing that touches the matrix is faster.
LIMIT = "copy of the matrix"
#: Turns of each path: as many as fit these seconds, within these numbers.
_SECONDS, _QUICK_SECONDS = 2.0, 0.2
_FEWEST, _MOST = 2, 50


@dataclass(frozen=True)
class Subject:
    """One table: what is varied, over which values, and the paths at a value."""

    title: str
    """Heading of the table."""
    axis: str
    """Name of what is varied, a column of the result."""
    values: dict[str, tuple[int, ...]]
    """By device type, and with ``"quick"`` in front the few of a quick run."""
    paths: Callable[[int, torch.device], tuple[dict[str, Run], int]]
    """Steps by name at a value, and the bytes of the gradients they return."""


def _losses(size: int, device: torch.device) -> tuple[dict[str, Run], int]:
    similarity, relevance = matrices(size, device)
    target, source = torch.empty_like(relevance), similarity.detach()
    # The loop keeps its graph for all windows, and the dense loss compares all pairs: beyond this they take too long.
    looped, dense = (8192, 4096) if device.type == "cuda" else (1024, 1024)
    labelled: dict[str, Any] = {
        "K-SW-HS, plain": rivals.plain(KendallWindowLoss()),
        "BCLS, plain": rivals.plain(BCLSLoss()),
    }
    if size <= dense:
        labelled["dense Kendall, plain"] = rivals.plain(KendallLoss())
    if runs_triton(device):
        labelled |= {"K-SW-HS, fused": rivals.fused_windows, "BCLS, fused": rivals.fused_bcls}
        if size <= dense:
            labelled["dense Kendall, fused"] = rivals.fused_kendall
    if size <= looped:
        labelled["K-SW-HS, loop over windows"] = rivals.window_loop
    paths: dict[str, Run] = {name: partial(step, loss, (similarity,), relevance) for name, loss in labelled.items()}
    paths["Triplet-HN"] = partial(step, rivals.hard_triplets, (similarity,))
    paths["InfoNCE"] = partial(step, rivals.infonce, (similarity,))
    paths[LIMIT] = partial(target.copy_, source)
    return paths, 4 * size**2


def _windows(count: int, device: torch.device) -> tuple[dict[str, Run], int]:
    size = 4096 if device.type == "cuda" else 512
    similarity, relevance = matrices(size, device)
    beta = 1.8 / count
    target, source = torch.empty_like(relevance), similarity.detach()
    labelled: dict[str, Any] = {"K-SW-HS, plain": rivals.plain(KendallWindowLoss(beta=beta))}
    if runs_triton(device):
        labelled["K-SW-HS, fused"] = partial(rivals.fused_windows, beta=beta)
    if count <= 36:
        labelled["K-SW-HS, loop over windows"] = partial(rivals.window_loop, beta=beta)
    paths: dict[str, Run] = {name: partial(step, loss, (similarity,), relevance) for name, loss in labelled.items()}
    paths[LIMIT] = partial(target.copy_, source)
    return paths, 4 * size**2


def _streaming(size: int, device: torch.device, width: int = 512) -> tuple[dict[str, Run], int]:
    leaves, captions = embeddings(size, width, 384, device)
    paths: dict[str, Run] = {"BCLS, streaming": partial(step, rivals.streaming_bcls, leaves, captions)}
    if size <= (16384 if device.type == "cuda" else 2048):
        paths["BCLS, through the matrices"] = partial(step, rivals.matrix_bcls, leaves, captions)
        target, source = torch.empty(size, size, device=device), torch.zeros(size, size, device=device)
        paths[LIMIT] = partial(target.copy_, source)
    return paths, 2 * 4 * size * width


def _width(width: int, device: torch.device) -> tuple[dict[str, Run], int]:
    return _streaming(8192 if device.type == "cuda" else 512, device, width)


SUBJECTS = {
    "losses": Subject(
        "Losses on a matrix against the batch",
        "B",
        {
            "cuda": (128, 256, 512, 1024, 2048, 4096, 8192, 16384),
            "cpu": (64, 128, 256, 512, 1024, 2048),
            "quick cuda": (128, 1024, 4096),
            "quick cpu": (32, 64, 128),
        },
        _losses,
    ),
    "windows": Subject(
        "The window loss against the number of windows",
        "M",
        {
            "cuda": (6, 18, 60, 180, 600),
            "cpu": (6, 18, 60, 180, 600),
            "quick cuda": (18, 180),
            "quick cpu": (6, 18, 60),
        },
        _windows,
    ),
    "streaming": Subject(
        "BCLS from embeddings against the batch",
        "B",
        {
            "cuda": (1024, 2048, 4096, 8192, 16384, 32768, 65536),
            "cpu": (128, 256, 512, 1024, 2048, 4096),
            "quick cuda": (1024, 4096),
            "quick cpu": (64, 128),
        },
        _streaming,
    ),
    "width": Subject(
        "BCLS from embeddings against their width",
        "d",
        {
            "cuda": (64, 128, 256, 512, 1024, 2048),
            "cpu": (64, 128, 256, 512, 1024),
            "quick cuda": (128, 512),
            "quick cpu": (16, 64),
        },
        _width,
    ),
}


def run_subject(name: str, device: torch.device, *, quick: bool = False) -> dict[str, Any]:
    """Measure a subject.

    Args:
        name: One of :data:`SUBJECTS`.
        device: A CUDA device or a CPU.
        quick: Few values and few steps, to see that it works.

    Returns:
        What was measured and on what, ready for JSON: ``rows`` with ``path``, the axis, ``ms`` and ``MB``.

    Raises:
        ValueError: If there is no such subject.
    """
    check_choice("subject", name, SUBJECTS)
    subject = SUBJECTS[name]
    rows = list(_rows(subject, device, quick=quick))
    command = f"bcls bench {name}{' --quick' if quick else ''}"
    about = {"subject": name, "title": subject.title, "axis": subject.axis, "command": command}
    return {**about, **machine(device), "rows": rows}


def _rows(subject: Subject, device: torch.device, *, quick: bool) -> Iterator[dict[str, Any]]:
    values = subject.values[f"quick {device.type}" if quick else device.type]
    with progress(subject.title, len(values)) as said:
        for number, value in enumerate(values):
            said(number, f"{subject.axis} = {value:,}")
            paths, kept = subject.paths(value, device)
            once = sum(milliseconds(run, device) for _ in range(2) for run in paths.values()) / 2e3
            fitting = int((_QUICK_SECONDS if quick else _SECONDS) / (1 + COUNTED) / once)
            took = medians(paths, device, min(_MOST, max(_FEWEST, fitting)))
            for path, run in paths.items():
                memory = 0.0 if path == LIMIT else megabytes(run, device, kept)
                yield {"path": path, subject.axis: value, "ms": took[path], "MB": memory}
        said(len(values))


def machine(device: torch.device) -> dict[str, str]:
    """What figures were measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "not installed"
    return {"machine": name, "python": platform.python_version(), "torch": torch.__version__, "triton": triton}
