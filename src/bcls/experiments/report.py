"""Report on sweeps: tables of means over seeds, paired tests, charts, the claims of the paper, and a gallery.

The gallery shows two configurations on the queries where they differ most, as Figures 6 and 7 of the paper.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bcls._core.errors import check_choice, fail
from bcls.evaluation.statistics import holm
from bcls.experiments.claims import Claim, check_claims, paper_metrics
from bcls.experiments.results import RUNS, MetricColumn, Summary, SummaryRow, compare_rows, metric_cells
from bcls.models.loading import run_settings
from bcls.reports import blocks
from bcls.reports.blocks import Block, Cell, Chart, Section, Table, Terms, Text
from bcls.reports.charts import ChartLine
from bcls.training.config import TrainConfig

TITLE = "Experiments"
LEDE = (
    "The results of the sweeps, and the claims of the paper that they test, with the verdict, rule and comparisons of "
    "each. Expert and crowd are Kendall's tau with human ratings, of all rated photos and of two parts of them; "
    "fitting is retrieval of the captions that people rated as fitting, among all rated captions."
)
_RULE = (
    "Computed from the results. The interval and the p-value of a difference come from a hierarchical bootstrap over "
    "seeds and images if values per image were stored, and otherwise from Welch's t-test over seeds; a p-value of the "
    "bootstrap is at least that of the t-test, since resamples of few seeds vary too little. The p-values of all {} "
    "comparisons are adjusted for their number by Holm's method. A comparison is held if its adjusted "
    "p-value is below 0.05 and the difference positive, not held if it is negative, and inconclusive otherwise, as "
    "with one seed. A claim is held if all of its comparisons are held, partly held if some are, not held if none is "
    "and at least one is contradicted, and inconclusive otherwise."
)
_GRADED = {"tau": "tau-a", "tau_b": "tau-b", "ndcg": "nDCG", "i2t_cs100": "i2t CS@100", "t2i_cs100": "t2i CS@100"}
_PEOPLE = {"judged_{}_tau_{}": "{} tau-{}", "report_{}_tau_{}": "{}, 300", "choice_{}_tau_{}": "{}, 200"}
_ECCV = {"map_at_r": "mAP@R", "rprecision": "R-P", "r1": "R@1"}
_OTHERS = {"wordllama": "WordLlama", "cider": "CIDEr"}
#: Metrics of the tables in their order. Columns without any value are left out.
COLUMNS: tuple[MetricColumn, ...] = (
    *((f"{way}_r{k}", f"{way} R@{k}", 1) for way in ("i2t", "t2i") for k in (1, 5, 10)),
    ("chosen_by", "RSUM, validation", 1),
    ("rsum", "RSUM", 1),
    ("fold_rsum", "RSUM, folds", 1),
    *((key, heading, 3) for key, heading in _GRADED.items()),
    ("true_tau", "true tau", 3),
    *(
        (f"{key}_{metric}", f"{name} {heading}", 3)
        for key, name in _OTHERS.items()
        for metric, heading in (("tau_b", "tau-b"), ("ndcg", "nDCG"))
    ),
    *(
        (key.format(*who), heading.format(*who), 3)
        for who in (("expert", "c"), ("crowd", "b"))
        for key, heading in _PEOPLE.items()
    ),
    *((f"judged_{key}_{way}", f"fitting {way} {name}", 1) for way in ("i2t", "t2i") for key, name in _ECCV.items()),
    *((f"eccv_{key}_{way}", f"ECCV {way} {name}", 1) for way in ("i2t", "t2i") for key, name in _ECCV.items()),
)
#: Columns of the table of comparisons.
_COMPARISON = ("claim", "data, model", "comparison", "difference", "95 % interval", "over", "adjusted p", "verdict")
#: Losses in the charts of convergence.
_CONVERGENCE = ("triplet-hn", "triplet-sn", "bcls")
#: Charts of convergence: key in the history, and title.
_HISTORY = {"loss": "Training loss", "validation_loss": "Validation loss", "rsum": "Validation RSUM"}
#: Losses drawn as constant levels beside a grid over alpha or beta, with their names in the paper.
_LEVELS = {"triplet-sn": "w/o BCLS", "triplet-sn+kendall": "w/o SW-HS"}
_NAMES = {"rsum": "RSUM", "tau": "tau-a", "bcls": "BCLS"}


def build(summaries: Sequence[Summary], paper: Mapping[str, Any] | None = None) -> list[Section]:
    """Create a report.

    Args:
        summaries: The sweeps, in the order of the report.
        paper: Tables of the paper, for comparison.

    Returns:
        A section for each sweep, then a section with the claims of the paper if the sweeps test one of them.
    """
    sections, claims = [_sweep_section(summary, summaries, paper) for summary in summaries], check_claims(summaries)
    return [*sections, _claims_section(claims)] if any(one.findings for one in claims) else sections


def as_html(sections: Sequence[Section]) -> str:
    """Render a report as one self-contained HTML page."""
    return blocks.as_html(TITLE, LEDE, sections)


def as_markdown(sections: Sequence[Section]) -> str:
    """Render a report as Markdown."""
    return blocks.as_markdown(TITLE, LEDE, sections)


def main_table(summary: Summary, paper: Mapping[str, Any] | None = None) -> Table:
    """Create the table of a sweep: mean and standard deviation over seeds, the best mean of a column in bold.

    Args:
        summary: The sweep.
        paper: Tables of the paper; the values of a configuration in the paper are shown below ours.
    """
    paper = paper or {}
    found = [row.on(summary.split) for row in summary.rows]
    if summary.split == "test":
        found = [{**row.test, "chosen_by": row.validation["rsum"]} if row.test else {} for row in summary.rows]
    shown = [column for column in COLUMNS if any(column[0] in metrics for metrics in found)]
    columns = summary.metadata["columns"] if paper else None
    lines = []
    for row, cells in zip(summary.rows, metric_cells(shown, found), strict=True):
        seeds = f"{len(row.keys)}" + (f" ({row.failed} diverged)" if row.failed else "")
        lines.append([Cell(row.name), Cell(seeds), *cells])
        for table, name in row.paper.items() if paper else ():
            values = paper_metrics(paper, table, name, columns)
            texts = [f"{values[key]:.{digits}f}" if key in values else "" for key, _, digits in shown]
            title = f"the paper, {columns}: {name} (Table {table})"
            lines.append([Cell(text) for text in (title, "1", *texts)])
    return Table(["configuration", "seeds", *(heading for _, heading, _ in shown)], lines)


def _sweep_section(summary: Summary, summaries: Sequence[Summary], paper: Mapping[str, Any] | None) -> Section:
    about = summary.metadata
    counts = sorted({len(row.keys) for row in summary.rows}) or [0]
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) + " seed" + "s" * (counts[-1] != 1)
    text = f"{about['about']} {about['dataset']}, {summary.split} split, {seeds}: mean ± standard deviation."
    found: list[Block] = [Text(text.strip()), main_table(summary, paper)]
    if summary.trials:
        search = about["search"]
        tested = f", except for {summary.tested_trials}" if summary.tested_trials else ""
        shorter = f", {search['epochs']} epochs a trial" if search.get("epochs") else ""
        tried = sorted(set(search["tried"].values()))
        same = "the same number of settings for each"
        number = f"{tried[0]} to {tried[-1]} settings" if len(tried) > 1 else same
        text = (
            f"Each configuration has its own best setting by validation {search['measure']}, from {number} "
            f"({search['method']} search{shorter}). Of the {summary.trials} runs of the search, "
            f"those not chosen are not tested{tested}."
        )
        found += [Text(text), _search_table(summary)]
    tests = _paired_table(summary)
    if tests is not None:
        text = (
            "Hierarchical bootstrap over seeds and images; p-values are at least those of Welch's t-test over seeds, "
            "and adjusted for the rows of this table (Holm)."
        )
        found += [Text(text), tests]
    found += _grid_charts(summary, summaries) if any(row.point for row in summary.rows) else _history_charts(summary)
    commits = ", ".join(commit[:12] for commit in summary.commits) or "unknown"
    found.append(Text(f"{summary.seconds / 60:.0f} minutes of training; commit {commits}; file {about['file']}."))
    return Section(about["name"], found)


def _claims_section(claims: Sequence[Claim]) -> Section:
    """Show the claims with their verdicts, rules and comparisons."""
    verdicts = Table(["claim", "verdict"], [[Cell(one.claim), Cell(one.verdict, bold=True)] for one in claims])
    tested = sum(finding.test.p_value is not None for one in claims for finding in one.findings)
    rules = Terms([(one.claim, one.rule) for one in claims])
    found: list[Block] = [Text(_RULE.format(tested)), verdicts, Text("Comparisons of each claim:"), rules]
    rows = []
    for one in claims:
        for finding in one.findings:
            # RSUM is a sum of percentages; all other metrics lie between -1 and 1.
            digits = 1 if "rsum" in finding.what.partition(":")[0].lower() else 4
            test = finding.test
            numbers = [f"{test.difference:+.{digits}f}", "", test.basis, "", finding.verdict]
            if test.p_value is not None:
                numbers[1] = f"{test.low:+.{digits}f} to {test.high:+.{digits}f}"
                numbers[3] = f"{finding.adjusted:.4f}"
            rows.append([one.claim, finding.where, finding.what, *numbers])
    return Section("Claims of the paper", [*found, Table.of_texts(_COMPARISON, rows)])


def _search_table(summary: Summary) -> Table:
    """List the settings that a search tried for each configuration, and the one it chose."""
    search = summary.metadata["search"]
    shown = {row.row: row.name for row in summary.rows if not row.point}
    rows = []
    for name, space in search["spaces"].items():
        grid = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in space.items())
        chosen = ", ".join(f"{key} {value}" for key, value in search["chosen"].get(name, {}).items())
        counts = (str(search[key].get(name, "unknown")) for key in ("sizes", "tried"))
        rows.append([shown.get(name, name), *counts, grid, chosen or "not finished"])
    return Table.of_texts(["configuration", "settings", "tried", "grid", "chosen"], rows)


def _paired_table(summary: Summary) -> Table | None:
    """Test the best BCLS configuration by validation RSUM against all others, if ranks were saved."""
    plain = [row for row in summary.rows if not row.point and row.validation]
    bcls = [row for row in plain if row.loss["name"] == "bcls"]  # of an ensemble, the loss of its first member
    if not bcls or len(plain) < 2:
        return None
    best = max(bcls, key=lambda row: row.validation["rsum"].mean)
    others = [row for row in summary.rows if row.name != best.name]
    tests = [(row, test) for row in others if (test := compare_rows(best, row, summary.split)) is not None]
    rows = []
    for (row, test), p_value in zip(tests, holm([test["p_value"] for _, test in tests]), strict=True):
        interval = f"{test['difference_low']:+.1f} to {test['difference_high']:+.1f}"
        rows.append([row.name, f"{test['difference']:+.1f}", interval, f"{p_value:.4f}", f"{test['seeds']:.0f}"])
    headings = [f"RSUM of {best.name} minus that of", "difference", "95 % interval", "adjusted p", "seeds"]
    return Table.of_texts(headings, rows) if rows else None


def _grid_charts(summary: Summary, summaries: Sequence[Summary]) -> list[Block]:
    """Draw RSUM and tau over the values of a grid with one key."""
    keys = {key for row in summary.rows for key in row.point}
    (key,) = keys if len(keys) == 1 else ("",)
    charts: list[Block] = []
    for metric in ("rsum", "tau"):
        drawn: dict[str, list[tuple[float, float]]] = {}
        for row in summary.rows:
            value, mean = row.point.get(key), _mean(summary, row, metric)
            if mean is not None and isinstance(value, int | float):
                drawn.setdefault(_line_name(summary, row), []).append((float(value), mean))
        lines = [ChartLine(name, sorted(points)) for name, points in drawn.items() if len(points) > 1]
        if lines:
            levels = _level_lines(summary, summaries, metric) if key in {"loss.alpha", "loss.beta"} else []
            name = key.rpartition(".")[2]
            charts.append(Chart(f"{_NAMES[metric]} against {name}", name, [*lines, *levels]))
    return charts


def _line_name(summary: Summary, row: SummaryRow) -> str:
    """Return the configuration's name, or its loss if the file has no ``runs`` and the name is that of the file."""
    if row.row != Path(summary.metadata["file"]).stem:
        return row.row
    return _NAMES.get(row.loss["name"], str(row.loss["name"]))


