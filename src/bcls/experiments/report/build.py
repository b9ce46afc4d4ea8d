"""A report from sweeps: tables, tests, curves and verdicts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bcls.experiments.report.blocks import Block, Cell, Chart, Section, Table, Terms, Text
from bcls.experiments.report.chart import Line
from bcls.experiments.report.claims import UNKNOWN, Claim, Finding, judge
from bcls.experiments.report.paired import paired_table
from bcls.experiments.report.summary import Summary, SummaryRow
from bcls.experiments.report.tables import main_table, search_table

#: Losses of the figure about convergence, by name.
_CURVES = ("triplet-hn", "triplet-sn", "bcls")
#: Losses that make the lines across a grid, and what the paper calls them.
_ACROSS = {"triplet-sn": "w/o BCLS", "triplet-sn+kendall": "w/o SW-HS"}
_NAMES = {"rsum": "RSUM", "tau": "tau-a", "bcls": "BCLS"}
#: Charts of convergence: a key of the history, and the title.
_COURSE = {"loss": "Training loss", "validation_loss": "Validation loss", "rsum": "Validation RSUM"}


def build(
    summaries: Sequence[Summary], paper: Mapping[str, Any] | None = None, remarks: Mapping[str, str] | None = None
) -> list[Section]:
    """Make a report.

    Args:
        summaries: The sweeps, in the order of the report.
        paper: The paper's tables, to stand beside.
        remarks: What lies behind a verdict, by claim; not shown for one without data.
    """
    return [verdicts(judge(summaries), remarks or {}), *(_section(summary, summaries, paper) for summary in summaries)]


def verdicts(claims: Sequence[Claim], remarks: Mapping[str, str]) -> Section:
    """The claims, how they came out, by which rule, and the figures behind."""
    about = (
        "Computed from the results below. A comparison is held where the difference is above twice its standard error "
        "over seeds, partly where it is above 0 but not by that much or where there is one seed, not where it is 0 or "
        "below. A claim is held where all of its comparisons are, not where none speaks for it, and partly in between."
    )
    rows = [[Cell(one.claim), Cell(one.verdict, bold=True)] for one in claims]
    found = [
        [
            Cell(one.claim),
            Cell(finding.where),
            Cell(finding.what),
            Cell(f"{finding.difference:+.{_digits(finding)}f}"),
            Cell("one seed" if finding.margin is None else f"{finding.margin:.{_digits(finding)}f}"),
            Cell(finding.verdict),
        ]
        for one in claims
        for finding in one.findings
    ]
    blocks: list[Block] = [Text(about), Table(["claim", "verdict"], rows)]
    why = [(one.claim, remarks[one.claim]) for one in claims if one.verdict != UNKNOWN and one.claim in remarks]
    if why:
        blocks += [Text("What lies behind, above all where a claim does not hold as it stands:"), Terms(why)]
    blocks += [Text("What is compared:"), Terms([(one.claim, one.rule) for one in claims])]
    if found:
        blocks.append(Table(["claim", "where", "comparison", "difference", "margin", "verdict"], found))
    return Section("Claims of the paper", blocks)


def _digits(finding: Finding) -> int:
    """RSUM is a sum of percentages, and every other figure lies between -1 and 1."""
    return 1 if "rsum" in finding.what.partition(":")[0].lower() else 4


def _section(summary: Summary, summaries: Sequence[Summary], paper: Mapping[str, Any] | None) -> Section:
    about = summary.about
    seeds = f"{len(about['seeds'])} seed{'s' * (len(about['seeds']) != 1)}"
    told = f"{about['about']} {about['dataset']}, {summary.split} split, {seeds}: mean ± standard deviation."
    made = ", ".join(commit[:12] for commit in summary.commits) or "an unknown revision"
    blocks: list[Block] = [Text(told.strip()), main_table(summary, paper)]
    if summary.trials:
        search = about["search"]
        blocks.append(
            Text(
                f"Each row at its own best setting by validation {search['measure']}, of the same number of settings "
                f"for each ({search['method']}); {summary.trials} runs of the search, of which those not chosen are "
                f"not tested{f' but for {summary.tested_trials}' if summary.tested_trials else ''}."
            )
        )
        blocks.append(search_table(summary))
    tests = _tests(summary)
    if tests is not None:
        blocks += [Text("Paired permutation tests over images, the seeds averaged."), tests]
    blocks += _charts(summary, summaries)
    blocks.append(Text(f"{summary.seconds / 60:.0f} minutes of training, from {made}; file {about['file']}."))
    return Section(about["name"], blocks)


def _tests(summary: Summary) -> Table | None:
    plain = [row for row in summary.rows if not row.point and row.validation]
    bcls = [row for row in plain if row.loss["name"] == "bcls"]  # of an ensemble, the loss of its first member
    if not bcls or len(plain) < 2:
        return None
    return paired_table(summary, max(bcls, key=lambda row: row.validation["rsum"].mean))


def _charts(summary: Summary, summaries: Sequence[Summary]) -> list[Block]:
    keys = {key for row in summary.rows for key in row.point}
    if not keys:
        return _convergence(summary)
    (key,) = keys if len(keys) == 1 else ("",)
    rows = [row for row in summary.rows if isinstance(row.point.get(key), int | float)]
    charts: list[Block] = []
    for figure in ("rsum", "tau"):
        drawn: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            mean = _mean(summary, row, figure)
            if mean is not None:
                drawn.setdefault(_line_name(summary, row), []).append((float(row.point[key]), mean))
        lines = [Line(name, sorted(points)) for name, points in drawn.items()]
        lines = [line for line in lines if len(line.points) > 1]
        if lines:
            across = _across(summary, summaries, figure) if key in {"loss.alpha", "loss.beta"} else []
            name = key.rpartition(".")[2]
            charts.append(Chart(f"{_NAMES[figure]} against {name}", name, [*lines, *across]))
    return charts


def _line_name(summary: Summary, row: SummaryRow) -> str:
    """The row's name; the only row of a file without ``runs`` is called like the file, and goes by its loss."""
    if row.row != Path(summary.about["file"]).stem:
        return row.row
    return _NAMES.get(row.loss["name"], str(row.loss["name"]))


