"""Claims of the paper, each with the rule that checks it against results, and the tables of the paper.

``claims.json`` lists the claims: metrics and pairs of losses that are compared, or the name of a check in this module.
Of metrics such as ``a or b`` the first that a test split has is compared.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

from bcls._core.errors import check_choice, fail
from bcls.evaluation.statistics import holm
from bcls.experiments.results import Difference, Summary, SummaryRow, compare_rows, difference, spread

#: Level of the adjusted p-values.
LEVEL = 0.05
HELD, PARTLY, NOT, INCONCLUSIVE, UNKNOWN = "held", "partly held", "not held", "inconclusive", "no data"


@dataclass(frozen=True)
class Finding:
    """One comparison that belongs to a claim.

    Attributes:
        where: Dataset and model.
        what: What is compared; a positive difference supports the claim.
        test: The difference, its 95 % interval and its p-value; only the difference with one seed.
        adjusted: The p-value, adjusted for the number of comparisons of all claims; 1 with one seed.
    """

    where: str
    what: str
    test: Difference
    adjusted: float = 1.0

    @property
    def verdict(self) -> str:
        """Held or not held, by the sign of the difference, if the adjusted p-value is below 0.05, else inconclusive.

        Example:
            >>> [Finding("", "", Difference(sign), p).verdict for sign in (1.0, -1.0) for p in (0.01, 0.05)]
            ['held', 'inconclusive', 'not held', 'inconclusive']
        """
        if not self.adjusted < LEVEL:
            return INCONCLUSIVE
        return HELD if self.test.difference > 0 else NOT


@dataclass(frozen=True)
class Claim:
    """A claim, the rule that checks it, and the comparisons that were found."""

    claim: str
    rule: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Held if all comparisons are, partly if some are, not held if none is and one is contradicted."""
        verdicts = {finding.verdict for finding in self.findings}
        if not verdicts:
            return UNKNOWN
        if HELD in verdicts:
            return HELD if verdicts == {HELD} else PARTLY
        return NOT if NOT in verdicts else INCONCLUSIVE


Group = list[SummaryRow]
#: Configurations by folder of the sweep and model.
Groups = dict[tuple[str, str], Group]


def check_claims(summaries: Sequence[Summary]) -> list[Claim]:
    """Check the claims of the paper against results.

    Configurations are compared within one sweep and one model. If a loss has several configurations, the one with the
    best validation RSUM represents it. If some configurations have been tested, only these are compared, by their
    metrics on the test split; otherwise all are compared by those on the validation split. The p-values are adjusted
    for the number of all comparisons, see :func:`bcls.evaluation.statistics.holm`.

    Args:
        summaries: Any number of sweeps.

    Returns:
        All claims, also those without data.
    """
    counted = [one for one in summaries if one.metadata.get("claims", True)]
    groups = _groups(counted)
    checks: dict[str, Callable[[], list[Finding]]] = {
        "convergence": partial(_convergence, groups),
        "tau": partial(_tau_most, groups),
        "noise": partial(_noise, counted),
        "alpha": partial(_over_grid, counted, "loss.alpha", _alpha),
        "beta": partial(_over_grid, counted, "loss.beta", _beta),
        "models": partial(_models, summaries),
    }
    found = []
    for one in json.loads(resources.files("bcls.experiments").joinpath("claims.json").read_text(encoding="utf-8")):
        pairs = [finding for key in one.get("metrics", ()) for finding in _pairs(groups, key, one["losses"])]
        found.append(Claim(one["claim"], one["rule"], checks[one["check"]]() if "check" in one else pairs))
    tested = [finding.test.p_value for claim in found for finding in claim.findings if finding.test.p_value is not None]
    adjusted = iter(holm(tested))
    for claim in found:
        claim.findings[:] = [
            one if one.test.p_value is None else replace(one, adjusted=next(adjusted)) for one in claim.findings
        ]
    return found


def is_rival(loss: str) -> bool:
    """Whether a loss has no Kendall term.

    Example:
        >>> [is_rival(name) for name in ("triplet-sn+csa", "bcls", "infonce+kendall-sw-hs")]
        [True, False, False]
    """
    return "bcls" not in loss and "kendall" not in loss


