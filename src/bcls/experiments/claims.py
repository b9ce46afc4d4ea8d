"""The paper's tables, to stand beside one's own.

What the paper claims, and whether these results bear it out, each by a rule that is written down.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from bcls._core.errors import check_choice, fail
from bcls.experiments.summary import Spread, Summary, SummaryRow, spread


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


HELD, PARTLY, NOT, UNKNOWN = "held", "partly", "not", "no data"
#: Rivals that do not learn an order from labels by Kendall's tau.
_RIVALS = ("triplet", "triplet-hn", "triplet-sn", "ladder", "ladder-adaptive", "sam", "infonce", "sigmoid")
_DENSE = "triplet-sn+kendall"


@dataclass(frozen=True)
class Finding:
    """One comparison that a verdict rests on."""

    where: str
    """Dataset and model."""
    what: str
    """What is compared."""
    difference: float
    """Above 0 speaks for the claim."""
    margin: float | None
    """Twice the standard error of the difference over seeds; nothing for one seed."""

    @property
    def verdict(self) -> str:
        """Held beyond the margin, partly above 0, else not; one seed shows partly at most."""
        if self.difference <= 0:
            return NOT
        return HELD if self.margin is not None and self.difference > self.margin else PARTLY


@dataclass(frozen=True)
class Claim:
    """A claim, the rule it is judged by, and how it came out."""

    claim: str
    rule: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Held where every comparison is, not where none speaks for it, else partly."""
        if not self.findings:
            return UNKNOWN
        verdicts = {finding.verdict for finding in self.findings}
        return verdicts.pop() if len(verdicts) == 1 else PARTLY


Group = list[SummaryRow]
#: By dataset and model.
Groups = dict[tuple[str, str], Group]


def judge(summaries: Sequence[Summary]) -> list[Claim]:
    """Judge the paper's claims.

    Rows of one dataset and one model are compared with each other. Where a loss has several rows the one with the best
    RSUM on the validation split stands for it. Where some of the rows have been tested these alone are compared, by
    their figures of the test split; else all of them, by those of the validation split.

    Args:
        summaries: Any number of sweeps.
    """
    groups = _groups(summaries)
    several = len({model for (_, model), rows in groups.items() if _pick(rows, "bcls")}) > 1
    rising = _pairs(groups, "rsum", [("bcls", "triplet-hn")])
    return [
        Claim(
            "Triplet-SN converges better than Triplet-HN",
            "mean validation RSUM over the first half of the epochs, Triplet-SN less Triplet-HN",
            _convergence(groups),
        ),
        Claim(
            "RSUM: BCLS above Triplet-SN above Triplet-HN",
            "RSUM of each less that of the next",
            _pairs(groups, "rsum", [("bcls", "triplet-sn"), ("triplet-sn", "triplet-hn")]),
        ),
        Claim(
            "the Kendall loss alone is poor at RSUM",
            "RSUM of Triplet-HN less that of K-SW-HS",
            _pairs(groups, "rsum", [("triplet-hn", "kendall-sw-hs")]),
        ),
        Claim(
            "BCLS above Ladder and SAM",
            "RSUM of BCLS less that of Ladder and of SAM",
            _pairs(groups, "rsum", [("bcls", "ladder"), ("bcls", "sam")]),
        ),
        Claim(
            "SW-HS does better than the dense Kendall loss",
            "RSUM and tau of BCLS less those of Triplet-SN with the dense Kendall loss",
            _pairs(groups, "rsum", [("bcls", _DENSE)]) + _pairs(groups, "tau", [("bcls", _DENSE)]),
        ),
        Claim(
            "Kendall's tau with the labels rises most with BCLS",
            "tau of BCLS less that of the best loss without a Kendall part",
            _tau_most(groups),
        ),
        Claim(
            "agreement with people rises",
            "tau-c with the experts on the images for reporting (on all judged images where there is no list), BCLS "
            "less Triplet-HN and less Triplet-SN",
            _people(groups),
        ),
        Claim(
            "noise in the labels is survived",
            "drawn scenes, each size of noise: tau with the truth of the alpha above 0 with the best validation tau, "
            "less that of alpha 0, and less that of Triplet-SN",
            _noise(summaries),
        ),
        Claim(
            "alpha is best at the captions' spread",
            "RSUM and tau at the alpha of the grid nearest to the spread of the captions of one image, less those of "
            "every other alpha's best",
            _alpha(summaries),
        ),
        Claim(
            "a smaller stride beta is better",
            "RSUM and tau of the smallest beta less those of the largest; and of beta 0, the limit, less those of 0.1",
            _beta(summaries),
        ),
        Claim(
            "the same settings work for several models",
            "RSUM of BCLS less that of Triplet-HN, for every model; two models at least",
            rising if several else [],
        ),
    ]


def difference(a: Spread, b: Spread) -> tuple[float, float | None]:
    """Difference of two means, and twice its standard error.

    Example:
        >>> difference(Spread(3.0, 1.0, 4), Spread(1.0, 0.0, 4))
        (2.0, 1.0)
        >>> difference(Spread(3.0, 0.0, 1), Spread(1.0, 0.0, 4))
        (2.0, None)
    """
    if a.error is None or b.error is None:
        return a.mean - b.mean, None
    return a.mean - b.mean, 2 * sqrt(a.error**2 + b.error**2)


def _groups(summaries: Sequence[Summary]) -> Groups:
    groups: Groups = {}
    for summary in summaries:
        for row in summary.rows if summary.about.get("claims", True) else ():
            if not row.point and not row.noise and not row.ensemble and row.validation:
                groups.setdefault((row.dataset, row.model), []).append(row)
    return {key: [row for row in rows if row.test] or rows for key, rows in groups.items()}


