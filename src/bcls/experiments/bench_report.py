"""Runs of ``bcls bench`` and their files: JSON, tables in Markdown, and charts of time and memory."""

import io
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from bcls._core.errors import fail
from bcls._core.extras import MissingExtraError, require
from bcls._core.files import write_whole
from bcls.experiments.bench import LIMIT, run_subject

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
        write_result(folder, result)
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


def write_result(folder: Path, result: dict[str, Any]) -> Path:
    """Write the result of one benchmark to ``bench-SUBJECT.json`` and return the path."""
    path = folder / f"bench-{result['subject']}.json"
    write_whole(path, json.dumps(result, indent=1) + "\n")
    return path


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
        lines += [f"{heading}:\n", table([axis, *paths], rows)]
    return "\n".join(lines)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""A table in Markdown.

    Example:
        >>> table(["B", "ms"], [["8", "1.5"]])
        '| B | ms |\n|---|---|\n| 8 | 1.5 |\n'
    """
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(_line(cells) for cells in lines)


def _line(cells: Sequence[str]) -> str:
    gap = "" if set(cells) == {"---"} else " "
    return "|" + "|".join(f"{gap}{cell.replace('|', chr(92) + '|')}{gap}" for cell in cells) + "|\n"


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


# Distinguishable with most kinds of colour vision (Okabe and Ito).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222", "#8c510a", "#7570b3")
_MARKS = "osv^D<>PX"
_LIMIT = "#777777"
_STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "bcls",
}


def draw(result: dict[str, Any]) -> str:
    """A chart of a result as SVG, log-log: one line for each implementation, and the copy of the matrix as lower bound.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    matplotlib = require("matplotlib", "reports", "charts of the benchmarks")
    figure_class = require("matplotlib.figure", "reports", "charts of the benchmarks").Figure
    axis, file = result["axis"], io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = figure_class(figsize=(10, 5.2), layout="constrained")
        for axes, (unit, heading) in zip(figure.subplots(1, 2), UNITS.items(), strict=True):
            lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for row in result["rows"]:
                if row[unit] > 0:  # others have no logarithm
                    lines[row["path"]].append((row[axis], row[unit]))
            paths = list(dict.fromkeys(row["path"] for row in result["rows"]))
            for number, path in enumerate(paths):
                if path in lines:
                    axes.plot(*zip(*sorted(lines[path]), strict=True), **_style_of(path, number))
            axes.set(xscale="log", yscale="log", xlabel=axis, title=heading)
            values = sorted({row[axis] for row in result["rows"]})
            axes.set_xticks(values, [f"{value:,}" for value in values], rotation=45)
            axes.minorticks_off()
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3)
        figure.suptitle(f"{result['title']}, {result['machine']}")
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _style_of(path: str, number: int) -> dict[str, Any]:
    if path == LIMIT:
        return {"label": path, "color": _LIMIT, "linestyle": "--", "linewidth": 1.2}
    place = number % len(_COLOURS)
    return {"label": path, "color": _COLOURS[place], "marker": _MARKS[place], "markersize": 4, "linewidth": 1.4}