def _level_lines(summary: Summary, summaries: Sequence[Summary], metric: str) -> list[ChartLine]:
    """Return the levels without the Kendall loss and without its sampling, for the same data and model."""
    first = summary.rows[0]
    lines = []
    for loss, name in _LEVELS.items():
        found = [
            row
            for other in summaries
            for row in other.rows
            if row.loss["name"] == loss and not row.point and (row.dataset, row.model) == (first.dataset, first.model)
        ]
        # A configuration with the name of the line has the settings of the grid; others were searched separately.
        found = [row for row in found if row.name == name] or found
        level = _mean(summary, found[0], metric) if found else None
        if level is not None:
            lines.append(ChartLine(name, level=level))
    return lines


def _mean(summary: Summary, row: SummaryRow, metric: str) -> float | None:
    """Return a mean on the split that the sweep shows; a chart never mixes two splits."""
    metrics = row.on(summary.split)
    return metrics[metric].mean if metric in metrics else None


def _history_charts(summary: Summary) -> list[Block]:
    """Draw losses and validation RSUM over epochs."""
    rows = [row for row in summary.rows if row.loss["name"] in _CONVERGENCE and not row.noise and len(row.history) > 1]
    charts: list[Block] = []
    for key, title in _HISTORY.items():
        lines = [ChartLine(row.name, [(one["epoch"], one[key]) for one in row.history if key in one]) for row in rows]
        lines = [line for line in lines if line.points]
        if len(lines) > 1:
            charts.append(Chart(title, "epoch", lines))
    return charts


def gallery_runs(summary: Summary, names: Sequence[str]) -> tuple[list[Path], TrainConfig]:
    """Find the runs of two configurations of a sweep, those of their first seeds.

    Args:
        summary: The sweep, whose folder contains its runs.
        names: Two of its configurations.

    Returns:
        The folders of the two runs, and the settings of the first one.

    Raises:
        ValueError: There are no such configurations, or their runs are missing.
    """
    rows = {row.name: row for row in summary.rows if row.keys and not row.ensemble}
    for name in names:
        check_choice("--gallery", name, rows)
    if len(names) != 2 or names[0] == names[1]:
        got = " and ".join(map(repr, names))
        fail("--gallery", "two configurations of the sweep", got, "for example --gallery Triplet-HN BCLS")
    folders = [summary.folder / RUNS / rows[name].keys[min(rows[name].keys)] for name in names]
    settings = [run_settings(folder) for folder in folders]
    if not all(settings):
        hint = "use the folder that the sweep wrote"
        fail("--gallery", f"the runs of {summary.folder}", f"no settings in {folders[0]} or {folders[1]}", hint)
    return folders, TrainConfig(**settings[0])
