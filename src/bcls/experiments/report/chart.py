"""A line chart as an SVG element, in the colours of the page around it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import floor, isfinite, log10

#: Told apart with any kind of colour blindness, on light and on dark pages.
_COLOURS = ("#2673bd", "#c26a00", "#8a3ba6", "#12803c", "#b0343c", "#5f6b7a", "#0f8b8d", "#a0792b")
_WIDTH, _HEIGHT = 460, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 30, 44
_ROW = 16


@dataclass(frozen=True)
class Line:
    """A line through points, or across the whole chart at a level; what is no number is left out of it."""

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)
    level: float | None = None

    def __post_init__(self) -> None:
        """Leave out figures that a run does not have."""
        object.__setattr__(self, "points", [(x, y) for x, y in self.points if isfinite(y)])
        if self.level is not None and not isfinite(self.level):
            object.__setattr__(self, "level", None)


def chart(title: str, axis: str, lines: Sequence[Line]) -> str:
    """Draw lines over an axis.

    Args:
        title: Above it.
        axis: What the horizontal axis is.
        lines: At least one with points; a level is drawn dashed.

    Returns:
        An SVG element without ids, styles or scripts.
    """
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [line.level for line in lines if line.level is not None]
    whole = all(float(x).is_integer() for x in xs)
    x_ticks, y_ticks = ticks(min(xs), max(xs), whole=whole), ticks(min(ys), max(ys))
    height = _HEIGHT + _ROW * len(lines)

    def across(x: float) -> float:
        low, high = min(x_ticks[0], min(xs)), max(x_ticks[-1], max(xs))
        return _LEFT + (x - low) / ((high - low) or 1) * (_WIDTH - _LEFT - _RIGHT)

    def up(y: float) -> float:
        low, high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))
        return _HEIGHT - _BOTTOM - (y - low) / ((high - low) or 1) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_text(_LEFT, 18, title, "start")]
    parts += [
        _rule(_LEFT, up(y), _WIDTH - _RIGHT, 0.15) + _text(_LEFT - 6, up(y) + 4, f"{y:g}", "end") for y in y_ticks
    ]
    parts += [_text(across(x), _HEIGHT - _BOTTOM + 16, f"{x:g}", "middle") for x in x_ticks]
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, axis, "middle"))
    for place, line in enumerate(lines):
        colour, y = _COLOURS[place % len(_COLOURS)], _HEIGHT + _ROW * place + 4
        dash = ' stroke-dasharray="6 4"' if line.level is not None else ""
        points = line.points if line.level is None else [(min(xs), line.level), (max(xs), line.level)]
        path = " ".join(f"{across(x):.1f},{up(y_):.1f}" for x, y_ in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if line.level is None and len(points) <= 30:
            parts += [f'<circle cx="{across(x):.1f}" cy="{up(y_):.1f}" r="2.5" fill="{colour}"/>' for x, y_ in points]
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + 24}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        parts.append(_text(_LEFT + 30, y + 4, line.name, "start"))
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'font-size="12">{"".join(parts)}</svg>'
    )


def ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers that span a range; whole ones for epochs and the like.

    Example:
        >>> ticks(0.0, 0.5)
        [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
        >>> ticks(3.0, 3.0)
        [3.0]
    """
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** floor(log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)
    step = max(1.0, step) if whole else step
    first, last = floor(low / step + 1e-9), floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1 + (last * step < high - 1e-9 * step))]


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(words)}</text>'


def _rule(x: float, y: float, to: float, opacity: float) -> str:
    return (
        f'<line x1="{x}" x2="{to}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" stroke-opacity="{opacity}" '
        'stroke-width="1"/>'
    )
