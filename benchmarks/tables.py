"""Benchmark tables on the terminal, and the same rows as JSON files."""

import json
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from bcls._core.files import write_whole
from bcls.experiments.bench import machine


def show(title, rows, path=None, device="cpu"):
    """Print rows, which are dicts with the same keys, and :func:`keep` them; None is an empty cell."""
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(value if isinstance(value, str | None) else f"{value:.4g}" for value in row.values()))
    Console(width=140).print(table)
    keep(path, rows, title, device)


def keep(path, rows, title=None, device="cpu"):
    """Write rows and the description of the machine, if a path is given.

    Args:
        path: A JSON file, or None.
        rows: Strings and numbers by column.
        title: Title of the table.
        device: Device of the measurement.
    """
    if path is not None:
        about = {} if title is None else {"title": title}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(Path(path), json.dumps({**about, **machine(torch.device(device)), "rows": rows}, indent=1) + "\n")


def difference(ours, theirs):
    """Largest relative difference of the values, and of the gradients in norm."""
    return max(float((one - other).norm() / other.norm()) for one, other in zip(ours, theirs, strict=True))


def show_ratios(rows, path=None):
    """Print rows of name, two values, their ratio and the required ratio; write them if a path is given."""
    table = Table(title=f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    headings = ("what", "first", "second", "ratio", "bar")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in {"what", "bar"} else "right")
    for what, first, second, ratio, bar in rows:
        table.add_row(what, f"{first:.3g}", f"{second:.3g}", f"{ratio:.2f}", bar)
    Console(width=130).print(table)
    keep(path, [dict(zip(headings, row, strict=True)) for row in rows])
