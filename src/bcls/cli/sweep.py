"""``bcls sweep FILE``: many runs from one file, and what came of them in one place."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bcls.cli.arguments import parse
from bcls.experiments.sweep_file import SweepSettings

ABOUT = (
    "Trains and judges every row of a table from every seed, as a YAML file says (configs/paper, configs/flickr8k): "
    "grids, named rows, searches with the same budget for each row. Call it again to go on: finished runs are known by "
    "their settings. Only --final looks at the test split and at human judgements."
)


@dataclass(frozen=True)
class SweepArguments(SweepSettings):
    """Arguments of ``bcls sweep``."""

    file: str = ""
    """YAML file that lists configurations, seeds and searches."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`.

    Returns:
        0 when all that was asked for is done or the time is spent, 1 when a run diverged.
    """
    settings = parse("sweep", ABOUT, SweepArguments, arguments, positional={"file": "FILE"}, imports=True)
    from bcls.experiments.sweep import list_runs, run_sweep

    if settings.dry_run:
        rows = list_runs(settings.file, settings)
        print(json.dumps(rows) if settings.json else "\n".join(_line(row) for row in rows))
        return 0
    outcome = run_sweep(settings.file, settings)
    if settings.json:
        print(json.dumps(asdict(outcome)))
    else:
        print(f"{outcome.finished} of {outcome.planned} runs are finished; they are in {settings.out}/results.jsonl")
        for row, point in outcome.chosen.items():
            print(f"chosen for {row}: " + (", ".join(f"{key} {value}" for key, value in point.items()) or "as it is"))
    if outcome.spent:
        print("the time is spent: the same command goes on", file=sys.stderr)
    elif outcome.searching:
        print(
            "the search is not finished: run the other shards, then the same command without --shard", file=sys.stderr
        )
    for name in outcome.failed:
        print(f"diverged: {name}", file=sys.stderr)
    return 1 if outcome.failed else 0


def _line(row: dict[str, object]) -> str:
    return (
        f"{row['key']}  {'done' if row['finished'] else 'open'}  {row['phase']:<5}  seed {row['seed']}  {row['name']}"
    )
