"""Sweep files: the configurations, grid, seeds and search of an experiment, read from YAML and checked."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from bcls._core.config import check_field_types, convert_numbers, from_plain, read_yaml
from bcls._core.errors import check_choice, check_number, check_whole, fail
from bcls.data.text_files import is_unicode
from bcls.training.config import FREE_ON_RESUME, TrainConfig, check_config

#: Settings of the location and the machine, which are not part of an experiment and not allowed in a sweep file.
MACHINE = FREE_ON_RESUME | {"graph", "seed"}
#: Numbers of the tables in the paper, and the datasets of those that compare methods.
PAPER_TABLES = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
PAPER_COLUMNS = ("Flickr30K", "MS-COCO 1K", "MS-COCO 5K")
#: Metrics that a search may maximise: those of the validation split, and of the rated images for choosing.
MEASURES = (
    *("rsum", "tau", "tau_b", "true_tau", "ndcg"),
    *(f"{way}_{name}" for way in ("i2t", "t2i") for name in ("r1", "r5", "r10", "tau_a", "tau_b", "ndcg")),
    *("choice_expert_tau_c", "choice_crowd_tau_b"),
    *(f"choice_{name}_{way}" for name in ("map_at_r", "rprecision", "r1") for way in ("i2t", "t2i")),
)
# Keys of a configuration that are not settings of the training.
_EXTRA_KEYS = ("base", "noise", "paper", "space", "ensemble")
# Limits the memory that a typing error in `seeds` can take.
_MOST_SEEDS = 10_000


@dataclass(frozen=True)
class SweepSettings:
    """Settings of ``bcls sweep FILE``.

    Attributes:
        data: Folder of the dataset.
        out: Folder of the sweep: results.jsonl and the runs. Call again with the same folder to resume.
        final: Also compute metrics on the test split and, with --judgements, human agreement. For final tables only.
        judgements: Folder with ExpertAnnotations.txt and CrowdFlowerAnnotations.txt of Flickr8k.
        processes: Parallel processes, for CPUs; on a GPU more than one is faster only with NVIDIA's MPS service.
        threads: Threads of each process; by default the cores are divided among the processes.
        shard: Part of the runs that this machine trains, such as 1/4.
        only: Names of the configurations to train. Results of the others are kept.
        minutes: Stop after this many minutes, with a checkpoint of the current run.
        device: auto, cpu or cuda.
        graph: Record training steps as CUDA graphs, see `bcls train --help`.
        dry_run: List the runs with their keys and whether they are finished, without training.
        json: Print the outcome as JSON.
    """

    data: str
    out: str
    final: bool = False
    judgements: str | None = None
    processes: int = 1
    threads: int | None = None
    shard: str | None = None
    only: list[str] = field(default_factory=list)
    minutes: float | None = None
    device: str = "auto"
    graph: bool = False
    dry_run: bool = False
    json: bool = False


@dataclass(frozen=True)
class Search:
    """Hyperparameter search for each configuration, on the validation split.

    Attributes:
        budget: Number of trials of each configuration.
        measure: Metric on the validation split to maximise.
        method: random samples the grid without replacement, grid goes through it in order.
        seed: Seed of the sampling.
        seeds: Training seeds of each trial.
        epochs: Epochs of a trial, if fewer than those of the final runs.
        space: Values of each searched setting, for all configurations.
    """

    budget: int
    measure: str = "rsum"
    method: Literal["random", "grid"] = "random"
    seed: int = 0
    seeds: tuple[int, ...] = (1,)
    epochs: int | None = None
    space: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def shortened(self) -> dict[str, int]:
        """The settings in which a trial differs from a final run."""
        return {} if self.epochs is None else {"epochs": self.epochs}


@dataclass(frozen=True)
class Configuration:
    """One configuration of a sweep: a row of the resulting table.

    Attributes:
        name: Its name.
        settings: Settings of :class:`bcls.training.TrainConfig` that differ from the defaults.
        noise: Standard deviation of noise in the training labels.
        paper: The corresponding rows of the paper's tables, by table number.
        space: Search space of this configuration, in addition to that of the search.
        ensemble: Configurations whose scores are averaged; an ensemble is not trained.
    """

    name: str
    settings: dict[str, Any]
    noise: float = 0.0
    paper: dict[str, str] = field(default_factory=dict)
    space: dict[str, list[Any]] = field(default_factory=dict)
    ensemble: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """The content of a sweep file; see :func:`read_sweep`.

    Attributes:
        name: Its name.
        configurations: The configurations to compare.
        seeds: Each configuration is trained with each of these seeds.
        about: Its purpose, in a sentence.
        grid: Values by dotted key; each configuration is trained at each point of the grid.
        search: Hyperparameter search; without it the settings of the file are used.
        paper: Numbers of the corresponding tables in the paper, such as V.
        columns: Dataset of the paper's table to compare with, such as Flickr30K.
        test_split: Split that `--final` evaluates.
        folds: If above 1: also recalls of the test split averaged over this many folds.
        eccv: Also metrics of ECCV Caption on the test split.
        claims: Whether the report tests the paper's claims with it; false for variants that the paper does not have.
        judged_choice: List of the rated images that a search may use; the other images are for reporting.
        scenes: Generate this many synthetic scenes if the data folder is empty.
    """

    name: str
    configurations: tuple[Configuration, ...]
    seeds: tuple[int, ...] = (1,)
    about: str = ""
    grid: dict[str, list[Any]] = field(default_factory=dict)
    search: Search | None = None
    paper: tuple[str, ...] = ()
    columns: str | None = None
    test_split: str = "test"
    folds: int = 1
    eccv: bool = False
    claims: bool = True
    judged_choice: Path | None = None
    scenes: int | None = None

    @property
    def chooses_on_ratings(self) -> bool:
        """Whether the search chooses settings by human agreement."""
        return self.search is not None and self.search.measure.startswith("choice_")


def read_sweep(path: str | Path) -> Sweep:
    """Read and check a sweep file.

    Args:
        path: A YAML file. ``base`` is a preset, relative to the file, or a mapping of settings; ``settings`` and then
            each of ``runs`` are merged into it, see :func:`bcls.experiments.sweep_file.merge`.

    Returns:
        The sweep, with every setting checked as far as possible without the data.

    Raises:
        ValueError: If a key is unknown or its value is wrong; the message names the file and the key.
        OSError: If the file or a preset cannot be read.
    """
    path = Path(path)
    plain = _mapping(path, convert_numbers(read_yaml(path)), str(path))
    try:
        return _parse(path, plain)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def merge(settings: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merge changes into settings.

    A key is a setting of :class:`bcls.training.TrainConfig`, or a dotted path into a mapping, such as ``loss.alpha``.
    A mapping with a ``name`` (another loss or model) replaces the old mapping with its arguments. A mapping without a
    name is merged into the old one.

    Args:
        settings: The settings; not modified.
        change: The changes.

    Returns:
        New settings.

    Raises:
        ValueError: If a dotted key leads into something other than a mapping.

    Example:
        >>> merge({"lr": 1, "loss": {"name": "bcls", "alpha": 0.2}}, {"loss.alpha": 0.1})
        {'lr': 1, 'loss': {'name': 'bcls', 'alpha': 0.1}}
        >>> merge({"loss": {"name": "bcls", "alpha": 0.2}}, {"loss": {"name": "triplet-hn"}})
        {'loss': {'name': 'triplet-hn'}}
    """
    merged: dict[str, Any] = copy.deepcopy(dict(settings))
    for key, value in change.items():
        first, _, rest = key.partition(".")
        if rest:
            inside = merged.get(first, {})
            if not isinstance(inside, Mapping):
                fail(key, f"a mapping in `{first}`", repr(inside), "write the key without a dot")
            merged[first] = merge(inside, {rest: value})
        elif isinstance(value, Mapping) and isinstance(merged.get(first), Mapping) and "name" not in value:
            merged[first] = merge(merged[first], value)
        else:
            merged[first] = copy.deepcopy(value)
    return merged


