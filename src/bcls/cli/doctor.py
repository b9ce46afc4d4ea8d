"""``bcls doctor``: what is installed and whether it works."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from bcls.cli.arguments import parse

ABOUT = (
    "Looks at versions, devices, extras, packaged weights and disks, and tries the main parts out; takes seconds. The "
    "output can be pasted into a bug report: names of people, machines and folders are left out. Exits with 1 where "
    "there are problems; optional parts that are not installed are none."
)


@dataclass(frozen=True)
class DoctorSettings:
    """Settings of ``bcls doctor``."""

    json: bool = False
    """Print the report as JSON."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    settings = parse("doctor", ABOUT, DoctorSettings, arguments)
    # Here, not above: `--help` need not wait for it.
    from bcls.doctor import examine

    report = examine()
    print(json.dumps(report.as_json(), indent=1) if settings.json else report.as_text())
    return 1 if report.problems else 0
