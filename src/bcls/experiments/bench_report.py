"""Runs of ``bcls bench`` and their files: JSON, tables in Markdown, and charts of time and memory."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from bcls._core.errors import fail
from bcls._core.extras import MissingExtraError
from bcls._core.files import write_whole
from bcls.experiments.bench import LIMIT, run_subject
from bcls.reports.blocks import Table
from bcls.reports.charts import ChartLine, log_log_chart

UNITS = {"ms": "Milliseconds", "MB": "Megabytes above input and gradients"}


def run_all(names: Sequence[str], folder: Path, device: str = "auto", *, quick: bool = False) -> list[dict[str, Any]]:
    """Run benchmarks and write results, charts and a page; each result is written as soon as it is complete.

    Args:
        names: Names in :data:`bcls.experiments.bench.SUBJECTS`.
        folder: Output folder; created if it does not exist.
        device: ``"cuda"``, ``"cpu"``, or ``"auto"``.
        quick: Few values and few steps.

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
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def draw(result: dict[str, Any]) -> str:
    """A chart of a result as SVG, log-log: one line for each implementation, and the copy of the matrix as lower bound.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    paths = dict.fromkeys(row["path"] for row in result["rows"])
    panels = {}
    for unit, heading in UNITS.items():
        lines = []
        for path in paths:
            points = [(row[result["axis"]], row[unit]) for row in result["rows"] if row["path"] == path]
            bound: dict[str, Any] = {"colour": "#777777", "dashed": True} if path == LIMIT else {}
            lines.append(ChartLine(path, points, **bound))
        panels[heading] = lines
    return log_log_chart(f"{result['title']}, {result['machine']}", result["axis"], panels)
