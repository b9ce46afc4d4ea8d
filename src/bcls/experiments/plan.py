"""The runs of a sweep: trials of a search, the choice among them, and the runs of the final table."""

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import Any, TypeAlias

from bcls._core.errors import check_choice, fail
from bcls.experiments.sweep_file import MACHINE, Configuration, Sweep, check_settings, label, merge
from bcls.training.config import TrainConfig

#: Phases: a run of the final table, or a trial of a search.
RUN, TRIAL = "run", "trial"


@dataclass(frozen=True)
class PlannedRun:
    """One run: a configuration at one point of the grid with one seed.

    Attributes:
        configuration: Name of the configuration.
        settings: All settings of :class:`bcls.training.TrainConfig` except those of the location and the machine.
        seed: Seed of weights, order and dropout.
        phase: ``run``, or ``trial`` for a trial of a search, which is never evaluated on the test split.
        point: The point of the grid or of the search space, by dotted key.
        noise: Standard deviation of noise in the training labels.
        paper: The corresponding rows of the paper, by table.
        members: The runs of an ensemble, whose scores are averaged.
    """

    configuration: str
    settings: dict[str, Any]
    seed: int
    phase: str = RUN
    point: dict[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    paper: dict[str, str] = field(default_factory=dict)
    members: tuple["PlannedRun", ...] = ()

    @property
    def name(self) -> str:
        """Name of the configuration, with the point of the grid."""
        return f"{self.configuration} ({label(self.point)})" if self.point else self.configuration

    @property
    def key(self) -> str:
        """Hash of everything that changes the result, twelve characters; equal runs are trained once."""
        # Without defaults, so that the keys of finished runs do not change if a later version adds a setting.
        usual = TrainConfig().as_dict()
        changed = {key: value for key, value in self.settings.items() if key not in usual or value != usual[key]}
        content: dict[str, Any] = {"settings": changed, "seed": self.seed}
        if self.noise:
            content["noise"] = self.noise
        if self.members:
            content = {"members": [member.key for member in self.members]}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


#: Several runs, and the settings that a search chose for each configuration.
Runs: TypeAlias = Sequence[PlannedRun]
Choices: TypeAlias = dict[str, dict[str, Any]]


def plan_runs(sweep: Sweep, chosen: Mapping[str, Mapping[str, Any]] | None = None) -> list[PlannedRun]:
    """List the runs of the final table, seed by seed, so that a stopped sweep has complete tables of fewer seeds.

    Args:
        sweep: The sweep.
        chosen: Settings that a search chose for each configuration, by dotted key.

    Returns:
        The runs; for each seed ensembles come after the trained runs.
    """
    planned = []
    for seed in sweep.seeds:
        made: dict[tuple[str, str], PlannedRun] = {}
        for configuration in sorted(sweep.configurations, key=lambda one: bool(one.ensemble)):
            found = (chosen or {}).get(configuration.name, {})
            for point in _points(sweep.grid):
                members = tuple(made[member, label(point)] for member in configuration.ensemble)
                run = _planned(configuration, {**found, **point}, seed, members=members, point=point)
                made[configuration.name, label(point)] = run
                planned.append(run)
    return planned


def plan_trials(sweep: Sweep) -> list[PlannedRun]:
    """List the trials of a search, one of each configuration in turn, so that a stopped search is fair to all."""
    if sweep.search is None:
        return []
    drawn = {one.name: (one, trials(sweep, one)) for one in sweep.configurations if not one.ensemble}
    return [
        _planned(configuration, {**points[turn], **sweep.search.shortened}, seed, phase=TRIAL, point=points[turn])
        for turn in range(max(len(points) for _, points in drawn.values()))
        for configuration, points in drawn.values()
        if turn < len(points)
        for seed in sweep.search.seeds
    ]


def search_space(sweep: Sweep, configuration: Configuration) -> dict[str, list[Any]]:
    """The search space of a configuration: that of the search, updated with its own."""
    return {**(sweep.search.space if sweep.search else {}), **configuration.space}


def trials(sweep: Sweep, configuration: Configuration) -> list[dict[str, Any]]:
    """The points of the search space that are tried: the same number for each configuration, or all if fewer.

    A random search tries the same points of the common space with every configuration, and the points of a
    configuration's own space in turn.
    """
    search = sweep.search
    if search is None:
        return []
    if search.method == "grid":
        return list(_points(search_space(sweep, configuration)))[: search.budget]
    common = list(_points({key: search.space[key] for key in search.space if key not in configuration.space}))
    own = list(_points(configuration.space))
    for points in (common, own):
        random.Random(search.seed).shuffle(points)
    every = [{**one, **own[(place + turn) % len(own)]} for turn in range(len(own)) for place, one in enumerate(common)]
    return every[: search.budget]


def choose(trials: Runs, results: Mapping[str, Mapping[str, Any]], measure: str) -> Choices | None:
    """Choose the best point of each configuration's search space.

    A trial that diverged or for which the metric is undefined counts as worst. Of equal points the first in the order
    of the plan is chosen.

    Args:
        trials: The planned trials.
        results: Their results, by :attr:`PlannedRun.key`.
        measure: Metric of the validation split, or of the rated images for choosing; averaged over seeds.

    Returns:
        Values by dotted key for each configuration; ``None`` if a trial is not finished.

    Raises:
        ValueError: If every trial of a configuration diverged, or no trial has the metric.
    """
    if any(trial.key not in results for trial in trials):
        return None
    scores: dict[str, dict[str, list[float]]] = {}
    points = {(trial.configuration, label(trial.point)): trial.point for trial in trials}
    found = [results[trial.key].get("trial") or results[trial.key].get("validation", {}) for trial in trials]
    if any(found):
        check_choice("search.measure", measure, dict.fromkeys(key for metrics in found for key in metrics))
    for trial, metrics in zip(trials, found, strict=True):
        score = metrics.get(measure, -float("inf"))
        scores.setdefault(trial.configuration, {}).setdefault(label(trial.point), []).append(score)
    chosen = {}
    for name, tried in scores.items():
        best = max(tried, key=lambda point: fmean(tried[point]))
        if fmean(tried[best]) == -float("inf"):
            fail(f"runs.{name}.space", "a setting that trains", "none: all diverged", "try lower learning rates")
        chosen[name] = points[name, best]
    return chosen


def take_share(runs: Runs, shard: str | None) -> list[PlannedRun]:
    """Select the runs that one of several machines does.

    Runs are distributed round-robin; an ensemble and its members stay together, as do ensembles with common members.

    Args:
        runs: All runs.
        shard: ``"2/4"`` for the second of four machines; ``None`` for all runs.

    Raises:
        ValueError: If it is not such a share.
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


def _points(grid: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """The points of a grid; one empty point without a grid."""
    return (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def _planned(configuration: Configuration, change: Mapping[str, Any], seed: int, **more: Any) -> PlannedRun:
    config = check_settings(merge(configuration.settings, change))
    settings = {key: value for key, value in config.as_dict().items() if key not in MACHINE}
    return PlannedRun(configuration.name, settings, seed, noise=configuration.noise, paper=configuration.paper, **more)
