"""Curves as SVG elements, drawn here: no script and no style in them, colours come from the page."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 420, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 20, 10, 34
#: Points that a line of this width can show.
_MOST = 400


class Line(NamedTuple):
    """A line of a plot: its name, and its points from left to right."""

    name: str
    points: list[tuple[float, float]]


def curve(title: str, axis: str, lines: Sequence[Line]) -> Markup | None:
    """Draw lines in one plot.

    Args:
        title: What they show.
        axis: What the x axis counts.
        lines: Each gets a class ``line0``, ``line1`` and so on, for its colour; those without points are left out.

    Returns:
        A figure element; ``None`` where there is nothing to draw.
    """
    drawn = [line for line in lines if line.points]
    if not drawn:
        return None
    xs, ys = ([point[side] for line in drawn for point in line.points] for side in (0, 1))
    across, up = _Scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT), _Scale(min(ys), max(ys), _HEIGHT - _BOTTOM, _TOP)
    parts = []
    for value in ticks(up.low, up.high):
        y = up(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="end" x="{_LEFT - 6}" y="{y:.1f}">{value:.6g}</text>')
    parts += [
        f'<text class="middle" x="{across(value):.1f}" y="{_HEIGHT - 22}">{value:.6g}</text>'
        for value in ticks(across.low, across.high)
        if value == int(value)
    ]
    parts.append(f'<text class="middle" x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 6}">{escape(axis)}</text>')
    for number, line in enumerate(drawn):
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in thinned(line.points))
        if len(line.points) == 1:
            left, top = points.split(",")
            parts.append(f'<circle class="line{number}" cx="{left}" cy="{top}" r="3"/>')
        else:
            parts.append(f'<polyline class="line{number}" points="{points}"/>')
    key = "".join(f'<li class="line{number}">{escape(line.name)}</li>' for number, line in enumerate(drawn))
    return Markup(  # noqa: S704 - names are escaped, the rest is numbers
        f'<figure class="curve"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
        f'<ul class="key">{key}</ul></figure>'
    )


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from ``low`` to ``high``, about five.

    Example:
        >>> ticks(0, 20), ticks(0.31, 0.36)
        ([0.0, 5.0, 10.0, 15.0, 20.0], [0.31, 0.32, 0.33, 0.34, 0.35, 0.36])
    """
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Few enough points that look the same: the lowest and highest of each stretch, so that no peak is lost."""
    if len(points) <= _MOST:
        return list(points)
    size = math.ceil(2 * len(points) / _MOST)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return kept


class _Scale:
    """Values to places; a single value gets some room around it."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        if not high > low:
            room = abs(low) * 0.05 or 1.0
            low, high = low - room, high + room
        self.low, self.high, self._start, self._end = low, high, start, end

    def __call__(self, value: float) -> float:
        return self._start + (value - self.low) / (self.high - self.low) * (self._end - self._start)
