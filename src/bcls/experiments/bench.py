"""Benchmarks of the losses: time and memory of one step, forward and backward, on a CUDA device or a CPU.

The implementations that are compared take turns within one run and the median counts, so that a busy moment of the
machine affects all of them. On a CUDA device time is measured by CUDA events and memory by torch's allocator; on a CPU
memory is measured by torch's profiler.

:func:`run_all` implements ``bcls bench``: it writes JSON, tables in Markdown, and charts of time and memory.
"""

import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bcls._core.errors import check_choice, fail
from bcls._core.extras import MissingExtraError, version_of
from bcls._core.files import write_whole
from bcls._core.progress import progress
from bcls.losses import LOSSES, BCLSLoss, KendallLoss, KendallWindowLoss, StreamingBCLSLoss, from_name, without_kernels
from bcls.losses.backends import triton_runs_on
from bcls.reports.blocks import Table
from bcls.reports.charts import ChartLine, log_log_chart

#: One step of an implementation.
Run = Callable[[], object]
#: Mean and standard deviation of MiniLM labels on photo captions.
MEAN, DEVIATION = 0.13, 0.11
#: Measured steps of a turn.
COUNTED = 3
#: Name of the lower bound: no loss that reads the matrix can be faster than copying it.
LIMIT = "copy of the matrix"
#: Turns of each implementation: as many as fit into these seconds, within these limits.
_SECONDS, _QUICK_SECONDS = 2.0, 0.2
_FEWEST, _MOST = 2, 50


def matrices(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Similarities that require a gradient, and labels distributed as real ones, ``(B, B)``."""
    generator = torch.Generator(device).manual_seed(size)
    draw = partial(torch.randn, size, size, generator=generator, device=device)
    similarity, relevance = draw() / 4, draw().mul_(DEVIATION).add_(MEAN)
    return similarity.requires_grad_(), relevance.clamp_(-1, 1).fill_diagonal_(1)


def embeddings(size: int, width: int, labels: int, device: torch.device) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Images and texts ``(B, width)`` that require gradients, and label embeddings ``(B, labels)``; unit rows."""
    generator = torch.Generator(device).manual_seed(size)
    draw = partial(torch.randn, generator=generator, device=device)
    images = functional.normalize(draw(size, width), dim=1)
    texts = functional.normalize(images + 0.8 * functional.normalize(draw(size, width), dim=1), dim=1)
    captions = functional.normalize(draw(size, labels) + 0.35, dim=1)
    return (images.requires_grad_(), texts.requires_grad_()), captions


def step(loss: Callable[..., Tensor], leaves: tuple[Tensor, ...], *others: Tensor) -> tuple[Tensor, ...]:
    """Forward and backward pass: the value and the gradients of ``leaves``.

    Example:
        >>> step(lambda a, b: (a * b).sum(), (torch.ones(2, requires_grad=True),), torch.full((2,), 3.0))
        (tensor(6.), tensor([3., 3.]))
    """
    value = loss(*leaves, *others)
    return value.detach(), *torch.autograd.grad(value, leaves)


def milliseconds(run: Run, device: torch.device) -> float:
    """Time of one step, until the device has finished it."""
    if device.type != "cuda":
        started = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - started)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    start.record()
    run()
    stop.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(stop))


def medians(rivals: Mapping[str, Run], device: torch.device, repeats: int) -> dict[str, float]:
    """Median milliseconds of each implementation, taking turns.

    The order changes in every round, and each turn begins with a step that is not measured, so that no implementation
    always pays for the caches that the previous one has emptied.

    Args:
        rivals: Steps by name.
        device: The device they run on.
        repeats: Turns of each, of :data:`COUNTED` measured steps; the first steps, which may compile, do not count.
    """
    for run in rivals.values():
        run(), run()
    times: dict[str, list[float]] = {name: [] for name in rivals}
    order, shuffled = list(rivals), random.Random(0)
    for _ in range(repeats):
        shuffled.shuffle(order)
        for name in order:
            rivals[name]()
            times[name] += [milliseconds(rivals[name], device) for _ in range(COUNTED)]
    return {name: statistics.median(values) for name, values in times.items()}


def megabytes(run: Run, device: torch.device, kept: int = 0) -> float:
    """Peak memory of a step above the memory in use before, without the result.

    Args:
        run: One step.
        device: The device it runs on.
        kept: Bytes of the result, the gradients.
    """
    if device.type != "cuda":
        return (_peak_on_cpu(run) - kept) / 1e6
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before - kept) / 1e6


