"""Plots of time and memory, log-log, one line a path and the copy of the matrix as the limit."""

import io
from collections import defaultdict
from typing import Any

from bcls._extras import require
from bcls.bench.report import UNITS
from bcls.bench.subjects import LIMIT

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
