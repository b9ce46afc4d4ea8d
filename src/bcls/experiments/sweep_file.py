"""Settings on top of settings: presets, what a file says for all of its rows, and what one row says.

What ``bcls sweep`` can be told beside the file.

A file of experiments: which rows a table has, over which grid, from which seeds, and how settings are searched.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bcls._core.config import check_field_types, read_yaml
from bcls._core.errors import check_choice, check_number, check_whole, fail
from bcls.training.config import FREE_ON_RESUME, TrainConfig, check_config


def merge(settings: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Put changes on top of settings.

    A key is a setting of :class:`bcls.training.TrainConfig`, or one inside a mapping with a dot, ``loss.alpha``. A
    mapping with a ``name``, another loss or another model, takes the place of the old one: its arguments are its own.
    A mapping without one adds to what is there.

    Args:
        settings: What there is; not changed.
        change: What to change.

    Returns:
        New settings.

    Raises:
        ValueError: A dotted key leads into something that is no mapping.

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
    """Short words for a point of a grid.

    Example:
        >>> label({"loss.alpha": 0.2, "batch": 64})
        'alpha=0.2, batch=64'
    """
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())


@dataclass(frozen=True)
class SweepSettings:
    """Settings of ``bcls sweep FILE``."""

    data: str
    """Folder of the dataset."""
    out: str
    """Folder of the sweep: results.jsonl and the runs. The same folder goes on where it was stopped."""
    final: bool = False
    """Also test: figures of the test split and, with --judgements, of human judgements. For the last table only."""
    judgements: str | None = None
    """Folder with ExpertAnnotations.txt and CrowdFlowerAnnotations.txt of Flickr8k."""
    processes: int = 1
    """Processes side by side, for CPUs; on a GPU a few help where NVIDIA's MPS is on, else one is faster."""
    together: int = 1
    """Runs that take turns in one process, step by step: on a GPU, with --graph, 8 small models take little longer than
    one."""
    threads: int | None = None
    """Threads of each process; the cores shared out among them when left out."""
    shard: str | None = None
    """The part of the runs that this machine does, such as 1/4."""
    minutes: float | None = None
    """Stop after so many minutes, with a checkpoint of the run in work."""
    device: str = "auto"
    """auto, cpu or cuda."""
    graph: bool = False
    """Record steps as CUDA graphs, see `bcls train --help`."""
    dry_run: bool = False
    """List the runs with their keys and what is finished, and train nothing."""
    json: bool = False
    """Print the outcome as JSON."""


#: Settings of the place and the machine, which a file must leave out, for they are no part of an experiment.
MACHINE = FREE_ON_RESUME | {"graph", "seed"}
#: So that a number with some zeros too many fills no memory.
_MOST_SEEDS = 10_000
#: The paper's tables.
PAPER_TABLES = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
#: What a row may say beside settings.
_ROW = ("base", "noise", "paper", "space", "ensemble")


@dataclass(frozen=True)
class Search:
    """How the settings of each row are found before it is repeated."""

    budget: int
    """Settings that are tried for each row: the same number for all."""
    measure: str = "rsum"
    """Figure on the validation split that decides; the larger the better."""
    method: str = "random"
    """random draws settings from the grid without repeats, grid takes them in order."""
    seed: int = 0
    """Of the draws."""
    seeds: tuple[int, ...] = (1,)
    """Seeds of each setting that is tried."""
    space: dict[str, list[Any]] = field(default_factory=dict)
    """Values of every setting that is searched, for all rows."""


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    name: str
    """What it is called."""
    settings: dict[str, Any]
    """Settings of :class:`bcls.training.TrainConfig` that differ from its defaults."""
    noise: float = 0.0
    """Standard deviation of what is added to the labels in training; 0 outside of experiments with noise."""
    paper: dict[str, str] = field(default_factory=dict)
    """The rows of the paper's tables that stand beside it, by the table's number."""
    space: dict[str, list[Any]] = field(default_factory=dict)
    """What a search tries for this row beside the search's own space."""
    ensemble: tuple[str, ...] = ()
    """Rows whose scores are averaged; such a row is not trained."""


