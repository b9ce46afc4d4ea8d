"""``bcls index``: index photos for search, or update an index."""

import json
import sys
from dataclasses import asdict, dataclass, field

from bcls._core.errors import quoted
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


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("index", IndexArguments, arguments, positional={"photos": "PHOTOS"}, imports=True)
    from bcls.search.build import build_index

    done = build_index(settings.photos, settings)
    for reason in done.skipped.values():
        print(f"skipped: {reason}", file=sys.stderr)
    if settings.json:
        print(json.dumps({"out": settings.out, **asdict(done)}))
        return 0
    changes = f"{done.added} added, {done.updated} updated, {done.removed} removed, {done.unchanged} unchanged"
    print(f"{settings.out}: {done.photos} photos and {done.captions} captions ({changes}) in {done.seconds:.0f} s")
    if done.runtime == "torch":
        print("the model ran on torch; a dual or vsepp model that `bcls export` wrote runs faster")
    if done.reasons:
        print("skipped: " + ", ".join(f"{count} {reason}" for reason, count in done.reasons.items()))
    print(f'next: bcls search {quoted(settings.out)} "a dog on the beach"')
    return 0
