"""``bcls sweep``: train and evaluate each configuration of a file with each seed."""

import json
import sys
from dataclasses import asdict, dataclass

from bcls.cli.arguments import parse
from bcls.experiments.sweep_file import SweepSettings


@dataclass(frozen=True)
class SweepArguments(SweepSettings):
    """Train and evaluate each configuration of a YAML file with each seed (see configs/paper and configs/flickr8k).

    A file has a grid, named configurations, or searches with the same budget for each. Run again to continue:
    finished runs are recognized by their settings. Only --final evaluates the test split and human judgements.

    Attributes:
        file: YAML file that lists configurations, seeds and searches.
    """

    file: str = ""


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`.

    Returns:
        0, or 1 if a run diverged.
    """
    settings = parse("sweep", SweepArguments, arguments, positional={"file": "FILE"}, imports=True)
    from bcls.experiments.sweep import list_runs, run_sweep

    if settings.dry_run:
        rows = list_runs(settings.file, settings)
        print(json.dumps(rows) if settings.json else "\n".join(_line(row) for row in rows))
        return 0
    outcome = run_sweep(settings.file, settings)
    if settings.json:
        print(json.dumps(asdict(outcome)))
    else:
        results = f"; results in {settings.out}/results.jsonl" if outcome.finished else ""
        print(f"{outcome.finished} of {outcome.planned} runs are finished{results}")
        for name, point in outcome.chosen.items():
            values = ", ".join(f"{key} {value}" for key, value in point.items())
            print(f"chosen for {name}: {values or 'no changes'}")
    if outcome.spent:
        print("the time budget is used up: run the same command to continue", file=sys.stderr)
    elif outcome.searching:
        hint = "run the other shards, then the same command without --shard"
        print(f"the search is not finished: {hint}", file=sys.stderr)
    for name in outcome.failed:
        print(f"diverged: {name}", file=sys.stderr)
    return 1 if outcome.failed else 0


def _line(row: dict[str, object]) -> str:
    state = "done" if row["finished"] else "open"
    return f"{row['key']}  {state}  {row['phase']:<5}  seed {row['seed']}  {row['name']}"
