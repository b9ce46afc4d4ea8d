"""A line chart as an SVG element, in the colours of the page around it.

Pieces of a report, as HTML and as Markdown.
"""

import re
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


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names it."""

    headings: list[str]
    rows: list[list[Cell]]

    def as_html(self) -> str:
        """The table, as the other pages of the package have theirs."""
        kinds = ["", *(' class="words"' if self._is_words(place) else "" for place in range(1, len(self.headings)))]
        named = zip(self.headings, kinds, strict=True)
        head = "".join(f'<th scope="col"{kind}>{escape(one)}</th>' for one, kind in named)
        body = "".join(
            f'<tr><th scope="row" class="words">{_html(row[0])}</th>{_cells(row[1:], kinds[1:])}</tr>'
            for row in self.rows
        )
        return (
            f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def as_markdown(self) -> str:
        """The table, numbers to the right."""
        lines = ["| " + " | ".join(_escaped(one) for one in self.headings) + " |"]
        sides = ("---|" if self._is_words(place) else "---:|" for place in range(1, len(self.headings)))
        lines.append("|---|" + "".join(sides))
        lines += ["| " + " | ".join(_markdown(cell) for cell in row) + " |" for row in self.rows]
        return "\n".join(lines)

    def _is_words(self, place: int) -> bool:
        """Whether a column has words, which begin on the left and may fill several lines, and hardly a number."""
        cells = [row[place].text for row in self.rows if row[place].text]
        return 2 * sum(re.match(r"[-+]?\d", cell) is None for cell in cells) > len(cells)


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: str

    def as_html(self) -> str:
        """The paragraph."""
        return f'<p class="prose">{escape(self.words)}</p>'

    def as_markdown(self) -> str:
        """The paragraph."""
        return _escaped(self.words)


@dataclass(frozen=True)
class Terms:
    """Words and what they mean."""

    terms: list[tuple[str, str]]

    def as_html(self) -> str:
        """A list."""
        rows = "".join(f"<li><b>{escape(term)}</b>: {escape(words)}</li>" for term, words in self.terms)
        return f'<ul class="prose">{rows}</ul>'

    def as_markdown(self) -> str:
        """A list."""
        return "\n".join(f"- **{_escaped(term)}**: {_escaped(words)}" for term, words in self.terms)


@dataclass(frozen=True)
class Chart:
    """Lines over an axis; a table of their points where there are no pictures."""

    title: str
    axis: str
    lines: list[Line]

    def as_html(self) -> str:
        """The picture."""
        return f"<figure>{chart(self.title, self.axis, self.lines)}</figure>"

    def as_markdown(self) -> str:
        """The points."""
        drawn = [line for line in self.lines if line.points]
        places = sorted({x for line in drawn for x, _ in line.points})
        rows = [
            [Cell(f"{place:g}"), *(Cell(_number(dict(line.points).get(place))) for line in drawn)] for place in places
        ]
        table = Table([self.axis, *(line.name for line in drawn)], rows).as_markdown()
        levels = "".join(
            f"\n\n{_escaped(line.name)}: {_number(line.level)}" for line in self.lines if line.level is not None
        )
        return f"{_escaped(self.title)}:\n\n{table}{levels}"


Block = Table | Text | Terms | Chart


@dataclass(frozen=True)
class Section:
    """A part of a report."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    def as_markdown(self) -> str:
        """Heading and pieces."""
        return "\n\n".join([f"## {_escaped(self.title)}", *(block.as_markdown() for block in self.blocks)])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _cells(cells: list[Cell], kinds: list[str]) -> str:
    return "".join(f"<td{kind}>{_html(cell)}</td>" for cell, kind in zip(cells, kinds, strict=True))


def _html(cell: Cell) -> str:
    return f"<strong>{escape(cell.text)}</strong>" if cell.bold else escape(cell.text)


def _markdown(cell: Cell) -> str:
    return f"**{_escaped(cell.text)}**" if cell.bold and cell.text else _escaped(cell.text)


def _escaped(words: str) -> str:
    return re.sub(r"([\\|*<])", r"\\\1", words)