@dataclass(frozen=True)
class Sweep:
    """A file of experiments, read; see :func:`read_sweep`."""

    name: str
    """What it is called."""
    rows: tuple[Row, ...]
    """Rows of the table."""
    seeds: tuple[int, ...] = (1,)
    """Each row is trained from each of these."""
    about: str = ""
    """What it is for, in a sentence."""
    grid: dict[str, list[Any]] = field(default_factory=dict)
    """Values by dotted key; each row is trained at each point."""
    search: Search | None = None
    """How settings are found; without it they are those of the file."""
    paper: tuple[str, ...] = ()
    """Numbers of the paper's tables that it answers to, such as V."""
    columns: str | None = None
    """Which of the table's datasets stands beside it, such as Flickr30K."""
    test_split: str = "test"
    """Split that `--final` looks at."""
    folds: int = 1
    """Above 1: also the recalls of the test split averaged over so many folds."""
    eccv: bool = False
    """Also the figures of ECCV Caption on the test split."""
    claims: bool = True
    """Whether its rows are evidence for the paper's claims; not so for variants that the paper does not have."""
    judged_choice: Path | None = None
    """List of the judged images that settings may be chosen on; the others are for reporting."""
    scenes: int | None = None
    """Draw so many scenes where the data folder is empty."""


def read_sweep(path: str | Path) -> Sweep:
    """Read a file of experiments.

    Args:
        path: A YAML file. ``base`` is a preset, named relative to the file, or a mapping of settings; ``settings`` and
            then each of ``runs`` go on top of it, see :func:`bcls.experiments.sweep_file.merge`.

    Returns:
        The experiments, every setting checked that can be checked without the data.

    Raises:
        ValueError: A key is unknown or its value wrong; the message names the file and the key.
        OSError: The file or a preset cannot be read.
    """
    path = Path(path)
    plain = _mapping(path, _load(path), str(path))
    try:
        return _sweep(path, plain)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _sweep(path: Path, plain: dict[str, Any]) -> Sweep:
    known = {one.name for one in fields(Sweep)} - {"rows"} | {"base", "settings", "runs"}
    for key in plain:
        check_choice("key", key, sorted(known))
    common = merge(_base(path, plain.get("base", {})), _mapping(path, plain.get("settings", {}), "settings"))
    search = _search(path, plain["search"]) if plain.get("search") is not None else None
    runs = _mapping(path, plain.get("runs", {path.stem: {}}), "runs")
    tables = _tables(plain.get("paper", []))
    rows = tuple(_row(path, common, str(name), change or {}, tables) for name, change in runs.items())
    grid = _lists("grid", plain.get("grid", {}))
    _check_rows(rows, grid, search)
    choice = plain.get("judged_choice")
    given = ("about", "columns", "test_split", "folds", "eccv", "claims", "scenes")
    simple: dict[str, Any] = {key: plain[key] for key in given if key in plain}
    check_field_types(simple, Sweep)
    check_whole("folds", simple.get("folds", 1), least=1)
    check_whole("scenes", simple.get("scenes", 20), least=20)
    return Sweep(
        name=str(plain.get("name", path.stem)),
        rows=rows,
        seeds=_seeds("seeds", plain.get("seeds", [1])),
        grid=grid,
        search=search,
        paper=tables,
        judged_choice=None if choice is None else path.parent / str(choice),
        **simple,
    )


def _tables(plain: object) -> tuple[str, ...]:
    listed = plain if isinstance(plain, list) else [plain]
    return tuple(check_choice("paper", table, PAPER_TABLES) for table in listed)


