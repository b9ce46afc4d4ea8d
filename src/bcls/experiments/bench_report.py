"""Results as files: JSON to keep, tables in Markdown to read, and plots.

Plots of time and memory, log-log, one line a path and the copy of the matrix as the limit.

All of ``bcls bench``: subjects one after the other, each written as soon as it is measured.
"""

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


def write_result(folder: Path, result: dict[str, Any]) -> Path:
    """Write one subject's figures to ``bench-SUBJECT.json``; the path."""
    path = folder / f"bench-{result['subject']}.json"
    write_whole(path, json.dumps(result, indent=1) + "\n")
    return path


def page(results: Iterable[dict[str, Any]], plots: dict[str, str] | None = None) -> str:
    """A page in Markdown: for each result its machine and command, plot and tables.

    Args:
        results: As :func:`bcls.experiments.bench.run_subject` makes them.
        plots: File of the plot by subject, relative to the page; none without it.
    """
    parts = ["# Speed and memory\n"]
    for result in results:
        parts.append(section(result))
        if plots and result["subject"] in plots:
            parts.append(f"![{result['title']}]({plots[result['subject']]})\n")
    return "\n".join(parts)


def section(result: dict[str, Any]) -> str:
    """One result: heading, what it was measured on, and a table for each unit."""
    made = f"`{result['command']}` on {result['machine']}, torch {result['torch']}, Triton {result['triton']}"
    lines = [f"## {result['title']}\n", f"{made}. Forward and backward, medians of steps that take turns.\n"]
    axis = result["axis"]
    for unit, heading in UNITS.items():
        paths = list(dict.fromkeys(row["path"] for row in result["rows"] if unit == "ms" or row[unit] > 0))
        figures = {(row["path"], row[axis]): row[unit] for row in result["rows"]}
        values = sorted({row[axis] for row in result["rows"]})
        rows = [[f"{value:,}", *(short(figures.get((path, value))) for path in paths)] for value in values]
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
    """A figure in a cell: three digits, and nothing for nothing.

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


# Told apart by most kinds of colour vision (Okabe and Ito).
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
    """A result as a picture, SVG.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    matplotlib = require("matplotlib", "plots", "drawing the measurements")
    figure_class = require("matplotlib.figure", "plots", "drawing the measurements").Figure
    axis, file = result["axis"], io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = figure_class(figsize=(10, 5.2), layout="constrained")
        for axes, (unit, heading) in zip(figure.subplots(1, 2), UNITS.items(), strict=True):
            lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for row in result["rows"]:
                if row[unit] > 0:  # a logarithm has no place for the others
                    lines[row["path"]].append((row[axis], row[unit]))
            paths = list(dict.fromkeys(row["path"] for row in result["rows"]))
            for number, path in enumerate(paths):
                if path in lines:
                    axes.plot(*zip(*sorted(lines[path]), strict=True), **_look(path, number))
            axes.set(xscale="log", yscale="log", xlabel=axis, title=heading)
            values = sorted({row[axis] for row in result["rows"]})
            axes.set_xticks(values, [f"{value:,}" for value in values], rotation=45)
            axes.minorticks_off()
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3)
        figure.suptitle(f"{result['title']}, {result['machine']}")
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _look(path: str, number: int) -> dict[str, Any]:
    if path == LIMIT:
        return {"label": path, "color": _LIMIT, "linestyle": "--", "linewidth": 1.2}
    place = number % len(_COLOURS)
    return {"label": path, "color": _COLOURS[place], "marker": _MARKS[place], "markersize": 4, "linewidth": 1.4}


def run_all(names: Sequence[str], folder: Path, device: str = "auto", *, quick: bool = False) -> list[dict[str, Any]]:
    """Measure subjects and write figures, plots and a page; what is measured is kept if a later one is stopped.

    Args:
        names: Of :data:`bcls.experiments.bench.SUBJECTS`.
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
