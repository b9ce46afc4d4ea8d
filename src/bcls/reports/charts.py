"""Charts drawn with matplotlib, as images for a page or as SVG files."""

import io
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from bcls._core.errors import fail
from bcls._core.extras import require
from bcls.reports.html import check_output, data_uri

#: Line colors, distinguishable with color blindness. On dark pages the style sheet inverts their lightness.
COLORS = ("#2673bd", "#ad5f00", "#8a3ba6", "#12803c", "#b0343c", "#5f6b7a", "#0f8b8d", "#8c6a1f")
_MARKERS = "osv^D<>PX"
# Differences of larger values overflow.
_LARGEST = 1e300
# rcParams are global, and the web app draws in several threads.
_LOCK = threading.Lock()


class ChartImage(NamedTuple):
    """A chart for a page; the macro ``chart`` of ``macros.html`` draws it.

    Attributes:
        src: Data URI of an SVG file with a transparent background.
        alt: Title and the main values as text.
    """

    title: str
    src: str
    alt: str


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart. Values that are not finite, or too large for an axis, are left out.

    Attributes:
        name: Name in the legend.
        points: Pairs of x and y.
        level: A constant y value, drawn as a dashed line across the chart in place of points.
        band: Triples of x, lowest and highest y, drawn as an area behind the line.
        color: Color of the line; by default the next one of :data:`COLORS`.
        dashed: Whether a line through points is dashed.
    """

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)
    level: float | None = None
    band: list[tuple[float, float, float]] = field(default_factory=list)
    color: str | None = None
    dashed: bool = False

    def __post_init__(self) -> None:
        def kept(values: list[Any]) -> list[Any]:
            return [one for one in values if all(abs(value) < _LARGEST for value in one)]

        object.__setattr__(self, "points", kept(self.points))
        object.__setattr__(self, "band", kept(self.band))
        if self.level is not None and not abs(self.level) < _LARGEST:
            object.__setattr__(self, "level", None)


def line_chart(title: str, x_label: str, lines: Sequence[ChartLine]) -> ChartImage | None:
    """Draw lines over a common axis.

    Args:
        title: Title above the chart.
        x_label: Label of the horizontal axis.
        lines: The lines, drawn with a legend where there are several.

    Returns:
        The chart, or ``None`` if no line has any point.

    Raises:
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> line_chart("RSUM", "epoch", [ChartLine("BCLS", [(1, 300.0), (2, 310.5)])]).alt
        'RSUM by epoch. BCLS: 300 at 1, 310.5 at 2.'
        >>> line_chart("RSUM", "epoch", []) is None
        True
    """
    drawn = [line for line in lines if line.points or line.level is not None]
    if not any(line.points for line in drawn):
        return None
    with _figure((4.0, 2.9)) as figure:
        axes = figure.add_subplot()
        axes.patch.set_alpha(0.0)
        marker = "o" if max(len(line.points) for line in drawn) <= 30 else ""
        handles = [_draw(axes, line, number, marker) for number, line in enumerate(drawn)]
        axes.set(title=_clean(title), xlabel=_clean(x_label))
        if all(float(x).is_integer() for line in drawn for x, _ in line.points):
            axes.xaxis.get_major_locator().set_params(integer=True)
        if len(drawn) > 1:
            _legend(figure, handles, [line.name for line in drawn])
        values = " ".join(f"{line.name}: {_values(line)}." for line in drawn)
        return ChartImage(title, data_uri("image/svg+xml", _save(figure).encode()), f"{title} by {x_label}. {values}")


def bar_chart(title: str, labels: Sequence[str], series: Mapping[str, Sequence[int]]) -> ChartImage:
    """Draw counts as horizontal bars, with each count and its share of the series as text.

    Args:
        title: Title above the chart.
        labels: Name of each group of bars, from top to bottom.
        series: Counts by name, one for each label; several series stand side by side.

    Returns:
        The chart. Its alternative text contains all counts.

    Raises:
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> bar_chart("Ranks", ["1", "2–5"], {"": [3, 1]}).alt
        'Ranks. 1: 3 (75.0%), 2–5: 1 (25.0%).'
    """
    thick = 0.8 / len(series)
    values = []
    with _figure((4.6, 0.6 + 0.3 * len(labels) * (1 + len(series)) / 2 + 0.3 * (len(series) > 1))) as figure:
        axes = figure.add_subplot()
        handles = []
        for number, (name, counts) in enumerate(series.items()):
            shares = [count / max(1, sum(counts)) for count in counts]
            texts = [f"{count:,} ({share:.1%})" for count, share in zip(counts, shares, strict=True)]
            places = [place + (number - (len(series) - 1) / 2) * thick for place in range(len(labels))]
            handles.append(axes.barh(places, shares, thick * 0.9, color=COLORS[number]))
            axes.bar_label(handles[-1], texts, padding=3)
            listed = ", ".join(f"{label}: {text}" for label, text in zip(labels, texts, strict=True))
            values.append(f"{name}: {listed}." if name else f"{listed}.")
        axes.set(title=_clean(title), xticks=[], yticks=range(len(labels)), yticklabels=labels)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.35 * max([1e-9, *(bar.get_width() for bars in handles for bar in bars)]))
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(length=0)
        axes.grid(False)
        if len(series) > 1:
            _legend(figure, handles, list(series))
        return ChartImage(title, data_uri("image/svg+xml", _save(figure).encode()), f"{title}. {' '.join(values)}")


def log_log_chart(title: str, x_label: str, panels: Mapping[str, Sequence[ChartLine]]) -> str:
    """Draw measurements with logarithmic axes, one panel for each unit, for a file of its own.

    Args:
        title: Title above the panels.
        x_label: Label of the horizontal axes.
        panels: Lines by the heading of their panel. The same names in all panels share colors and one legend. Points
            with a value of 0 or below are left out.

    Returns:
        An SVG file with a white background.

    Raises:
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> svg = log_log_chart("Losses", "B", {"ms": [ChartLine("fused", [(8, 0.1), (64, 0.8)])]})
        >>> svg.startswith("<?xml"), ">fused</text>" in svg
        (True, True)
    """
    names = list(dict.fromkeys(line.name for lines in panels.values() for line in lines))
    handles: dict[str, Any] = {}
    with _figure((5 * len(panels), 5.2)) as figure:
        figure.patch.set_alpha(1.0)
        every = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (heading, lines) in zip(every, panels.items(), strict=True):
            xs = sorted({x for line in lines for x, _ in line.points})
            for line in lines:
                positive = replace(line, points=[(x, y) for x, y in sorted(line.points) if y > 0])
                if positive.points:
                    number = names.index(line.name)
                    marker = "" if line.dashed else _MARKERS[number % len(_MARKERS)]
                    handles[line.name] = _draw(axes, positive, number, marker)
            axes.set(xscale="log", yscale="log", xlabel=x_label, title=heading)
            axes.set_xticks(xs, [f"{x:,g}" for x in xs], rotation=45)
            axes.minorticks_off()
            # By default powers of 10 are mathematical text, which the style does not parse.
            axes.yaxis.set_major_formatter("{x:,g}")
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3)
        figure.suptitle(_clean(title))
        return _save(figure)


def check_figure(argument: str, file: str) -> None:
    """Check that :func:`figure_file` can write a file, before a long computation.

    Args:
        argument: Name of the argument, for the message.
        file: Path of the file.

    Raises:
        ValueError: The file cannot be created there, or matplotlib does not write its format.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> check_figure("--plot", "alpha.xyz")
        Traceback (most recent call last):
        ...
        ValueError: `--plot`: expected a file that ends in .png, .svg or .pdf, got alpha.xyz; use a name such as ...
    """
    check_output(argument, file, "alpha.png")
    formats = require("matplotlib.backend_bases", "reports", "drawing charts").FigureCanvasBase.filetypes
    if Path(file).suffix.lower()[1:] not in formats:
        fail(argument, "a file that ends in .png, .svg or .pdf", file, "use a name such as alpha.png")


@contextmanager
def figure_file(path: str | Path, size: tuple[float, float]) -> Iterator[Any]:
    """Yield a matplotlib figure and write it to a file at the end of the ``with`` block.

    Args:
        path: The file; its extension, such as ``.png`` or ``.svg``, chooses the format.
        size: Width and height in inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with _figure(size) as figure:
        figure.patch.set_alpha(1.0)
        yield figure
        figure.savefig(path)