def _row(path: Path, common: dict[str, Any], name: str, plain: dict[str, Any], tables: tuple[str, ...]) -> Row:
    change = _mapping(path, plain, f"runs.{name}")
    aside = {key: change[key] for key in _ROW if key in change}
    start = common if "base" not in aside else merge(common, _base(path, aside["base"]))
    settings = merge(start, {key: value for key, value in change.items() if key not in _ROW})
    ensemble = aside.get("ensemble", [])
    if not isinstance(ensemble, list) or len(ensemble) == 1:
        fail(f"runs.{name}.ensemble", "a list of two rows or more", repr(ensemble), "name rows of this file")
    return Row(
        name=name,
        settings=settings,
        noise=check_number(f"runs.{name}.noise", aside.get("noise", 0.0), "0 for none", low=0),
        paper=_paper_rows(name, aside.get("paper", {}), tables),
        space=_lists(f"runs.{name}.space", aside.get("space", {})),
        ensemble=tuple(str(one) for one in ensemble),
    )


def _paper_rows(name: str, plain: object, tables: tuple[str, ...]) -> dict[str, str]:
    """Names of the paper's rows by table; one name is meant for every table."""
    named = plain if isinstance(plain, dict) else dict.fromkeys(tables, plain)
    for table in named:
        check_choice(f"runs.{name}.paper", table, tables)
    return {str(table): str(row) for table, row in named.items()}


def _check_rows(rows: tuple[Row, ...], grid: dict[str, list[Any]], search: Search | None) -> None:
    trained = [row.name for row in rows if not row.ensemble]
    if not trained:
        fail("runs", "at least one row that is trained", "none", "add one, or leave `runs` out")
    for row in rows:
        for member in row.ensemble:
            check_choice(f"runs.{row.name}.ensemble", member, trained)
        if row.space and search is None:
            fail(f"runs.{row.name}.space", "it with `search`", "no `search`", "add `search: {budget: 8}`")
        check_settings(row.settings)
        for key, values in {**grid, **(search.space if search else {}), **row.space}.items():
            if row.ensemble:
                continue
            for value in values:
                check_settings(merge(row.settings, {key: value}))
    if search is not None and grid:
        fail("grid", "either a grid or a search", "both", "a search has its grid in `search.space`")


def check_settings(settings: Mapping[str, Any]) -> TrainConfig:
    """Check the settings of a run as far as that goes without the data.

    Raises:
        ValueError: One is unknown or out of its range.
    """
    for key in settings:
        check_choice("setting", key, sorted({one.name for one in fields(TrainConfig)} - MACHINE))
    config = TrainConfig(**settings)
    check_config(config)
    if config.val_split is None:
        fail("val_split", "a split to choose the checkpoint on", "none", "name one: the test split is for the end")
    return config


def _search(path: Path, plain: object) -> Search:
    given = _mapping(path, plain, "search")
    for key in given:
        check_choice("search", key, [one.name for one in fields(Search)])
    if "budget" not in given:
        fail("search.budget", "how many settings are tried for each row", "none", "add it, such as 8")
    simple = {key: value for key, value in given.items() if key not in {"space", "seeds"}}
    check_field_types(simple, Search, "search.")
    search = Search(
        **simple,
        space=_lists("search.space", given.get("space", {})),
        seeds=_seeds("search.seeds", given.get("seeds", [1])),
    )
    check_whole("search.budget", search.budget, least=1)
    check_whole("search.seed", search.seed, least=0)
    check_choice("search.method", search.method, ("random", "grid"))
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
    return {str(key): list(values) for key, values in plain.items()}


def _base(path: Path, base: object) -> dict[str, Any]:
    if isinstance(base, str):
        place = path.parent / base
        try:
            place.stat()
        except ValueError:
            fail("base", "the name of a file", repr(base), "name a preset beside this one")
        base = _load(place)
    return _mapping(path, base, "base")


def _load(path: Path) -> object:
    from bcls.training.optimization import numbers

    converted: object = numbers(read_yaml(path))
    return converted


def _mapping(path: Path, plain: object, name: str) -> dict[str, Any]:
    if not isinstance(plain, dict):
        fail(name, "a mapping", f"{type(plain).__name__} in {path}", "see docs/experiments.md")
    return {str(key): value for key, value in plain.items()}