def _across(summary: Summary, summaries: Sequence[Summary], figure: str) -> list[Line]:
    """Levels of rows without the Kendall loss or without its sampling, of the same data and model."""
    first = summary.rows[0]
    lines = []
    for loss, name in _ACROSS.items():
        found = [
            row
            for other in summaries
            for row in other.rows
            if row.loss["name"] == loss and not row.point and (row.dataset, row.model) == (first.dataset, first.model)
        ]
        # Searched rows have settings of their own: a row that is called like the line is meant for it.
        found = [row for row in found if row.name == name] or found
        level = _mean(summary, found[0], figure) if found else None
        if level is not None:
            lines.append(Line(name, level=level))
    return lines


def _mean(summary: Summary, row: SummaryRow, figure: str) -> float | None:
    """A row's figure on the split that the sweep shows: figures of two splits do not belong into one chart."""
    figures = row.test if summary.split == "test" else row.validation
    return figures[figure].mean if figure in figures else None


def _convergence(summary: Summary) -> list[Block]:
    chosen = [row for row in summary.rows if row.loss["name"] in _CURVES and not row.noise and len(row.history) > 1]
    charts: list[Block] = []
    for figure, title in _COURSE.items():
        lines = [_curve(row, figure) for row in chosen]
        lines = [line for line in lines if line.points]
        if len(lines) > 1:
            charts.append(Chart(title, "epoch", lines))
    return charts


def _curve(row: SummaryRow, figure: str) -> Line:
    return Line(row.name, [(one["epoch"], one[figure]) for one in row.history if figure in one])