def read_paper(path: str | Path) -> dict[str, Any]:
    """Read ``results/paper.json``.

    Returns:
        Tables by number.

    Raises:
        ValueError: The file has another format.
    """
    try:
        tables: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))["tables"]
    except (ValueError, KeyError, TypeError) as error:
        got = f"{path} ({type(error).__name__})"
        fail("--paper", "the file results/paper.json", got, "use the file of the source distribution")
    return tables


def paper_metrics(tables: Mapping[str, Any], table: str, row: str, columns: str | None) -> dict[str, float]:
    """Return the metrics of one row of a table of the paper, under the names of :mod:`bcls.evaluation`.

    Args:
        tables: As :func:`read_paper` returns them.
        table: Number of the table.
        row: The method, spelled as in the paper.
        columns: The dataset, if the table has several. Metrics on COCO 1K are called ``fold_rsum`` and so on.

    Raises:
        ValueError: There is no such table, or no such row in it.
    """
    check_choice("paper", table, tables)
    lines = {line.get("method"): line for line in tables[table]["rows"]}
    if row not in lines:
        expected = f"a row of Table {table}: {', '.join(map(str, lines))}"
        fail("paper", expected, repr(row), "spell it as in the table")
    metrics: dict[str, float] = {}
    for dataset, values in lines[row].items():
        if isinstance(values, dict):
            folds = "fold_" if dataset == "MS-COCO 1K" and columns == "MS-COCO 5K" else ""
            if folds or dataset in {columns, "ECCV Caption"} or columns is None:
                metrics |= {f"{folds}{key}": value for key, value in values.items() if value is not None}
    taus = [metrics[key] for key in ("i2t_tau_a", "t2i_tau_a") if key in metrics]
    return metrics | ({"tau": sum(taus) / 2} if len(taus) == 2 else {})


def _groups(summaries: Sequence[Summary]) -> Groups:
    """Collect configurations without grid and ensembles; if any of a group is tested, only the tested ones.

    Sweeps with noise in the labels are about that claim alone.
    """
    groups: Groups = {}
    for summary in summaries:
        for row in summary.rows if not any(one.noise for one in summary.rows) else ():
            if not row.point and not row.ensemble and row.validation:
                groups.setdefault((row.folder, row.model), []).append(row)
    return {key: [row for row in rows if row.test] or rows for key, rows in groups.items()}


def _pick(rows: Group, loss: str) -> SummaryRow | None:
    found = [row for row in rows if row.loss["name"] == loss]
    return max(found, key=lambda row: row.validation["rsum"].mean, default=None)


def _split(rows: Group) -> str:
    """The split on which configurations are compared."""
    return "test" if all(row.test for row in rows) else "validation"


def _compared(
    where: str, rows: Group, key: str, a: SummaryRow | None, b: SummaryRow | None, best_of: int = 1
) -> list[Finding]:
    """Return one finding, or none if a configuration or its metric is missing.

    If b is the best of several by the same metric, the p-value of a negative difference is multiplied by their number
    (Bonferroni), since one of them may be above a by chance. A positive difference from the best needs no correction.
    """
    if a is None or b is None:
        return []
    split = _split(rows)
    if key not in a.on(split) or key not in b.on(split):
        return []
    first, second = a.on(split)[key], b.on(split)[key]
    found = difference(first, second)
    if found.p_value is not None:
        by_image = compare_rows(a, b, split, key)
        if by_image is not None and by_image["seeds"] == min(first.count, second.count):  # saved for every seed
            ends = by_image["difference_low"], by_image["difference_high"]
            found = Difference(found.difference, *ends, by_image["p_value"], "seeds and images")
        if found.p_value is not None and found.difference < 0:
            found = replace(found, p_value=min(1.0, best_of * found.p_value))
    return [Finding(where, f"{key}: {a.name} minus {b.name}", found)]


def _pairs(groups: Groups, metric: str, losses: Sequence[tuple[str, str]]) -> list[Finding]:
    found = []
    for rows in groups.values():
        *others, last = metric.split(" or ")
        key = next((one for one in others if any(one in row.test for row in rows)), last)
        for a, b in losses:
            found += _compared(_where(rows[0]), rows, key, _pick(rows, a), _pick(rows, b))
    return found


