"""``bcls data features``: features of a dataset's pictures."""

import json
import sys
from pathlib import Path

from bcls.cli.arguments import parse
from bcls.cli.places import places
from bcls.features.settings import FeatureSettings


def main(words: list[str]) -> int:
    """Run the job; ``words`` stand after ``bcls data features``.

    Returns:
        0 when the features are there, 1 when pictures cannot be read and are not in quarantine.
    """
    about = (
        "Extracts features of every picture with a pretrained network, and enters them in the dataset. Run again to go "
        "on after a break. Exits with 1 where pictures cannot be read; all others are done then."
    )
    (folder,), flags = places("data", words, ("DIR",), "data features DIR")
    settings = parse("data features DIR", about, FeatureSettings, flags)
    from bcls.data import open_dataset
    from bcls.features import extract

    images = None if settings.images is None else Path(settings.images).resolve()
    # Processes that start elsewhere read the same files.
    done = extract(open_dataset(Path(folder).resolve(), images=images), settings)
    for image_id, reason in done.unreadable.items():
        print(f"unreadable: {image_id}: {reason}", file=sys.stderr)
    if settings.json:
        content = {"name": done.name, "folder": str(done.folder), "shapes": done.shapes, "already": done.already}
        print(json.dumps({**content, "views": done.views, "unreadable": done.unreadable, "zero_rows": done.zero_rows}))
    else:
        for split, shape in done.shapes.items():
            note = f", {done.views} rows a picture" if done.views > 1 else ""
            note += " (finished before)" if split in done.already else ""
            print(f"{split}: {' x '.join(map(str, shape))}{note}")
        if not done.unreadable:
            print(f"{done.name} is in {done.folder}")
    if done.unreadable:
        many = f"{len(done.unreadable)} picture{'s' * (len(done.unreadable) != 1)} cannot be read"
        print(f"{many}; mend, or run `bcls data check {folder}` to skip them, then run this again", file=sys.stderr)
        return 1
    return 0
