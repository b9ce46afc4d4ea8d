"""``bcls demo``: train and compare four losses on synthetic scenes."""

import json
from pathlib import Path

from bcls.cli.arguments import parse
from bcls.experiments.demo_report import DemoSettings


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("demo", DemoSettings, arguments)
    # Imported here, since it imports torch, which `bcls demo --help` does not need.
    from bcls.experiments.demo import run
    from bcls.experiments.demo_report import print_table, summary_json

    runs = run(settings)
    if settings.json:
        print(json.dumps(summary_json(runs)))
    else:
        print_table(runs, Path(settings.out))
    return 0
