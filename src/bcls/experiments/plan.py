"""From a file of experiments to single runs, each known by its settings.

The setting of each row that a search found best on the validation split.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import Any

from bcls._core.errors import fail
from bcls.experiments.sweep_file import MACHINE, Row, Sweep, check_settings, label, merge
from bcls.training.config import TrainConfig

#: A run of a table, or a setting that a search tries.
RUN, TRIAL = "run", "trial"


@dataclass(frozen=True)
class Planned:
    """One run: a row at one point of the grid from one seed."""

    row: str
    """The row of the file."""
    settings: dict[str, Any]
    """All settings of :class:`bcls.training.TrainConfig` but those of the place and the machine."""
    seed: int
    """Of weights, order and dropout."""
    phase: str = RUN
    """``run``, or ``trial`` for a setting that a search tries: a trial is never tested."""
    point: dict[str, Any] = field(default_factory=dict)
    """The point of the grid, or of the search's space, by dotted key."""
    noise: float = 0.0
    """Noise in the training labels."""
    paper: dict[str, str] = field(default_factory=dict)
    """The paper's rows beside it, by table."""
    members: tuple["Planned", ...] = ()
    """Runs whose scores are averaged, in place of training."""

    @property
    def name(self) -> str:
        """Row and point, for people."""
        return f"{self.row} ({label(self.point)})" if self.point else self.row

    @property
    def key(self) -> str:
        """Twelve letters that stand for everything that changes the result: equal runs are run once."""
        # Without defaults, so that a setting that a later version adds does not make every finished run unknown.
        usual = TrainConfig().as_dict()
        changed = {key: value for key, value in self.settings.items() if key not in usual or value != usual[key]}
        content: dict[str, Any] = {"settings": changed, "seed": self.seed}
        if self.noise:
            content["noise"] = self.noise
        if self.members:
            content = {"members": [member.key for member in self.members]}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def plan_runs(sweep: Sweep, chosen: Mapping[str, Mapping[str, Any]] | None = None) -> list[Planned]:
    """The runs of the table, row by row within each seed, so that a stopped sweep has whole tables of fewer seeds.

    Args:
        sweep: The experiments.
        chosen: What a search found for each row, by dotted key.

    Returns:
        Trained runs of a seed before the ensembles of them.
    """
    points = list(_points(sweep.grid)) or [{}]
    planned = []
    for seed in sweep.seeds:
        made: dict[tuple[str, str], Planned] = {}
        for row in sorted(sweep.rows, key=lambda row: bool(row.ensemble)):
            for point in points:
                members = tuple(made[member, label(point)] for member in row.ensemble)
                found = dict((chosen or {}).get(row.name, {}))
                one = _planned(row, {**found, **point}, seed, members=members, point=point)
                made[row.name, label(point)] = one
                planned.append(one)
    return planned


def plan_trials(sweep: Sweep) -> list[Planned]:
    """The settings that a search tries, one of each row in turn, so that a stopped search is fair to all rows."""
    if sweep.search is None:
        return []
    drawn = {row.name: trials(sweep, row) for row in sweep.rows if not row.ensemble}
    rows = {row.name: row for row in sweep.rows}
    longest = max(len(points) for points in drawn.values())
    return [
        _planned(rows[name], points[turn], seed, phase=TRIAL, point=points[turn])
        for turn in range(longest)
        for name, points in drawn.items()
        if turn < len(points)
        for seed in sweep.search.seeds
    ]


def space_of(sweep: Sweep, row: Row) -> dict[str, list[Any]]:
    """What a search tries for a row: the search's own space and the row's, which wins."""
    return {**(sweep.search.space if sweep.search else {}), **row.space}


def trials(sweep: Sweep, row: Row) -> list[dict[str, Any]]:
    """The points of a row's space that are tried: as many for each row, or all of a smaller space."""
    search = sweep.search
    if search is None:
        return []
    every = list(_points(space_of(sweep, row))) or [{}]
    if search.method == "random":
        # Of the row's name too, so that rows with equal spaces try different points.
        random.Random(f"{search.seed} {row.name}").shuffle(every)
    return every[: search.budget]


def share(runs: Sequence[Planned], shard: str | None) -> list[Planned]:
    """The part of the runs that one of several machines does.

    Runs are dealt out like cards; those that share an ensemble, and the ensemble itself, are one card.

    Args:
        runs: All of them.
        shard: ``"2/4"`` for the second of four; ``None`` for all.

    Raises:
        ValueError: That is no such share.
    """
    if shard is None:
        return list(runs)
    first, _, second = shard.partition("/")
    if not (first.isdigit() and second.isdigit() and 1 <= int(first) <= int(second)):
        fail("--shard", "a share such as 1/4, counted from 1", repr(shard), "4/4 is the last of four")
    units: dict[str, frozenset[str]] = {}
    for run in runs:
        keys = {run.key, *(member.key for member in run.members)}
        unit = frozenset[str]().union(*(units.get(key, {key}) for key in keys))
        units |= dict.fromkeys(unit, unit)
    owner: dict[frozenset[str], int] = {}
    for run in runs:
        owner.setdefault(units[run.key], len(owner) % int(second))
    return [run for run in runs if owner[units[run.key]] == int(first) - 1]


def _points(grid: Mapping[str, list[Any]]) -> Iterable[dict[str, Any]]:
    if not grid:
        return []
    return (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def _planned(row: Row, change: Mapping[str, Any], seed: int, **more: Any) -> Planned:
    config = check_settings(merge(row.settings, change))
    settings = {key: value for key, value in config.as_dict().items() if key not in MACHINE}
    return Planned(row.name, settings, seed, noise=row.noise, paper=row.paper, **more)


def choose(
    trials: Sequence[Planned], results: Mapping[str, Mapping[str, Any]], measure: str
) -> dict[str, dict[str, Any]] | None:
    """The best point of each row's space.

    A trial that diverged counts as worst. Of equal ones the first in the order of the plan is taken.

    Args:
        trials: What was planned.
        results: What came of it, by :attr:`Planned.key`.
        measure: Figure of the validation split, or of the judged images to choose on; the mean over seeds decides.

    Returns:
        Dotted keys and values by row; ``None`` while a trial is not finished.

    Raises:
        ValueError: Every trial of a row diverged, or there is no such figure.
    """
    if any(trial.key not in results for trial in trials):
        return None
    from bcls._core.errors import check_choice, fail

    scores: dict[str, dict[str, list[float]]] = {}
    points: dict[str, dict[str, dict[str, Any]]] = {}
    for trial in trials:
        result = results[trial.key]
        if "failed" in result:
            score = -float("inf")
        else:
            figures = result.get("trial", result["validation"])
            check_choice("search.measure", measure, figures)
            score = figures[measure]
        scores.setdefault(trial.row, {}).setdefault(label(trial.point), []).append(score)
        points.setdefault(trial.row, {}).setdefault(label(trial.point), trial.point)
    chosen = {}
    for row, tried in scores.items():
        means = {point: fmean(values) for point, values in tried.items()}
        best = max(means, key=lambda point: means[point])
        if means[best] == -float("inf"):
            fail(f"runs.{row}.space", "a setting that trains", "none: all diverged", "try lower learning rates")
        chosen[row] = points[row][best]
    return chosen