def _peak_on_cpu(run: Run) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler prints a line for every start and stop
    from torch.profiler import ProfilerActivity, profile

    run()  # allocations that are cached do not belong to a step
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = run()
    del result
    changes: list[Any] = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return int(max(accumulate((change.nbytes() for change in changes), initial=0)))


def plain(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss of :mod:`bcls.losses` in plain torch, on every device."""

    def call(*tensors: Tensor) -> Tensor:
        with without_kernels():
            return loss(*tensors)

    return call


def matrix_bcls(images: Tensor, texts: Tensor, captions: Tensor) -> Tensor:
    """BCLS from embeddings, by computing the matrices; the mean."""
    return BCLSLoss()(images @ texts.T, (captions @ captions.T).clamp(-1, 1).fill_diagonal_(1))


def hard_triplets(similarity: Tensor, margin: float = 0.2) -> Tensor:
    """Triplet-HN as in the code of VSE++; the mean."""
    own = similarity.diagonal()
    others = similarity.masked_fill(torch.eye(len(similarity), dtype=torch.bool, device=similarity.device), -1e9)
    by_row, by_column = others.max(1).values, others.max(0).values
    return ((by_row - own + margin).relu() + (by_column - own + margin).relu()).mean()


def infonce(similarity: Tensor) -> Tensor:
    """InfoNCE as in open_clip."""
    logits, target = similarity / 0.05, torch.arange(len(similarity), device=similarity.device)
    return (functional.cross_entropy(logits, target) + functional.cross_entropy(logits.T, target)) / 2


def window_loop(similarity: Tensor, relevance: Tensor, alpha: float = 0.2, beta: float = 0.1) -> Tensor:
    """K-SW-HS in its direct form: a pass over the matrices for each window; the mean."""
    windows = int((2 - alpha) / beta + 1e-9)
    total = similarity.new_zeros(())
    exact = relevance.double()  # so that a label on the edge of a window is recognized
    for scores, labels in ((similarity, exact), (similarity.T, exact.T)):
        for window in range(1, windows + 1):
            lower = -1 + window * beta
            positive, negative = labels >= lower + alpha - 1e-6, labels < lower - 1e-6
            lowest = scores.masked_fill(~positive, torch.inf).min(1).values
            highest = scores.masked_fill(~negative, -torch.inf).max(1).values
            both = positive.any(1) & negative.any(1)
            total = total + torch.where(both, highest - lowest, 0).relu().sum()
    return total / windows / len(similarity)


@dataclass(frozen=True)
class Subject:
    """One benchmark: the quantity that is varied, its values, and the implementations at a value.

    Attributes:
        title: Heading of the table.
        axis: Name of the varied quantity, a column of the result.
        cuda: Values on a GPU; a quick run uses the first two.
        cpu: Values on a CPU.
        paths: Steps by name at a value, and the bytes of the gradients they return.
    """

    title: str
    axis: str
    cuda: Sequence[int]
    cpu: Sequence[int]
    paths: Callable[[int, torch.device], tuple[dict[str, Run], int]]


def _on_matrices(losses: dict[str, Any], size: int, device: torch.device) -> tuple[dict[str, Run], int]:
    """Steps of losses on a matrix, and the copy of the matrix as the lower bound."""
    similarity, relevance = matrices(size, device)
    paths: dict[str, Run] = {name: partial(step, loss, (similarity,), relevance) for name, loss in losses.items()}
    paths[LIMIT] = partial(torch.empty_like(relevance).copy_, similarity.detach())
    return paths, 4 * size**2


def _losses(size: int, device: torch.device) -> tuple[dict[str, Run], int]:
    # The loop keeps its graph for all windows, and the dense loss compares all pairs: above these sizes they are slow.
    looped, dense = (8192, 4096) if device.type == "cuda" else (1024, 1024)
    kendall: dict[str, Any] = {"K-SW-HS": KendallWindowLoss(), "BCLS": BCLSLoss()}
    if size <= dense:
        kendall["dense Kendall"] = KendallLoss()
    losses: dict[str, Any] = {f"{name}, plain": plain(loss) for name, loss in kendall.items()}
    if triton_runs_on(device):
        losses |= {f"{name}, fused": loss for name, loss in kendall.items()}
    if size <= looped:
        losses["K-SW-HS, loop over windows"] = window_loop
    losses["Triplet-HN"] = lambda similarity, _: hard_triplets(similarity)
    losses["InfoNCE"] = lambda similarity, _: infonce(similarity)
    return _on_matrices(losses, size, device)


def _names(size: int, device: torch.device) -> tuple[dict[str, Run], int]:
    """Every registered loss with its defaults."""
    # These compare all pairs of candidates of every anchor.
    cubic = {"kendall-sw", "sndcg", "lambda"} if size > (2048 if device.type == "cuda" else 256) else set()
    return _on_matrices({name: from_name(name) for name in LOSSES if name not in cubic}, size, device)


def _windows(count: int, device: torch.device) -> tuple[dict[str, Run], int]:
    beta = 1.8 / count
    losses: dict[str, Any] = {"K-SW-HS, plain": plain(KendallWindowLoss(beta=beta))}
    if triton_runs_on(device):
        losses["K-SW-HS, fused"] = KendallWindowLoss(beta=beta)
    if count <= 36:
        losses["K-SW-HS, loop over windows"] = partial(window_loop, beta=beta)
    return _on_matrices(losses, 4096 if device.type == "cuda" else 512, device)


def _streaming(size: int, device: torch.device, width: int = 512) -> tuple[dict[str, Run], int]:
    leaves, captions = embeddings(size, width, 384, device)
    paths: dict[str, Run] = {"BCLS, streaming": partial(step, StreamingBCLSLoss(), leaves, captions)}
    if size <= (16384 if device.type == "cuda" else 2048):
        paths["BCLS, through the matrices"] = partial(step, matrix_bcls, leaves, captions)
        paths[LIMIT] = partial(torch.empty(size, size, device=device).copy_, torch.zeros(size, size, device=device))
    return paths, 2 * 4 * size * width


def _width(width: int, device: torch.device) -> tuple[dict[str, Run], int]:
    return _streaming(8192 if device.type == "cuda" else 512, device, width)


def _powers(first: int, last: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(first, last + 1))


_COUNTS = (6, 18, 60, 180, 600)
SUBJECTS = {
    "losses": Subject("Losses on a matrix against the batch", "B", _powers(7, 14), _powers(6, 11), _losses),
    "names": Subject("Every loss against the batch", "B", (128, 512, 1024, 2048), (128, 256, 1024), _names),
    "windows": Subject("The window loss against the number of windows", "M", _COUNTS, _COUNTS, _windows),
    "streaming": Subject("BCLS from embeddings against the batch", "B", _powers(10, 16), _powers(7, 12), _streaming),
    "width": Subject("BCLS from embeddings against their width", "d", _powers(6, 11), _powers(6, 10), _width),
}


def run_subject(name: str, device: torch.device, *, quick: bool = False) -> dict[str, Any]:
    """Run one benchmark.

    Args:
        name: A name in :data:`SUBJECTS`.
        device: A CUDA device or a CPU.
        quick: Few values and few steps, as a smoke test.

    Returns:
        The results and the machine, ready for JSON: ``rows`` with ``path``, the axis, ``ms`` and ``MB``.

    Raises:
        ValueError: If the name is unknown.
    """
    check_choice("subject", name, SUBJECTS)
    subject = SUBJECTS[name]
    values = (subject.cuda if device.type == "cuda" else subject.cpu)[: 2 if quick else None]
    rows: list[dict[str, Any]] = []
    with progress(subject.title, len(values)) as report:
        for number, value in enumerate(values):
            report(number, f"{subject.axis} = {value:,}")
            paths, kept = subject.paths(value, device)
            once = sum(milliseconds(run, device) for _ in range(2) for run in paths.values()) / 2e3
            fitting = int((_QUICK_SECONDS if quick else _SECONDS) / (1 + COUNTED) / once)
            took = medians(paths, device, min(_MOST, max(_FEWEST, fitting)))
            for path, run in paths.items():
                memory = 0.0 if path == LIMIT else megabytes(run, device, kept)
                rows.append({"path": path, subject.axis: value, "ms": took[path], "MB": memory})
        report(len(values))
    command = f"bcls bench {name}{' --quick' if quick else ''}"
    about = {"subject": name, "title": subject.title, "axis": subject.axis, "command": command}
    return {**about, **machine(device), "rows": rows}


def machine(device: torch.device) -> dict[str, str]:
    """The device and the versions that results were measured with."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    versions = {"torch": torch.__version__, "triton": version_of("triton") or "not installed"}
    return {"machine": name, "python": platform.python_version(), **versions}


UNITS = {"ms": "Milliseconds", "MB": "Megabytes above input and gradients"}


def run_all(names: Sequence[str], folder: Path, device: str = "auto", *, quick: bool = False) -> list[dict[str, Any]]:
    """Run benchmarks and write results, charts and a page; each result is written as soon as it is complete.

    Args:
        names: Names in :data:`SUBJECTS`; all of them if there are none.
        folder: Output folder; created if it does not exist.
        device: ``"cuda"``, ``"cpu"``, or ``"auto"``.
        quick: Few values and few steps.

    Returns:
        The results.

    Raises:
        ValueError: If a name is unknown, or there is no GPU for ``"cuda"``.
    """
    for name in names:
        check_choice("SUBJECT", name, SUBJECTS)
    where = _device(device)
    folder.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    plots: dict[str, str] = {}
    for name in names or SUBJECTS:
        result = run_subject(name, where, quick=quick)
        write_whole(folder / f"bench-{name}.json", json.dumps(result, indent=1) + "\n")
        results.append(result)
        try:
            write_whole(folder / f"bench-{name}.svg", draw(result))
            plots[name] = f"bench-{name}.svg"
        except MissingExtraError as error:
            print(f"no chart: {error}", file=sys.stderr)
        write_whole(folder / "bench.md", page(results, plots))
    return results


def _device(device: str) -> torch.device:
    gpu = torch.cuda.is_available()
    if device == "cuda" and not gpu:
        fail("--device", "a GPU that torch can use", "none", "omit it to run on the CPU")
    if device == "auto" and not gpu:
        print("torch finds no GPU: running on the CPU, without the fused losses", file=sys.stderr)
    return torch.device("cuda", torch.cuda.current_device()) if gpu and device != "cpu" else torch.device("cpu")


def page(results: Iterable[dict[str, Any]], plots: dict[str, str] | None = None) -> str:
    """The page in Markdown: machine, command, chart and tables of each result.

    Args:
        results: Results of :func:`bcls.experiments.bench.run_subject`.
        plots: File of the chart by subject, relative to the page.
    """
    parts = ["# Speed and memory\n"]
    for result in results:
        parts.append(section(result))
        if plots and result["subject"] in plots:
            parts.append(f"![{result['title']}]({plots[result['subject']]})\n")
    return "\n".join(parts)


def section(result: dict[str, Any]) -> str:
    """One result: heading, command and machine, and a table for each unit."""
    made = f"`{result['command']}` on {result['machine']}, torch {result['torch']}, Triton {result['triton']}"
    lines = [f"## {result['title']}\n", f"{made}. Forward and backward pass, medians of interleaved runs.\n"]
    axis = result["axis"]
    for unit, heading in UNITS.items():
        paths = list(dict.fromkeys(row["path"] for row in result["rows"] if unit == "ms" or row[unit] > 0))
        measured = {(row["path"], row[axis]): row[unit] for row in result["rows"]}
        values = sorted({row[axis] for row in result["rows"]})
        rows = [[f"{value:,}", *(short(measured.get((path, value))) for path in paths)] for value in values]
        lines += [f"{heading}:\n", Table.of_texts([axis, *paths], rows).as_markdown() + "\n"]
    return "\n".join(lines)


def short(value: object) -> str:
    """A value as text with three significant digits; empty for None.

    Example:
        >>> short(1234.5), short(0.012345), short(None), short("yes")
        ('1,234', '0.0123', '', 'yes')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.3g}"


def draw(result: dict[str, Any]) -> str:
    """A chart of a result as SVG, log-log: one line for each implementation, and the copy of the matrix as lower bound.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    panels: dict[str, list[ChartLine]] = {heading: [] for heading in UNITS.values()}
    for path in dict.fromkeys(row["path"] for row in result["rows"]):
        bound: dict[str, Any] = {"color": "#777777", "dashed": True} if path == LIMIT else {}
        for unit, heading in UNITS.items():
            points = [(row[result["axis"]], row[unit]) for row in result["rows"] if row["path"] == path]
            panels[heading].append(ChartLine(path, points, **bound))
    return log_log_chart(f"{result['title']}, {result['machine']}", result["axis"], panels)
