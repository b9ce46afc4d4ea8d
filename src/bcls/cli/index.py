"""``bcls index``: index photos for search, or update an index."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from bcls.cli.arguments import parse
from bcls.search.build import IndexSettings


@dataclass(frozen=True)
class IndexArguments(IndexSettings):
    """Index the photos of folders, zip or tar files, or datasets.

    Run again to add, update and remove photos that changed. Unreadable files are listed and skipped. An interrupted
    run keeps what it has indexed.

    Attributes:
        photos: Folders, zip or tar files with photos, or folders of datasets.
    """

    photos: list[str] = field(default_factory=list)


def main(arguments: Sequence[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("index", IndexArguments, arguments, positional={"photos": "PHOTOS"}, imports=True)
    from bcls.search.build import build_index

    report = build_index(settings.photos, settings)
    for reason in report.skipped.values():
        print(f"skipped: {reason}", file=sys.stderr)
    if settings.json:
        print(json.dumps({"out": settings.out, **asdict(report)}))
        return 0
    changes = f"{report.added} added, {report.updated} updated, {report.removed} removed, {report.unchanged} unchanged"
    print(
        f"{settings.out}: {report.photos} photos and {report.captions} captions ({changes}) in {report.seconds:.0f} s"
    )
    if report.runtime == "torch":
        print("the model ran on torch; a dual or vsepp model that `bcls export` wrote runs faster")
    if report.reasons:
        print("skipped: " + ", ".join(f"{count} {reason}" for reason, count in report.reasons.items()))
    print(f'next: bcls search {settings.out} "a dog on the beach"')
    return 0
