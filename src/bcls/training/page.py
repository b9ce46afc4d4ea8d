"""``report.html`` of a run: charts of its metrics, validation results, settings and environment."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bcls._core import MissingExtraError, write_whole
from bcls.reports.blocks import Cell, Table
from bcls.reports.charts import ChartImage, ChartLine, line_chart
from bcls.reports.html import render_page
from bcls.training.metrics_log import duration, read_metrics
from bcls.training.run_folder import CONFIG, ENVIRONMENT, REPORT

#: Keys of a line about steps that are no terms of the loss.
_NO_TERMS = {"kind", "epoch", "step", "loss", "lr", "seconds", "spread", "gradient"}


def write_report(folder: Path) -> None:
    """Write ``report.html`` from the other files of a run.

    Args:
        folder: Folder of the run. Without matplotlib the page has no charts but a hint how to install it.
    """
    lines = read_metrics(folder)
    steps = [line for line in lines if line["kind"] == "step"]
    validations = [line for line in lines if line["kind"] == "validation"]
    summary = f"{steps[-1]['step']} steps in {duration(steps[-1]['seconds'])}." if steps else "No steps."
    charts, hint = [], ""
    try:
        charts = run_charts(steps, validations)
    except MissingExtraError as error:
        hint = str(error)
    page = render_page(
        "run.html",
        f"{folder.name}: training run",
        name=folder.name,
        summary=summary,
        charts=charts,
        hint=hint,
        validation=_validation_table(validations) if validations else None,
        settings=(folder / CONFIG).read_text(encoding="utf-8"),
        environment=json.dumps(json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8")), indent=1),
    )
    write_whole(folder / REPORT, page)


def run_charts(steps: Sequence[Mapping[str, Any]], validations: Sequence[Mapping[str, Any]]) -> list[ChartImage]:
    """Draw the metrics of a run.

    Args:
        steps: Lines of ``metrics.jsonl`` of the kind ``step``.
        validations: Those of the kind ``validation``.

    Returns:
        A chart for each group of metrics that has values.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    terms = list(dict.fromkeys(key for line in steps for key in line if key not in _NO_TERMS))
    charts = []
    for title, axis, lines, keys in (
        ("Loss", "step", steps, ["loss", *(terms if len(terms) > 1 else [])]),
        ("Learning rate", "step", steps, ["lr"]),
        ("Norm of the gradient", "step", steps, ["gradient"]),
        ("Validation loss", "epoch", validations, ["loss"]),
        ("Validation RSUM", "epoch", validations, ["rsum"]),
        ("Validation tau", "epoch", validations, ["i2t_tau_a", "t2i_tau_a"]),
    ):
        charts.append(line_chart(title, axis, [ChartLine(key, points_of(lines, axis, key)) for key in keys]))
    return [chart for chart in charts if chart is not None]


def points_of(lines: Sequence[Mapping[str, Any]], x: str, y: str) -> list[tuple[float, float]]:
    """Read the points of a line chart from lines of ``metrics.jsonl``, those where both values are numbers.

    Example:
        >>> points_of([{"step": 1, "loss": 0.5}, {"step": 2}, {"step": 3, "loss": "?"}], "step", "loss")
        [(1.0, 0.5)]
    """
    pairs = [(line.get(x), line.get(y)) for line in lines]
    return [(float(a), float(b)) for a, b in pairs if isinstance(a, int | float) and isinstance(b, int | float)]


def _validation_table(validations: Sequence[Mapping[str, Any]]) -> Table:
    """One row for each validation, the best one in bold."""
    keys = [key for key, value in validations[0].items() if isinstance(value, float)]
    best = max((number for number, one in enumerate(validations) if one["best"]), default=-1)
    rows = []
    for number, one in enumerate(validations):
        texts = [f"{one[key]:.{4 if 'tau' in key or key == 'loss' else 2}f}" for key in keys]
        rows.append([Cell(text, bold=number == best) for text in (str(one["epoch"]), *texts)])
    return Table(["epoch", *keys], rows)