@contextmanager
def _figure(size: tuple[float, float]) -> Iterator[Any]:
    """Create a transparent figure with the style of the package, whatever style the user has configured."""
    matplotlib = require("matplotlib", "reports", "drawing charts")
    # Used without pyplot, which would keep a reference to every figure.
    figure_class = require("matplotlib.figure", "reports", "drawing charts").Figure
    with _LOCK, matplotlib.rc_context(), warnings.catch_warnings():
        # Such as glyphs that matplotlib's own font lacks, which the browser draws.
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        with resources.as_file(resources.files("bcls.reports") / "templates" / "chart.mplstyle") as style:
            matplotlib.rcParams.update(matplotlib.rc_params_from_file(style, use_default_template=False))
        figure = figure_class(figsize=size)
        figure.patch.set_alpha(0.0)
        yield figure


def _draw(axes: Any, line: ChartLine, number: int, marker: str) -> Any:
    """Draw one line with its band."""
    color = line.color or COLORS[number % len(COLORS)]
    if line.level is not None:
        return axes.axhline(line.level, color=color, linestyle="--")
    if line.band:
        axes.fill_between(*zip(*line.band, strict=True), color=color, alpha=0.18, linewidth=0)
    style = "--" if line.dashed else "-"
    (handle,) = axes.plot(*zip(*line.points, strict=True), color=color, marker=marker, linestyle=style)
    return handle


def _legend(figure: Any, handles: list[Any], names: list[str]) -> None:
    columns = 3 if max(map(len, names)) < 14 else 1
    # matplotlib leaves out names that begin with an underscore.
    texts = [_clean(f" {name}" if name.startswith("_") else name) for name in names]
    figure.legend(handles, texts, loc="outside lower center", ncols=columns)


def _save(figure: Any) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _values(line: ChartLine) -> str:
    """Describe a line by its first and last point."""
    if line.level is not None:
        return f"{line.level:.4g} throughout"
    ends = [line.points[0]] + line.points[-1:] * (len(line.points) > 1)
    return ", ".join(f"{y:.4g} at {x:g}" for x, y in ends)


def _clean(text: str) -> str:
    """Replace characters that XML does not allow."""
    return re.sub("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