def label(values: Mapping[str, Any]) -> str:
    """Format a point of a grid.

    Example:
        >>> label({"loss.alpha": 0.2, "batch": 64})
        'alpha=0.2, batch=64'
    """
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())


def check_settings(settings: Mapping[str, Any]) -> TrainConfig:
    """Check the settings of a run as far as possible without the data.

    Raises:
        ValueError: If one is unknown or out of range.
    """
    for key in settings:
        check_choice("setting", key, sorted({one.name for one in fields(TrainConfig)} - MACHINE))
    config = TrainConfig(**settings)
    check_config(config)
    if config.val_split is None:
        fail("val_split", "a split to choose the checkpoint on", "none", "name one: the test split is for --final only")
    return config


def _parse(path: Path, plain: dict[str, Any]) -> Sweep:
    known = {one.name for one in fields(Sweep)} - {"configurations"} | {"base", "settings", "runs"}
    for key in plain:
        check_choice("key", key, sorted(known))
    common = merge(_base(path, plain.get("base", {})), _mapping(path, plain.get("settings", {}), "settings"))
    search = None if plain.get("search") is None else _search(path, plain["search"])
    paper = plain.get("paper", [])
    tables = tuple(check_choice("paper", one, PAPER_TABLES) for one in (paper if isinstance(paper, list) else [paper]))
    runs = _mapping(path, plain.get("runs", {path.stem: {}}), "runs")
    configurations = tuple(_configuration(path, common, name, change or {}, tables) for name, change in runs.items())
    grid = _lists("grid", plain.get("grid", {}))
    _check_configurations(configurations, grid, search)
    if search is not None and search.measure.startswith("choice_") and not plain.get("judged_choice"):
        fail("judged_choice", f"a file with the rated images for `{search.measure}`", "none", "add it")
    given = ("about", "columns", "test_split", "folds", "eccv", "claims", "scenes")
    simple: dict[str, Any] = {key: plain[key] for key in given if key in plain}
    check_field_types(simple, Sweep)
    if simple.get("columns") is not None or any(one.paper for one in configurations):
        check_choice("columns", simple.get("columns"), PAPER_COLUMNS)
    check_whole("folds", simple.get("folds", 1), least=1)
    check_whole("scenes", simple.get("scenes", 20), least=20)
    return Sweep(
        name=str(plain.get("name", path.stem)),
        configurations=configurations,
        seeds=_seeds("seeds", plain.get("seeds", [1])),
        grid=grid,
        search=search,
        paper=tables,
        judged_choice=path.parent / str(plain["judged_choice"]) if plain.get("judged_choice") else None,
        **simple,
    )


