"""Pieces of a report, as HTML and as Markdown."""

import re
from dataclasses import dataclass, field
from html import escape

from bcls.experiments.report.chart import Line, chart


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
