"""The tables of a report: one's own rows, the paper's beside them, the best in bold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from bcls.experiments.report.blocks import Cell, Table
from bcls.experiments.report.paper import paper_figures
from bcls.experiments.report.summary import Spread, Summary, SummaryRow


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
