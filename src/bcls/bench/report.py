"""Results as files: JSON to keep, tables in Markdown to read, and plots."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bcls._files import write_whole

UNITS = {"ms": "Milliseconds", "MB": "Megabytes above input and gradients"}


def write_result(folder: Path, result: dict[str, Any]) -> Path:
    """Write one subject's figures to ``bench-SUBJECT.json``; the path."""
    path = folder / f"bench-{result['subject']}.json"
    write_whole(path, json.dumps(result, indent=1) + "\n")
    return path


def page(results: Iterable[dict[str, Any]], plots: dict[str, str] | None = None) -> str:
    """A page in Markdown: for each result its machine and command, plot and tables.

    Args:
        results: As :func:`bcls.bench.run_subject` makes them.
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
