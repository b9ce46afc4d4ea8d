"""``sweep.json``: what a sweep is, for its report and for whoever goes on with it."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bcls._checks import fail
from bcls._files import write_whole
from bcls.experiments.file import Sweep
from bcls.experiments.plan import Planned, plan_trials, space_of, trials
from bcls.experiments.results import SWEEP, read_about, read_result
from bcls.experiments.settings import SweepSettings


def describe(
    out: Path, sweep: Sweep, file: str | Path, settings: SweepSettings, chosen: dict[str, dict[str, Any]]
) -> None:
    """Write what the sweep is, for the report; and refuse a folder that holds a sweep over other data."""
    from bcls.data import open_dataset

    dataset = open_dataset(settings.data)
    about: dict[str, Any] = {
        "name": sweep.name,
        "about": sweep.about,
        "dataset": dataset.name,
        "captions": len(dataset.captions),
        "paper": list(sweep.paper),
        "columns": sweep.columns,
        "test_split": sweep.test_split,
        "claims": sweep.claims,
        "rows": [row.name for row in sweep.rows],
        "grid": sweep.grid,
        "seeds": list(sweep.seeds),
        "file": Path(file).name,
    }
    if sweep.search is not None:
        spaces = {row.name: space_of(sweep, row) for row in sweep.rows if not row.ensemble}
        about["search"] = {
            **asdict(sweep.search),
            "spaces": spaces,
            "sizes": {name: _size(space) for name, space in spaces.items()},
            "tried": {row.name: len(trials(sweep, row)) for row in sweep.rows if not row.ensemble},
            "keys": _keys(sweep),
            "chosen": chosen,
        }
    path = out / SWEEP
    if path.is_file():
        before = read_about(out)
        for key in ("dataset", "captions"):
            if before[key] != about[key]:
                fail("--data", f"the data of the sweep in {out}, {key} {before[key]}", about[key], "use another --out")
    write_whole(path, json.dumps(about, indent=1) + "\n")


def chosen_before(out: Path, sweep: Sweep) -> dict[str, dict[str, Any]]:
    """What the search in a folder found before, of the rows whose trials are the same now.

    A choice stands once it is made: the chosen run is then judged, perhaps trained again on another machine, and its
    figures may move a little. What was tested must not change with them.
    """
    if sweep.search is None or not (out / SWEEP).is_file():
        return {}
    before = read_about(out).get("search", {})
    if before.get("measure") != sweep.search.measure:
        return {}
    keys = _keys(sweep)
    found: dict[str, dict[str, Any]] = before.get("chosen", {})
    return {
        row.name: found[row.name]
        for row in sweep.rows
        if row.name in found
        and before["spaces"].get(row.name) == space_of(sweep, row)
        and before.get("keys", {}).get(row.name) == keys[row.name]
    }


def _keys(sweep: Sweep) -> dict[str, list[str]]:
    """Keys of every row's trials."""
    keys: dict[str, list[str]] = {row.name: [] for row in sweep.rows if not row.ensemble}
    for trial in plan_trials(sweep):
        keys[trial.row].append(trial.key)
    return keys


def add_spread(out: Path, settings: SweepSettings, runs: Sequence[Planned]) -> None:
    """Add how far similarities between captions of one image lie apart: what the paper sets alpha to."""
    about = read_about(out)
    encoder = runs[0].settings["labels"]
    if encoder == "none" or not any(read_result(out, run) for run in runs):
        return
    from bcls.experiments.shared import Shared
    from bcls.labels.alpha import caption_spread
    from bcls.training import TrainConfig

    shared = Shared(settings.data, out / "shared")
    train = shared.split(runs[0].settings["train_split"], TrainConfig())
    counts = Counter(train.image_of_caption.tolist())
    if max(counts.values()) < 2:
        return
    spread = caption_spread(shared.captions(train, encoder).vectors, train.image_of_caption)
    write_whole(out / SWEEP, json.dumps({**about, "spread": spread.alpha}, indent=1) + "\n")


def _size(space: dict[str, list[Any]]) -> int:
    size = 1
    for values in space.values():
        size *= len(values)
    return size