def _models(summaries: Sequence[Summary]) -> list[Finding]:
    groups = _groups([one for one in summaries if one.metadata["name"] == "paper-exact"])
    several = len({model for (_, model), rows in groups.items() if _pick(rows, "bcls")}) > 1
    return _pairs(groups, "rsum", [("bcls", "triplet-hn")]) if several else []


def _convergence(groups: Groups) -> list[Finding]:
    found = []
    for rows in groups.values():
        a, b = _pick(rows, "triplet-sn"), _pick(rows, "triplet-hn")
        if a is not None and b is not None:
            half = max(1, min(len(a.history), len(b.history)) // 2)
            early = [_early(row, half) for row in (a, b)]
            if all(early):
                what = f"mean RSUM of epochs 1 to {half}: {a.name} minus {b.name}"
                found.append(Finding(_where(a), what, difference(spread(early[0]), spread(early[1]))))
    return found


def _early(row: SummaryRow, epochs: int) -> list[float]:
    """Return the mean validation RSUM over the first epochs for each seed that was validated."""
    values = [[one["rsum"] for one in history[:epochs] if "rsum" in one] for history in row.histories]
    return [fmean(one) for one in values if one]


def _tau_most(groups: Groups) -> list[Finding]:
    findings = []
    for rows in groups.values():
        split = _split(rows)
        known = [row for row in rows if "tau" in row.on(split) and not isnan(row.on(split)["tau"].mean)]
        rivals = [row for row in known if is_rival(row.loss["name"])]
        best = max(rivals, key=lambda row: row.on(split)["tau"].mean, default=None)
        findings += _compared(_where(rows[0]), rows, "tau", _pick(rows, "bcls"), best, len(rivals))
    return findings


def _noise(summaries: Sequence[Summary]) -> list[Finding]:
    found = []
    for summary in summaries:
        rows = [row for row in summary.rows if "true_tau" in row.metrics and "tau" in row.validation]
        soft = _pick([row for row in rows if not row.noise], "triplet-sn")
        for level in sorted({row.noise for row in rows if row.noise}):
            noisy = [row for row in rows if row.noise == level and "alpha" in row.loss]
            without = next((row for row in noisy if row.loss["alpha"] == 0), None)
            above = [row for row in noisy if row.loss["alpha"] > 0]
            best = max(above, key=lambda row: row.validation["tau"].mean, default=None)
            where = f"{summary.metadata['dataset']}, noise {level:g}"
            found += _compared(where, rows, "true_tau", best, without) + _compared(where, rows, "true_tau", best, soft)
    return found


def _alpha(summary: Summary, key: str, rows: dict[float, SummaryRow]) -> list[Finding]:
    wanted = summary.metadata.get("spread", 0.2)
    near = min(rows, key=lambda alpha: abs(alpha - wanted))
    others = [row for alpha, row in rows.items() if alpha != near]
    best = max(others, key=lambda row: row.metrics[key].mean)
    return _compared(_where(rows[near]), list(rows.values()), key, rows[near], best, len(others))


def _beta(summary: Summary, key: str, rows: dict[float, SummaryRow]) -> list[Finding]:
    every, smallest = list(rows.values()), rows[min(rows)]
    found = _compared(_where(smallest), every, key, smallest, rows[max(rows)])
    return found + _compared(_where(smallest), every, key, rows.get(0.0), rows.get(0.1))


def _over_grid(
    summaries: Sequence[Summary], key: str, compare: Callable[[Summary, str, dict[float, SummaryRow]], list[Finding]]
) -> list[Finding]:
    """Compare the values of a grid with one key, for each configuration and for RSUM and tau."""
    found = []
    for summary in summaries:
        lines: dict[str, dict[float, SummaryRow]] = {}
        for row in summary.rows:
            if list(row.point) == [key] and isinstance(row.point[key], int | float) and row.validation:
                lines.setdefault(row.row, {})[float(row.point[key])] = row
        for rows in lines.values():
            for metric in ("rsum", "tau"):
                if len(rows) > 1 and all(metric in row.metrics for row in rows.values()):
                    found += compare(summary, metric, rows)
    return found


def _where(row: SummaryRow) -> str:
    return f"{row.dataset}, {row.model}, table {row.sweep}"
