"""The paper's tables, to stand beside one's own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bcls._checks import check_choice, fail


def read_paper(path: str | Path) -> dict[str, Any]:
    """Read ``results/paper.json``.

    Returns:
        Tables by number.

    Raises:
        ValueError: The file is something else.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        tables: dict[str, Any] = content["tables"]
    except (ValueError, KeyError, TypeError) as error:
        fail(
            "--paper", "the file results/paper.json", f"{path} ({type(error).__name__})", "give the file of the source"
        )
    return tables


def paper_figures(tables: Mapping[str, Any], table: str, row: str, columns: str | None) -> dict[str, float]:
    """Figures of one of the paper's rows, under the names of :mod:`bcls.evaluation`.

    Args:
        tables: As :func:`read_paper` gives them.
        table: Number of the table.
        row: The method, as the paper writes it.
        columns: The dataset, where the table has several; 1K figures of COCO come as ``fold_rsum`` and so on.

    Raises:
        ValueError: There is no such table, or no such row in it.
    """
    check_choice("paper", table, tables)
    lines = {line.get("method"): line for line in tables[table]["rows"]}
    if row not in lines:
        fail("paper", f"a row of Table {table}: {', '.join(map(str, lines))}", repr(row), "write it as the table does")
    return _figures(lines[row], columns)


def _figures(line: Mapping[str, Any], columns: str | None) -> dict[str, float]:
    figures: dict[str, float] = {}
    for dataset, values in line.items():
        if not isinstance(values, dict):
            continue
        folds = "fold_" if dataset == "MS-COCO 1K" and columns == "MS-COCO 5K" else ""
        if folds or dataset in {columns, "ECCV Caption"} or columns is None:
            figures |= {f"{folds}{key}": value for key, value in values.items() if value is not None}
    taus = [figures[key] for key in ("i2t_tau_a", "t2i_tau_a") if key in figures]
    return figures | ({"tau": sum(taus) / 2} if len(taus) == 2 else {})
