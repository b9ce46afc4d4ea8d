"""What runs left behind: a file for each run, and all of a sweep in ``results.jsonl``.

``sweep.json``: what a sweep is, for its report and for whoever goes on with it.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bcls._core.config import Shape, check_shape
from bcls._core.errors import fail
from bcls._core.files import take, write_whole
from bcls.experiments.plan import Planned, plan_trials, space_of, trials
from bcls.experiments.sweep_file import Sweep, SweepSettings

RUNS, RESULT, RESULTS, SWEEP, RANKS = "runs", "result.json", "results.jsonl", "sweep.json", "ranks"
_FIGURES: Shape = {"rsum": float, str: float}
#: What is used of ``sweep.json``, of a run's result, and of a line of ``results.jsonl`` besides.
_ABOUT: Shape = {
    "name": str,
    "about": str,
    "dataset": str,
    "captions": int,
    "rows": [str],
    "seeds": [int],
    "file": str,
    "columns?": str | None,
    "claims?": bool,
    "spread?": float,
    "search?": {
        "measure": str,
        "method": str,
        "spaces": {str: {str: list}},
        "sizes": {str: int},
        "tried": {str: int},
        "chosen": {str: dict},
        "keys?": {str: list},
    },
}
_RESULT: Shape = {
    "validation": _FIGURES,
    "test?": {str: float},
    "trial?": {str: float},
    "history?": [{"epoch": int, str: float}],
    "seconds?": float,
}
_LINE: Shape = {
    "row": str,
    "name": str,
    "phase": str,
    "seed": int,
    "point": {str: object},  # a number becomes a place on an axis
    "noise": float,
    "ensemble": [str],
    "key": str,
    "dataset": str,
    "settings": {"model": {"name": str}, "loss": {"name": str, "alpha?": float}},
    "paper?": {str: str},
    "revision?": str | None,
}
_AGAIN = "run the sweep again: finished runs are kept"


def run_folder(out: Path, run: Planned) -> Path:
    """Where a run lies."""
    return out / RUNS / run.key


def read_result(out: Path, run: Planned) -> dict[str, Any] | None:
    """What a run left, if it is finished.

    Raises:
        ValueError: The file is damaged; the message names it.
    """
    path = run_folder(out, run) / RESULT
    if not path.is_file():
        return None
    return _finished(str(path), read_object(str(path), path.read_bytes(), {}, "remove it: the run is done again"))


def write_result(out: Path, run: Planned, result: dict[str, Any]) -> None:
    """Write what a run left; from then on it counts as finished."""
    write_whole(run_folder(out, run) / RESULT, json.dumps(result, indent=1) + "\n")


def write_results(out: Path, runs: Sequence[Planned]) -> None:
    """Write ``results.jsonl`` anew from the finished runs of a plan.

    Args:
        out: Folder of the sweep.
        runs: The plan, trials included.
    """
    with held(out / ".results.lock"):
        lines = []
        for run in runs:
            result = read_result(out, run)
            if result is not None:
                about = {
                    "row": run.row,
                    "name": run.name,
                    "phase": run.phase,
                    "seed": run.seed,
                    "point": run.point,
                    "noise": run.noise,
                    "paper": run.paper,
                    "ensemble": [member.row for member in run.members],
                    "key": run.key,
                }
                lines.append(json.dumps({**about, **result, "settings": run.settings}) + "\n")
        write_whole(out / RESULTS, "".join(lines))


def read_about(folder: Path) -> dict[str, Any]:
    """Read what a sweep is, ``sweep.json``.

    Raises:
        ValueError: The file is damaged; the message names it.
    """
    path = folder / SWEEP
    about = read_object(str(path), path.read_bytes(), _ABOUT, _AGAIN)
    search = about.get("search") or {"spaces": {}}
    for row, counts in ((row, counts) for row in search["spaces"] for counts in ("sizes", "tried")):
        check_shape(f"{path}, search, {counts}", search[counts], {row: int}, _AGAIN)
    return about


def read_results(folder: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read a finished or unfinished sweep.

    Args:
        folder: With ``sweep.json`` and ``results.jsonl``; the runs themselves need not be there.

    Returns:
        What the sweep is, and a mapping for each finished run.

    Raises:
        ValueError: The folder holds no sweep, or a file of it is damaged.
    """
    folder = Path(folder)
    for name in (SWEEP, RESULTS):
        if not (folder / name).is_file():
            fail(str(folder), f"the folder of a sweep, with {name}", "none", "run `bcls sweep FILE --out DIR` first")
    path = folder / RESULTS
    # Not splitlines(), which would also end a line at characters that JSON leaves as they are.
    content = path.read_bytes().removesuffix(b"\n")
    numbered = enumerate(content.split(b"\n") if content else [], 1)
    lines = [(f"{path}, line {number}", line) for number, line in numbered]
    return read_about(folder), [_finished(where, read_object(where, line, _LINE, _AGAIN)) for where, line in lines]


def read_object(where: str, content: bytes, shape: Shape, remedy: str) -> dict[str, Any]:
    """Read one JSON object and check what is used of it.

    Args:
        where: The file, and the line where it has several.
        content: The JSON.
        shape: What it must have, see :func:`bcls._core.config.check_shape`.
        remedy: What to do about a damaged one.

    Raises:
        ValueError: It is no such object; the message begins with ``where``.
    """
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        fail(where, "a JSON object", f"a damaged one ({error})", remedy)
    check_shape(where, found, shape, remedy)
    return dict(found)


def _finished(where: str, result: dict[str, Any]) -> dict[str, Any]:
    """Check that a run has figures, or a reason why not."""
    if "failed" not in result:
        check_shape(where, result, _RESULT, "remove it: the run is done again")
    return result


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock, and wait for it; the system lets go of it when the process ends, however it ends."""
    with path.open("a+", encoding="utf-8") as file:
        take(file, wait=True)
        yield


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Claim a run's folder for this process; whether nobody else has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".claim").open("a+", encoding="utf-8") as file:
        yield take(file) is None


def describe(
    out: Path, sweep: Sweep, file: str | Path, settings: SweepSettings, chosen: dict[str, dict[str, Any]]
) -> None:
    """Write what the sweep is, for the report; and refuse a folder that holds a sweep over other data."""
    from bcls.data.dataset import open_dataset

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
    from bcls.experiments.run import Shared
    from bcls.labels.alpha import caption_spread
    from bcls.training.config import TrainConfig

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
