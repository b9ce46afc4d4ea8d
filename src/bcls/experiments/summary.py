"""Rows of tables from single runs: the mean over seeds, and how far seeds lie apart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bcls._core.errors import fail
from bcls.experiments.plan import RUN
from bcls.experiments.results import SWEEP, read_results


@dataclass(frozen=True)
class Spread:
    """A figure over seeds."""

    mean: float
    deviation: float
    """Standard deviation over seeds; 0 for one seed."""
    count: int
    """Seeds."""

    @property
    def error(self) -> float | None:
        """Standard error of the mean; nothing for one seed."""
        return self.deviation / sqrt(self.count) if self.count > 1 else None


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of some values.

    Example:
        >>> spread([1.0, 3.0])
        Spread(mean=2.0, deviation=1.4142135623730951, count=2)
    """
    mean = fmean(values)
    if isnan(mean):  # a figure that one of the runs does not have, such as the order of scores that are all equal
        return Spread(mean, mean, len(values))
    return Spread(mean, stdev(values) if len(values) > 1 else 0.0, len(values))


@dataclass(frozen=True)
class SummaryRow:
    """A row of a table, at one point of the grid, over all its seeds."""

    sweep: str
    row: str
    """The row of the file."""
    name: str
    """With the point of the grid."""
    dataset: str
    model: str
    """Name of the model; of an ensemble, of its first member's."""
    loss: dict[str, Any]
    point: dict[str, Any]
    noise: float
    paper: dict[str, str]
    validation: dict[str, Spread]
    test: dict[str, Spread]
    """Empty until the sweep is final."""
    histories: list[list[dict[str, float]]]
    """Figures of each epoch, for each seed."""
    keys: dict[int, str]
    """Key of the run of each seed."""
    ensemble: list[str]
    failed: int
    """Seeds that diverged."""

    @property
    def history(self) -> list[dict[str, float]]:
        """Means over seeds of each epoch's figures, as far as all seeds went."""
        return [
            {key: fmean(one[key] for one in epochs) for key in epochs[0] if all(key in one for one in epochs)}
            for epochs in zip(*self.histories, strict=False)
        ]

    @property
    def figures(self) -> dict[str, Spread]:
        """Of the test split where there are any, else of the validation split."""
        return self.test or self.validation


@dataclass(frozen=True)
class Summary:
    """A sweep, summed up."""

    folder: Path
    about: dict[str, Any]
    rows: list[SummaryRow]
    trials: int = 0
    """Runs of a search."""
    tested_trials: int = 0
    """Those that were tested, by a choice made before, and are no row."""
    commits: list[str] = field(default_factory=list)
    """Revisions of the code that the runs were made with."""
    seconds: float = 0.0
    """Of training, all runs together."""

    @property
    def split(self) -> str:
        """Whose figures the tables show."""
        judged = [row for row in self.rows if row.validation]  # the others diverged from every seed
        return "test" if judged and all(row.test for row in judged) else "validation"


def summarise(folder: str | Path) -> Summary:
    """Read a sweep and put its seeds together.

    Raises:
        ValueError: The folder holds no sweep.
    """
    about, lines = read_results(folder)
    runs = [line for line in lines if line["phase"] == RUN]
    if len(runs) < len(lines) and not about.get("search"):
        remedy = "run the sweep again: finished runs are kept"
        fail(str(Path(folder) / SWEEP), "`search`, for there are trials", "none", remedy)
    names = dict.fromkeys(line["name"] for line in runs)
    order = {name: place for place, name in enumerate(about["rows"])}
    rows = [_row(about, name, [line for line in runs if line["name"] == name]) for name in names]
    rows.sort(key=lambda row: order.get(row.row, len(order)))
    return Summary(
        Path(folder),
        about,
        rows,
        len(lines) - len(runs),
        sum("test" in line for line in lines if line["key"] not in {run["key"] for run in runs}),
        sorted({line["revision"] for line in lines if line.get("revision")}),
        sum(line.get("seconds", 0.0) for line in {line["key"]: line for line in lines}.values()),
    )


def _row(about: Mapping[str, Any], name: str, lines: Sequence[Mapping[str, Any]]) -> SummaryRow:
    first, good = lines[0], [line for line in lines if "failed" not in line]
    return SummaryRow(
        sweep=about["name"],
        row=first["row"],
        name=name,
        dataset=first["dataset"],
        model=first["settings"]["model"]["name"],
        loss=first["settings"]["loss"],
        point=first["point"],
        noise=first["noise"],
        paper=first.get("paper") or {},
        validation=_spreads(line["validation"] for line in good),
        # Some seeds tested and some not would make a mean of other seeds than the validation's.
        test=_spreads(line["test"] for line in good) if good and all("test" in line for line in good) else {},
        histories=[line["history"] for line in good if "history" in line],
        keys={line["seed"]: line["key"] for line in good},
        ensemble=first["ensemble"],
        failed=len(lines) - len(good),
    )


def _spreads(found: Iterable[Mapping[str, float]]) -> dict[str, Spread]:
    every = list(found)
    shared = [key for key in every[0] if all(key in one for one in every)] if every else []
    return {key: spread([one[key] for one in every]) for key in shared}