def _pick(rows: Group, loss: str) -> SummaryRow | None:
    found = [row for row in rows if row.loss["name"] == loss]
    return max(found, key=lambda row: row.validation["rsum"].mean, default=None)


def _of(rows: Group, row: SummaryRow, key: str) -> Spread | None:
    tested = all(one.test for one in rows)
    return (row.test if tested else row.validation).get(key)


def _compared(where: str, rows: Group, key: str, a: SummaryRow | None, b: SummaryRow | None) -> list[Finding]:
    """A finding, or none where a row or its figure is missing."""
    if a is None or b is None:
        return []
    first, second = _of(rows, a, key), _of(rows, b, key)
    if first is None or second is None:
        return []
    return [Finding(where, f"{key}: {a.name} less {b.name}", *difference(first, second))]


def _pairs(groups: Groups, key: str, losses: Sequence[tuple[str, str]]) -> list[Finding]:
    return [
        finding
        for rows in groups.values()
        for a, b in losses
        for finding in _compared(_where(rows[0]), rows, key, _pick(rows, a), _pick(rows, b))
    ]


def _convergence(groups: Groups) -> list[Finding]:
    found = []
    for rows in groups.values():
        a, b = _pick(rows, "triplet-sn"), _pick(rows, "triplet-hn")
        if a is not None and b is not None:
            half = max(1, min(len(a.history), len(b.history)) // 2)
            early = [_early(row, half) for row in (a, b)]
            if all(early):
                what = f"mean RSUM of epochs 1 to {half}: {a.name} less {b.name}"
                found.append(Finding(_where(a), what, *difference(spread(early[0]), spread(early[1]))))
    return found


def _early(row: SummaryRow, epochs: int) -> list[float]:
    """Mean validation RSUM over the first epochs, for each seed; nothing where it was not looked at."""
    values = [[one["rsum"] for one in history[:epochs] if "rsum" in one] for history in row.histories]
    return [fmean(one) for one in values if one]


def _tau_most(groups: Groups) -> list[Finding]:
    findings = []
    for rows in groups.values():
        best, most = None, -1.0
        for row in rows:
            tau = _of(rows, row, "tau")
            if row.loss["name"] in _RIVALS and tau is not None and tau.mean > most:
                best, most = row, tau.mean
        findings += _compared(_where(rows[0]), rows, "tau", _pick(rows, "bcls"), best)
    return findings


def _people(groups: Groups) -> list[Finding]:
    found = []
    for rows in groups.values():
        key = "report_expert_tau_c" if any("report_expert_tau_c" in row.test for row in rows) else "judged_expert_tau_c"
        for rival in ("triplet-hn", "triplet-sn"):
            found += _compared(_where(rows[0]), rows, key, _pick(rows, "bcls"), _pick(rows, rival))
    return found


def _noise(summaries: Sequence[Summary]) -> list[Finding]:
    found = []
    for summary in summaries:
        rows = [row for row in summary.rows if "true_tau" in row.figures and "tau" in row.validation]
        soft = _pick([row for row in rows if not row.noise], "triplet-sn")
        for size in sorted({row.noise for row in rows if row.noise}):
            noisy = [row for row in rows if row.noise == size and "alpha" in row.loss]
            without = next((row for row in noisy if row.loss["alpha"] == 0), None)
            above = [row for row in noisy if row.loss["alpha"] > 0]
            best = max(above, key=lambda row: row.validation["tau"].mean, default=None)
            where = f"{summary.about['dataset']}, noise {size:g}"
            found += _compared(where, rows, "true_tau", best, without) + _compared(where, rows, "true_tau", best, soft)
    return found


def _alpha(summaries: Sequence[Summary]) -> list[Finding]:
    def compared(summary: Summary, key: str, rows: dict[float, SummaryRow]) -> list[Finding]:
        wanted = summary.about.get("spread", 0.2)
        near = min(rows, key=lambda alpha: abs(alpha - wanted))
        others = [row for alpha, row in rows.items() if alpha != near]
        best = max(others, key=lambda row: row.figures[key].mean)
        return _compared(_where(rows[near]), list(rows.values()), key, rows[near], best)

    return _over_grid(summaries, "loss.alpha", compared)


def _beta(summaries: Sequence[Summary]) -> list[Finding]:
    def compared(summary: Summary, key: str, rows: dict[float, SummaryRow]) -> list[Finding]:
        every, where = list(rows.values()), _where(every_first(rows))
        found = _compared(where, every, key, rows[min(rows)], rows[max(rows)])
        return found + _compared(where, every, key, rows.get(0.0), rows.get(0.1))

    def every_first(rows: dict[float, SummaryRow]) -> SummaryRow:
        return next(iter(rows.values()))

    return _over_grid(summaries, "loss.beta", compared)


def _over_grid(
    summaries: Sequence[Summary], key: str, compare: Callable[[Summary, str, dict[float, SummaryRow]], list[Finding]]
) -> list[Finding]:
    found = []
    for summary in summaries:
        lines: dict[str, dict[float, SummaryRow]] = {}
        for row in summary.rows:
            if list(row.point) == [key] and isinstance(row.point[key], int | float) and row.validation:
                lines.setdefault(row.row, {})[float(row.point[key])] = row
        for rows in lines.values():
            for figure in ("rsum", "tau"):
                if len(rows) > 1 and all(figure in row.figures for row in rows.values()):
                    found += compare(summary, figure, rows)
    return found


def _where(row: SummaryRow) -> str:
    return f"{row.dataset}, {row.model}"
