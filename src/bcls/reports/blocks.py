"""Reports made of sections with text, tables and charts, rendered as one HTML page or as Markdown."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from bcls.reports.charts import ChartImage, ChartLine, line_chart
from bcls.reports.html import render_page


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A table. The first cell of a row is the heading of that row.

    Attributes:
        headings: Heading of each column.
        rows: Cells of each row.
        groups: How many rows each group has, where rows are separated into groups.

    Example:
        >>> table = Table(["loss", "RSUM"], [[Cell("BCLS"), Cell("310.5", bold=True)]])
        >>> print(table.as_markdown())
        | loss | RSUM |
        |---|---:|
        | BCLS | **310.5** |
    """

    headings: list[str]
    rows: list[list[Cell]]
    groups: list[int] = field(default_factory=list)

    @classmethod
    def of_texts(cls, headings: Sequence[str], rows: Sequence[Sequence[str]], groups: Sequence[int] = ()) -> "Table":
        """Create a table from plain texts."""
        return cls(list(headings), [[Cell(text) for text in row] for row in rows], list(groups))

    @property
    def bodies(self) -> list[list[list[Cell]]]:
        """The rows of each group."""
        rows = iter(self.rows)
        return [list(islice(rows, size)) for size in self.groups or [len(self.rows)]]

    @property
    def words(self) -> list[bool]:
        """Whether each column contains words, which are aligned to the left, and not numbers."""

        def is_words(place: int) -> bool:
            cells = [row[place].text for row in self.rows if row[place].text]
            return 2 * sum(re.match(r"[-+]?\d", cell) is None for cell in cells) > len(cells)

        return [True, *(is_words(place) for place in range(1, len(self.headings)))]

    def print(self, title: str, caption: str | None = None) -> None:
        """Print the table to the terminal, or 160 characters wide to a file."""
        from rich.console import Console
        from rich.table import Table as TerminalTable
        from rich.text import Text as TerminalText

        shown = TerminalTable(title=TerminalText(title), title_justify="left", caption=caption)
        for heading, is_words in zip(self.headings, self.words, strict=True):
            shown.add_column(heading, justify="left" if is_words else "right")
        for body in self.bodies:
            for row in body:
                shown.add_row(*(TerminalText(cell.text, style="bold" if cell.bold else "") for cell in row))
            shown.add_section()
        # Wide enough that no word is cut; without a terminal rich would wrap the table at 80 columns.
        Console(width=None if sys.stdout.isatty() else 160).print(shown)

    def as_markdown(self) -> str:
        """Render the table with numbers aligned to the right."""
        rows = [
            [f"**{_escaped(cell.text)}**" if cell.bold and cell.text else _escaped(cell.text) for cell in row]
            for row in self.rows
        ]
        return markdown_table([_escaped(heading) for heading in self.headings], rows, self.words)


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str

    def as_markdown(self) -> str:
        """Render the paragraph."""
        return _escaped(self.text)


@dataclass(frozen=True)
class Terms:
    """A list of terms with explanations."""

    terms: list[tuple[str, str]]

    def as_markdown(self) -> str:
        """Render a list with the terms in bold."""
        return "\n".join(f"- **{_escaped(term)}**: {_escaped(text)}" for term, text in self.terms)


@dataclass(frozen=True)
class Chart:
    """Lines over an axis. Markdown shows the points as a table."""

    title: str
    x_label: str
    lines: list[ChartLine]

    @property
    def image(self) -> ChartImage | None:
        """The chart as an image; ``None`` if there are no points."""
        return line_chart(self.title, self.x_label, self.lines)

    def as_markdown(self) -> str:
        """Render the points as a table, and constant levels below it."""
        drawn = [line for line in self.lines if line.points]
        xs = sorted({x for line in drawn for x, _ in line.points})
        rows = [[f"{x:g}", *(_number(dict(line.points).get(x)) for line in drawn)] for x in xs]
        table = Table.of_texts([self.x_label, *(line.name for line in drawn)], rows).as_markdown()
        levels = [f"{_escaped(line.name)}: {_number(line.level)}" for line in self.lines if line.level is not None]
        return "\n\n".join([f"{_escaped(self.title)}:", table, *levels])


Block = Table | Text | Terms | Chart


@dataclass(frozen=True)
class Section:
    """A titled part of a report."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    def as_markdown(self) -> str:
        """Render the heading and all blocks."""
        return "\n\n".join([f"## {_escaped(self.title)}", *(block.as_markdown() for block in self.blocks)])


def as_html(title: str, lede: str, sections: Sequence[Section]) -> str:
    """Render a report as one HTML page.

    Args:
        title: Title of the page.
        lede: Introduction below the title.
        sections: The sections.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
    """
    return render_page("report.html", title, lede=lede, sections=sections)


def as_markdown(title: str, lede: str, sections: Sequence[Section]) -> str:
    """Render a report as Markdown."""
    return "\n\n".join([f"# {title}", lede, *(section.as_markdown() for section in sections)]) + "\n"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[bool] = ()) -> str:
    r"""Render a Markdown table from cells that are Markdown themselves.

    Args:
        headings: Heading of each column.
        rows: Cells of each row.
        words: Whether each column is aligned to the left; by default only the first one is.

    Example:
        >>> markdown_table(["B", "ms"], [["8", "**1.5**"]])
        '| B | ms |\n|---|---:|\n| 8 | **1.5** |'
    """
    left = words or [place == 0 for place in range(len(headings))]
    rule = "|" + "".join("---|" if one else "---:|" for one in left)
    lines = ["| " + " | ".join(cells) + " |" for cells in (headings, *rows)]
    return "\n".join([lines[0], rule, *lines[1:]])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _escaped(text: str) -> str:
    return re.sub(r"([\\|*<])", r"\\\1", text)
