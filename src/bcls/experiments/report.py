"""Whether two rows differ on the same queries, all seeds together.

The tables of a report: one's own rows, the paper's beside them, the best in bold.

A report from sweeps: tables, tests, curves and verdicts.

The report as one HTML file and as one Markdown file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import fail
from bcls.evaluation.arrays import read_npz
from bcls.evaluation.pages import document, section
from bcls.evaluation.statistics import paired_test
from bcls.experiments.claims import UNKNOWN, Claim, Finding, judge, paper_figures
from bcls.experiments.report_blocks import Block, Cell, Chart, Line, Section, Table, Terms, Text
from bcls.experiments.results import RANKS
from bcls.experiments.summary import Spread, Summary, SummaryRow

_KS = (1, 5, 10)


def compare_rows(folder: Path, a: SummaryRow, b: SummaryRow, kind: str) -> dict[str, float] | None:
    """Test the difference of two rows' RSUM, image by image.

    The share of an image in RSUM is averaged over the seeds that both rows have, and the images with their captions
    are what is exchanged and drawn; see :func:`bcls.evaluation.paired_test`.

    Args:
        folder: Of the sweep.
        a: One row.
        b: The other.
        kind: ``"test"`` or ``"validation"``.

    Returns:
        ``difference``, a less b, with ``difference_low``, ``difference_high``, ``p_value`` and ``seeds``; ``None``
        where the ranks of no common seed are there.
    """
    pairs = []
    for seed in sorted(a.keys.keys() & b.keys.keys()):
        files = [folder / RANKS / f"{row.keys[seed]}-{kind}.npz" for row in (a, b)]
        if all(file.is_file() for file in files):
            pairs.append([_shares(file) for file in files])
            shapes = {len(shares) for pair in pairs for shares in pair}
            if len(shapes) > 1:
                got = f"{' and '.join(map(str, sorted(shapes)))} images"
                fail(str(files[0].parent), "ranks of the same images in each file", got, "copy the ranks again")
    if not pairs:
        return None
    means = np.mean(pairs, axis=0)
    return {**paired_test(means[0], means[1]), "seeds": float(len(pairs))}


def paired_table(summary: Summary, against: SummaryRow) -> Table | None:
    """A row against every other of its sweep; nothing where there are no ranks."""
    rows: list[list[str]] = []
    for row in summary.rows:
        if row.name == against.name:
            continue
        test = compare_rows(summary.folder, against, row, summary.split)
        if test is not None:
            interval = f"{test['difference_low']:+.1f} to {test['difference_high']:+.1f}"
            rows.append(
                [row.name, f"{test['difference']:+.1f}", interval, f"{test['p_value']:.4f}", f"{test['seeds']:.0f}"]
            )
    if not rows:
        return None
    return Table(
        [f"RSUM of {against.name} less that of", "difference", "95 % interval", "p", "seeds"],
        [[Cell(text) for text in row] for row in rows],
    )


def _are_ranks(i2t: NDArray[Any], t2i: NDArray[Any], owner: NDArray[Any]) -> bool:
    flat = all(array.ndim == 1 and array.dtype.kind in "iu" and array.size for array in (i2t, t2i, owner))
    inside = flat and len(t2i) == len(owner) and 0 <= int(owner.min()) <= int(owner.max()) < len(i2t)
    return inside and bool((i2t > 0).any())


def _shares(file: Path) -> NDArray[np.float64]:
    """Split RSUM among the images that are queries, so that its mean over them is RSUM."""
    i2t, t2i, owner = read_npz(file, ("i2t", "t2i", "owner"))
    if not _are_ranks(i2t, t2i, owner):
        got = ", ".join(f"{array.dtype} of shape {array.shape}" for array in (i2t, t2i, owner))
        fail(str(file), "ranks of images, ranks of captions and the image of each caption", got, "copy the file again")
    asked = i2t > 0
    hits = np.sum([i2t[asked] <= k for k in _KS], axis=0)
    found = np.bincount(owner, np.sum([t2i <= k for k in _KS], axis=0), minlength=len(i2t))[asked]
    shares: NDArray[np.float64] = 100.0 * (hits + found * (np.count_nonzero(asked) / len(owner)))
    return shares


@dataclass(frozen=True)
class Column:
    """A figure in a table."""

    key: str
    heading: str
    digits: int


#: Figures of the tables, in order; those that nobody has are left out.
COLUMNS = (
    Column("i2t_r1", "i2t R@1", 1),
    Column("i2t_r5", "i2t R@5", 1),
    Column("i2t_r10", "i2t R@10", 1),
    Column("t2i_r1", "t2i R@1", 1),
    Column("t2i_r5", "t2i R@5", 1),
    Column("t2i_r10", "t2i R@10", 1),
    Column("rsum", "RSUM", 1),
    Column("fold_rsum", "RSUM, folds", 1),
    Column("tau", "tau-a", 3),
    Column("tau_b", "tau-b", 3),
    Column("ndcg", "nDCG", 3),
    Column("i2t_cs100", "i2t CS@100", 3),
    Column("t2i_cs100", "t2i CS@100", 3),
    Column("true_tau", "true tau", 3),
    Column("judged_expert_tau_c", "expert tau-c", 3),
    Column("report_expert_tau_c", "expert, 300", 3),
    Column("choice_expert_tau_c", "expert, 200", 3),
    Column("judged_crowd_tau_b", "crowd tau-b", 3),
    Column("report_crowd_tau_b", "crowd, 300", 3),
    Column("choice_crowd_tau_b", "crowd, 200", 3),
    Column("eccv_map_at_r_i2t", "ECCV i2t mAP@R", 1),
    Column("eccv_rprecision_i2t", "ECCV i2t R-P", 1),
    Column("eccv_r1_i2t", "ECCV i2t R@1", 1),
    Column("eccv_map_at_r_t2i", "ECCV t2i mAP@R", 1),
    Column("eccv_rprecision_t2i", "ECCV t2i R-P", 1),
    Column("eccv_r1_t2i", "ECCV t2i R@1", 1),
)


def main_table(summary: Summary, paper: Mapping[str, Any] | None = None) -> Table:
    """Every row with its mean and standard deviation over seeds, the best mean of a column in bold.

    Args:
        summary: The sweep.
        paper: Tables of the paper; each of its rows stands below ours.
    """
    source = {row.name: row.test if summary.split == "test" else row.validation for row in summary.rows}
    theirs = {row.name: _paper_rows(summary, row, paper) if paper else [] for row in summary.rows}
    shown = [column for column in COLUMNS if any(column.key in figures for figures in source.values())]
    best = {column.key: _best(column, list(source.values())) for column in shown}
    lines = []
    for row in summary.rows:
        figures = source[row.name]
        seeds = f"{len(row.keys)}" + (f" ({row.failed} diverged)" if row.failed else "")
        cells = [_cell(column, figures.get(column.key), best[column.key]) for column in shown]
        lines.append([Cell(row.name), Cell(seeds), *cells])
        for name, values in theirs[row.name]:
            known = (values.get(column.key) for column in shown)
            texts = [
                "" if value is None else f"{value:.{column.digits}f}"
                for value, column in zip(known, shown, strict=True)
            ]
            lines.append([Cell(name), Cell("1"), *(Cell(text) for text in texts)])
    return Table(["row", "seeds", *(column.heading for column in shown)], lines)


def search_table(summary: Summary) -> Table:
    """What a search tried for each row: how many settings there are, how many were tried, and which was chosen."""
    search = summary.about["search"]
    rows = []
    for name, space in search["spaces"].items():
        listed = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in space.items())
        chosen = ", ".join(f"{key} {value}" for key, value in search["chosen"].get(name, {}).items())
        rows.append([name, str(search["sizes"][name]), str(search["tried"][name]), listed, chosen or "not finished"])
    return Table(["row", "settings", "tried", "grid", "chosen"], [[Cell(text) for text in row] for row in rows])


def _paper_rows(summary: Summary, row: SummaryRow, paper: Mapping[str, Any]) -> list[tuple[str, dict[str, float]]]:
    columns = summary.about["columns"]
    return [
        (f"the paper, {columns}: {name} (Table {table})", paper_figures(paper, table, name, columns))
        for table, name in row.paper.items()
    ]


def _best(column: Column, rows: Sequence[Mapping[str, Spread]]) -> str | None:
    """The best mean as it is printed; nothing where there is nothing to compare."""
    found = [figures[column.key].mean for figures in rows if column.key in figures]
    means = [mean for mean in found if not isnan(mean)]
    return f"{max(means):.{column.digits}f}" if len(means) > 1 else None


def _cell(column: Column, value: Spread | None, best: str | None) -> Cell:
    if value is None:
        return Cell("")
    mean = f"{value.mean:.{column.digits}f}"
    deviation = f" ± {value.deviation:.{column.digits}f}" if value.count > 1 else ""
    return Cell(mean + deviation, bold=mean == best)


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


_TITLE = "Experiments"
_LEDE = "What was claimed, what was measured, and by which rule the two were compared."


def as_html(sections: Sequence[Section]) -> str:
    """One page that needs no other file and no network."""
    parts = [
        section(f"part{place}", one.title, "\n".join(block.as_html() for block in one.blocks))
        for place, one in enumerate(sections)
    ]
    return document(_TITLE, _LEDE, "".join(parts))


def as_markdown(sections: Sequence[Section]) -> str:
    """One page of Markdown."""
    return "\n\n".join([f"# {_TITLE}", _LEDE, *(one.as_markdown() for one in sections)]) + "\n"
