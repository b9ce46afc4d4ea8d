"""Files of a sweep folder: the result of each run, all results in ``results.jsonl``, metadata in ``sweep.json``."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from bcls._core.config import Shape, check_shape
from bcls._core.errors import fail
from bcls._core.files import write_whole
from bcls.experiments.plan import PlannedRun, plan_trials, search_space, trials
from bcls.experiments.sweep_file import Sweep

if TYPE_CHECKING:
    from bcls.data.dataset import Dataset

RUNS, RESULT, RESULTS, SWEEP, RANKS = "runs", "result.json", "results.jsonl", "sweep.json", "ranks"

# What is read from `sweep.json`, from the result of a run, and from a line of `results.jsonl` in addition.
_SEARCH: dict[Any, Any] = {"measure": str, "method": str, "spaces": {str: {str: list}}, "chosen": {str: dict}}
_SEARCH |= {"sizes": {str: int}, "tried": {str: int}, "keys?": {str: list}}
_METADATA: dict[Any, Any] = {"name": str, "about": str, "file": str, "dataset": str, "captions": int, "rows": [str]}
_METADATA |= {"seeds": [int], "columns?": str | None, "claims?": bool, "spread?": float, "search?": _SEARCH}
_RESULT: dict[Any, Any] = {"validation": {"rsum": float, str: float}, "test?": {str: float}, "trial?": {str: float}}
_RESULT |= {"history?": [{"epoch": int, str: float}], "seconds?": float}
_LINE: dict[Any, Any] = {"row": str, "name": str, "phase": str, "seed": int, "point": {str: object}, "noise": float}
_LINE |= {"ensemble": [str], "key": str, "dataset": str, "paper?": {str: str}, "revision?": str | None}
_LINE |= {"settings": {"model": {"name": str}, "loss": {"name": str, "alpha?": float}}}
_RUN_SWEEP = "run the sweep again: finished runs are kept"
_REMOVE = "remove it: the run is then done again"


def read_results(folder: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read the results of a finished or unfinished sweep.

    Args:
        folder: With ``sweep.json`` and ``results.jsonl``; the runs themselves are not needed.

    Returns:
        The metadata of the sweep, and a mapping for each finished run.

    Raises:
        ValueError: If the folder holds no sweep, or one of its files is damaged.
    """
    folder = Path(folder)
    for name in (SWEEP, RESULTS):
        if not (folder / name).is_file():
            fail(str(folder), f"the folder of a sweep, with {name}", "none", "run `bcls sweep FILE --out DIR` first")
    path = folder / RESULTS
    # Not splitlines(), which also splits at characters that are allowed inside of JSON strings.
    content = path.read_bytes().removesuffix(b"\n")
    lines = []
    for number, line in enumerate(content.split(b"\n") if content else [], 1):
        where = f"{path}, line {number}"
        lines.append(_check_result(where, read_object(where, line, _LINE, _RUN_SWEEP)))
    return read_metadata(folder), lines


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read the metadata of a sweep, ``sweep.json``.

    Raises:
        ValueError: If the file is damaged; the message names it.
    """
    path = folder / SWEEP
    metadata = read_object(str(path), path.read_bytes(), _METADATA, _RUN_SWEEP)
    search = metadata.get("search") or {"spaces": {}}
    for row in search["spaces"]:
        for counts in ("sizes", "tried"):
            check_shape(f"{path}, search, {counts}", search[counts], {row: int}, _RUN_SWEEP)
    return metadata


def read_object(where: str, content: bytes, shape: Shape, hint: str) -> dict[str, Any]:
    """Read a JSON object and check the parts that are used.

    Args:
        where: The file, and the line if it has several objects.
        content: The JSON.
        shape: Required content, see :func:`bcls._core.config.check_shape`.
        hint: What to do if it is damaged.

    Raises:
        ValueError: If it is not such an object; the message begins with ``where``.
    """
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        fail(where, "a JSON object", f"a damaged one ({error})", hint)
    check_shape(where, found, shape, hint)
    return dict(found)


def run_folder(out: Path, run: PlannedRun) -> Path:
    """The folder of a run."""
    return out / RUNS / run.key


def read_result(out: Path, run: PlannedRun) -> dict[str, Any] | None:
    """Read the result of a run; ``None`` if it is not finished.

    Raises:
        ValueError: If the file is damaged; the message names it.
    """
    path = run_folder(out, run) / RESULT
    if not path.is_file():
        return None
    return _check_result(str(path), read_object(str(path), path.read_bytes(), {}, _REMOVE))


def write_result(out: Path, run: PlannedRun, result: dict[str, Any]) -> None:
    """Write the result of a run, which marks it as finished."""
    write_whole(run_folder(out, run) / RESULT, json.dumps(result, indent=1) + "\n")


def write_results(out: Path, runs: Sequence[PlannedRun]) -> None:
    """Write ``results.jsonl`` from the finished runs of a plan, trials included."""
    lines = []
    with FileLock(out / ".results.lock"):
        for run in runs:
            result = read_result(out, run)
            if result is not None:
                columns = {key: getattr(run, key) for key in ("name", "phase", "seed", "point", "noise", "paper")}
                about = {"ensemble": [member.configuration for member in run.members], "key": run.key}
                line = {"row": run.configuration, **columns, **about, **result, "settings": run.settings}
                lines.append(json.dumps(line) + "\n")
        write_whole(out / RESULTS, "".join(lines))


def write_metadata(
    out: Path, sweep: Sweep, file: str | Path, dataset: "Dataset", chosen: dict[str, dict[str, Any]]
) -> None:
    """Write ``sweep.json``.

    Raises:
        ValueError: If the folder holds a sweep over other data.
    """
    kept = ("name", "about", "paper", "columns", "test_split", "claims", "grid", "seeds")
    metadata: dict[str, Any] = {
        **{key: getattr(sweep, key) for key in kept},
        "dataset": dataset.name,
        "captions": len(dataset.captions),
        "rows": [one.name for one in sweep.configurations],
        "file": Path(file).name,
    }
    if sweep.search is not None:
        searched = [one for one in sweep.configurations if not one.ensemble]
        spaces = {one.name: search_space(sweep, one) for one in searched}
        metadata["search"] = {
            **asdict(sweep.search),
            "spaces": spaces,
            "sizes": {name: math.prod(len(values) for values in space.values()) for name, space in spaces.items()},
            "tried": {one.name: len(trials(sweep, one)) for one in searched},
            "keys": _trial_keys(sweep),
            "chosen": chosen,
        }
    path = out / SWEEP
    before = read_metadata(out) if path.is_file() else metadata
    for key in ("dataset", "captions"):
        if before[key] != metadata[key]:
            expected = f"the data of the sweep in {out}, {key} {before[key]}"
            fail("--data", expected, metadata[key], "use another --out")
    write_whole(path, json.dumps(metadata, indent=1) + "\n")


def add_metadata(out: Path, **values: Any) -> None:
    """Add values to ``sweep.json``."""
    write_whole(out / SWEEP, json.dumps({**read_metadata(out), **values}, indent=1) + "\n")


def previous_choices(out: Path, sweep: Sweep) -> dict[str, dict[str, Any]]:
    """The earlier choices of the search in a folder, for configurations whose trials have not changed.

    A choice is final: the chosen run is evaluated afterwards, possibly after training it again on another machine,
    and its metrics may change slightly. The tested settings must not change with them.
    """
    if sweep.search is None or not (out / SWEEP).is_file():
        return {}
    before = read_metadata(out).get("search", {})
    if before.get("measure") != sweep.search.measure:
        return {}
    keys, known = _trial_keys(sweep), before.get("keys", {})
    return {
        one.name: before["chosen"][one.name]
        for one in sweep.configurations
        if one.name in before["chosen"]
        and before["spaces"].get(one.name) == search_space(sweep, one)
        and known.get(one.name) == keys[one.name]
    }


def _check_result(where: str, result: dict[str, Any]) -> dict[str, Any]:
    """Check that a result has metrics, or the reason of a failure."""
    if "failed" not in result:
        check_shape(where, result, _RESULT, _REMOVE)
    return result


def _trial_keys(sweep: Sweep) -> dict[str, list[str]]:
    """The keys of the trials of each configuration."""
    keys: dict[str, list[str]] = {}
    for trial in plan_trials(sweep):
        keys.setdefault(trial.configuration, []).append(trial.key)
    return keys
