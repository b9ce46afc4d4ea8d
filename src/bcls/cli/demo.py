"""``bcls demo``: the whole job end to end on drawn scenes."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bcls.cli.arguments import parse
from bcls.experiments.demo_results import DemoSettings

ABOUT = (
    "Draws scenes with captions, labels every pair with MiniLM, trains a small two-tower model under Triplet-HN, "
    "Triplet-SN and BCLS with the same budget, prints a table and writes a report."
)


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    settings = parse("demo", ABOUT, DemoSettings, arguments)
    # Here, not above: they bring torch, and `bcls demo --help` need not wait for it.
    from bcls.experiments.demo import run
    from bcls.experiments.demo_results import summary

    runs = run(settings)
    if settings.json:
        figures = {loss: {key: asdict(spread) for key, spread in row.items()} for loss, row in summary(runs).items()}
        print(json.dumps(figures))
    else:
        from bcls.experiments.demo import print_table

        print_table(runs, Path(settings.out))
    return 0