def _configuration(
    path: Path, common: dict[str, Any], name: str, plain: dict[str, Any], tables: tuple[str, ...]
) -> Configuration:
    where = f"runs.{name}"
    change = _mapping(path, plain, where)
    extra = {key: change.pop(key) for key in _EXTRA_KEYS if key in change}
    start = common if "base" not in extra else merge(common, _base(path, extra["base"]))
    ensemble = extra.get("ensemble", [])
    if not isinstance(ensemble, list) or len(ensemble) == 1 or len(set(map(str, ensemble))) < len(ensemble):
        hint = "name configurations of this file"
        fail(f"{where}.ensemble", "a list of two configurations or more, all different", repr(ensemble), hint)
    paper = extra.get("paper", {})
    if not isinstance(paper, dict):
        paper = dict.fromkeys(tables, paper)  # one name for all tables
    for table in paper:
        check_choice(f"{where}.paper", table, tables)
    return Configuration(
        name=name,
        settings=merge(start, change),
        noise=check_number(f"{where}.noise", extra.get("noise", 0.0), "0 for none", low=0),
        paper={str(table): str(row) for table, row in paper.items()},
        space=_lists(f"{where}.space", extra.get("space", {})),
        ensemble=tuple(str(one) for one in ensemble),
    )


def _check_configurations(every: Sequence[Configuration], grid: dict[str, list[Any]], search: Search | None) -> None:
    trained = [one.name for one in every if not one.ensemble]
    if not trained:
        fail("runs", "at least one configuration that is trained", "none", "add one, or leave `runs` out")
    if search is not None and grid:
        fail("grid", "either a grid or a search", "both", "the grid of a search is `search.space`")
    for one in every:
        for member in one.ensemble:
            check_choice(f"runs.{one.name}.ensemble", member, trained)
        if one.space and search is None:
            fail(f"runs.{one.name}.space", "a `search` that uses it", "none", "add `search: {budget: 8}`")
        try:
            _check_points(one, grid, None if one.ensemble else search)
        except ValueError as error:
            if len(every) == 1:
                raise
            raise ValueError(f"runs.{one.name}: {error}") from error


