"""What runs left behind: a file for each run, and all of a sweep in ``results.jsonl``."""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bcls._checks import fail
from bcls._files import write_whole
from bcls.experiments.plan import Planned

RUNS, RESULT, RESULTS, SWEEP, RANKS = "runs", "result.json", "results.jsonl", "sweep.json", "ranks"


def run_folder(out: Path, run: Planned) -> Path:
    """Where a run lies."""
    return out / RUNS / run.key


def read_result(out: Path, run: Planned) -> dict[str, Any] | None:
    """What a run left, if it is finished."""
    path = run_folder(out, run) / RESULT
    if not path.is_file():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def write_result(out: Path, run: Planned, result: dict[str, Any]) -> None:
    """Write what a run left; from then on it counts as finished."""
    write_whole(run_folder(out, run) / RESULT, json.dumps(result, indent=1) + "\n")


def write_results(out: Path, runs: Sequence[Planned]) -> int:
    """Write ``results.jsonl`` anew from the finished runs of a plan.

    Args:
        out: Folder of the sweep.
        runs: The plan, trials included.

    Returns:
        How many of the plan are finished.
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
    return len(lines)


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
    try:
        about = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
        lines = [json.loads(line) for line in (folder / RESULTS).read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        fail(str(folder), "whole JSON files", f"a damaged one ({error})", "run the sweep again: finished runs are kept")
    return about, lines


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock, and wait for it; the system lets go of it when the process ends, however it ends."""
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Claim a run's folder for this process; whether nobody else has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".claim").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
