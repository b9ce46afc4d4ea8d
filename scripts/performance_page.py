"""Writes docs/performance.md from the measurements in results/bench: ``python scripts/performance_page.py``.

Three kinds of files lie there: what ``bcls bench`` wrote, rows with the machine they were measured on, and bare rows.
Which command made a file is in its name: the part before the first dash is a module of ``benchmarks``.
"""

import json
from pathlib import Path
from typing import Any

from bcls._core.files import write_whole
from bcls.experiments.bench_report import draw, section, short, table

ROOT = Path(__file__).parents[1]
MEASURED, PAGE, PLOTS = ROOT / "results" / "bench", ROOT / "docs" / "performance.md", ROOT / "docs" / "images"
INTRODUCTION = """# Performance

Made by `python scripts/performance_page.py` from the files in `results/bench`; `bcls bench --out DIR` measures the
losses on your machine. Rivals take turns within one run: ratios say more than times, which say most about the machine.
A bar is what a figure was asked to hold; where it does not, the table says so.
"""


def holds(row: dict[str, Any]) -> str:
    """Whether a figure holds its bar: yes, NO, or nothing where there is no bar.

    Example:
        >>> holds({"value": 2.0, "bar": 1.5, "side": "most"}), holds({"ratio": 12.0, "bar": ">= 6"})
        ('NO', 'yes')
        >>> holds({"ratio": 12.0, "bar": "prefix used"})
        ''
    """
    bar = row.get("bar")
    if isinstance(bar, str):
        side, _, limit = bar.partition(" ")
        if side not in {"<=", ">="}:
            return ""
        value, side, bar = row["ratio"], {"<=": "most", ">=": "least"}[side], float(limit)
    elif bar is None:
        return ""
    else:
        value, side = row["value"], row["side"]
    return "yes" if (value <= bar if side == "most" else value >= bar) else "NO"


def rows_section(name: str, result: dict[str, Any] | list[dict[str, Any]]) -> str:
    """One file of rows, which have the same columns."""
    about: dict[str, Any] = result if isinstance(result, dict) else {"rows": result}
    rows = about["rows"]
    versions = [f"torch {about['torch']}"] if "torch" in about else []
    versions += [f"Triton {about['triton']}"] if "triton" in about else []
    where = ", ".join([about["machine"], *versions]) if "machine" in about else "a machine that was not recorded"
    what = f"{about['title'][0].upper()}{about['title'][1:]}. " if "title" in about else ""
    made = f"{what}`python -m benchmarks.{name.partition('-')[0]}` on {where}; `results/bench/{name}.json`."
    barred = any(holds(row) for row in rows)
    columns = [column for column in rows[0] if column != "side"]
    cells = [[_cell(row, column) for column in columns] + [holds(row)] * barred for row in rows]
    return f"## {name.replace('-', ' ').capitalize()}\n\n{made}\n\n{table(columns + ['holds'] * barred, cells)}"


def _cell(row: dict[str, Any], column: str) -> str:
    if column == "bar" and "side" in row and row["bar"] is not None:
        return f"at {row['side']} {short(row['bar'])}"
    return short(row.get(column))


def page(folder: Path) -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        drawn = isinstance(result, dict) and "axis" in result
        parts.append(section(result) if drawn else rows_section(path.stem, result))
        if drawn:
            parts.append(f"![{result['title']}](images/{path.stem}.svg)\n")
    return "\n".join(parts)


def main() -> None:
    """Write the page and its plots."""
    for path in MEASURED.glob("bench-*.json"):
        write_whole(PLOTS / f"{path.stem}.svg", draw(json.loads(path.read_text(encoding="utf-8"))))
    write_whole(PAGE, page(MEASURED))


if __name__ == "__main__":
    main()
