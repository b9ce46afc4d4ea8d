"""``bcls index``: make an index of photos, or bring it up to date."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bcls.cli.arguments import parse
from bcls.search.build import IndexSettings

ABOUT = (
    "Makes an index of the photos in a folder, a zip or tar, or a dataset. Run again, it takes in what was added, "
    "changed and removed since. Files that cannot be read are listed and skipped. What is done is kept when a run is "
    "stopped."
)


@dataclass(frozen=True)
class IndexArguments(IndexSettings):
    """Arguments of ``bcls index``."""

    photos: str = ""
    """Folder, zip or tar with photos, or folder of a dataset."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    settings = parse("index", ABOUT, IndexArguments, arguments, positional={"photos": "PHOTOS"}, imports=True)
    # Here, not above: `--help` need not wait for them.
    from bcls.search.build import build_index

    report = build_index(settings.photos, settings)
    for reason in report.skipped.values():
        print(f"skipped: {reason}", file=sys.stderr)
    if settings.json:
        print(json.dumps({"out": settings.out, **asdict(report)}))
        return 0
    done = f"{report.added} added, {report.updated} updated, {report.removed} removed, {report.unchanged} unchanged"
    print(f"{settings.out}: {report.photos} photos and {report.captions} captions ({done}) in {report.seconds:.0f} s")
    if report.skipped:
        count = len(report.skipped)
        print(f"{count} file{'s' * (count != 1)} could not be read, and {'is' if count == 1 else 'are'} not in it")
    print(f'next: bcls search {settings.out} "a dog on the beach"')
    return 0
