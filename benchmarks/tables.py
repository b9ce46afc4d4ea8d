"""A table on the terminal, and the same rows as JSON."""

import json
import platform
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from bcls._files import write_whole


def show(title, rows, path=None):
    """Print rows, which are dicts with the same keys; write them with what they were measured on where a path is given.

    Args:
        title: What was measured.
        rows: Texts and numbers by column.
        path: A JSON file, or None.
    """
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:.4g}" for value in row.values()))
    Console(width=140).print(table)
    if path is not None:
        machine = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} threads"
        measured = {"title": title, "machine": machine, "python": platform.python_version(), "torch": torch.__version__}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(Path(path), json.dumps({**measured, "rows": rows}, indent=1) + "\n")


def show_ratios(rows, path=None):
    """Print rows of what was measured, two figures, their ratio and the bar; write them where a path is given."""
    table = Table(title=f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    headings = ("what", "first", "second", "ratio", "bar")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in {"what", "bar"} else "right")
    for what, first, second, ratio, bar in rows:
        table.add_row(what, f"{first:.3g}", f"{second:.3g}", f"{ratio:.2f}", bar)
    Console(width=130).print(table)
    if path is not None:
        path.write_text(json.dumps([dict(zip(headings, row, strict=True)) for row in rows], indent=1) + "\n")