def _check_points(configuration: Configuration, grid: dict[str, list[Any]], search: Search | None) -> None:
    """Check the settings of a configuration, and those with each value of the grid or the search."""
    settings = configuration.settings
    config = check_settings(settings)
    if search is not None and search.epochs is not None and search.epochs > config.epochs:
        fail("search.epochs", f"at most its {config.epochs} epochs", search.epochs, "trials are not longer than runs")
    tried = {} if configuration.ensemble else {**grid, **(search.space if search else {}), **configuration.space}
    for key, values in tried.items():
        for value in values:
            check_settings(merge(settings, {key: value, **(search.shortened if search else {})}))


def _search(path: Path, plain: object) -> Search:
    given = _mapping(path, plain, "search")
    if "budget" not in given and given.keys() <= {one.name for one in fields(Search)}:
        fail("search.budget", "the number of trials of each configuration", "none", "add it, such as 8")
    given["space"] = _lists("search.space", given.get("space", {}))
    given["seeds"] = _seeds("search.seeds", given.get("seeds", [1]))
    search: Search = from_plain(Search, given, "search")
    check_choice("search.measure", search.measure, MEASURES)
    check_whole("search.budget", search.budget, least=1)
    check_whole("search.seed", search.seed, least=0)
    check_whole("search.epochs", 1 if search.epochs is None else search.epochs, least=1)
    return search


def _seeds(name: str, plain: object) -> tuple[int, ...]:
    if isinstance(plain, int) and not isinstance(plain, bool):
        if plain > _MOST_SEEDS:
            fail(name, f"at most {_MOST_SEEDS} seeds", plain, "five are usual")
        plain = list(range(1, check_whole(name, plain, least=1) + 1))
    seeds = tuple(check_whole(name, seed, least=0) for seed in plain) if isinstance(plain, list) else ()
    if not seeds or len(set(seeds)) < len(seeds):
        fail(name, "a number of seeds, or a list of different ones", repr(plain), "such as [1, 2, 3]")
    return seeds


def _lists(name: str, plain: object) -> dict[str, list[Any]]:
    if not isinstance(plain, Mapping):
        fail(name, "values by dotted key", repr(plain), "such as {loss.alpha: [0.1, 0.2]}")
    for key, values in plain.items():
        if not isinstance(values, list) or not values:
            fail(f"{name}.{key}", "a list of values", repr(values), "put it into brackets")
        if any(value in values[:place] for place, value in enumerate(values)):
            fail(f"{name}.{key}", "a list of different values", repr(values), "name each value once")
    return {str(key): list(values) for key, values in plain.items()}


def _base(path: Path, base: object) -> dict[str, Any]:
    if isinstance(base, str):
        if "\0" in base or not is_unicode(base):
            fail("base", "the name of a file", repr(base), "name a preset, relative to this file")
        base = convert_numbers(read_yaml(path.parent / base))
    return _mapping(path, base, "base")


def _mapping(path: Path, plain: object, name: str) -> dict[str, Any]:
    if not isinstance(plain, dict):
        fail(name, "a mapping", f"{type(plain).__name__} in {path}", "see docs/experiments.md")
    return {str(key): value for key, value in plain.items()}
