"""``bcls data features``: features of a dataset's pictures.

``bcls data``: import a dataset, check it, count it, extract features.
"""

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bcls._core.errors import check_choice
from bcls.cli.arguments import parse, places
from bcls.data.check import CheckSettings, check_dataset
from bcls.data.dataset import open_dataset
from bcls.data.importers import KINDS, ImportSettings, run_import
from bcls.features.arrays import FeatureSettings


def extract_features(words: list[str]) -> int:
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
    from bcls.data.dataset import open_dataset
    from bcls.features.extraction import extract

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


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    words = list(arguments)
    if not words or words[0] in {"-h", "--help"}:
        print(usage(), end="")
        return 0 if words else 2
    check_choice("data", words[0], _JOBS)
    # A picture above the pixel limit is refused and listed; Pillow's own warning about it would only repeat that.
    from PIL import Image

    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    return _JOBS[words[0]][0](words[1:])


def usage() -> str:
    """What ``bcls data --help`` prints."""
    jobs = "\n".join(f"  {line:<36} {what}" for _, line, what in _JOBS.values())
    return f"usage: bcls data JOB ...\n\nDatasets of images and captions in a folder.\n\njobs:\n{jobs}\n"


def _import(words: list[str]) -> int:
    kinds = "; ".join(f"{kind}: {what}" for kind, (_, what, _) in KINDS.items())
    about = f"Reads images and captions into a dataset folder. Kinds of source: {kinds}."
    (kind, source), flags = places("data", words, ("KIND", "SOURCE"), "data import karpathy dataset_flickr8k.json")
    settings = parse("data import KIND SOURCE", about, ImportSettings, flags)
    imported = run_import(kind, source, settings)
    for note in imported.notes:
        print(f"note: {note}", file=sys.stderr)
    splits = {split: {"images": n, "captions": c} for split, (n, c) in imported.manifest.splits.items()}
    if settings.json:
        print(json.dumps({"out": settings.out, "name": imported.manifest.name, "splits": splits}))
    else:
        from bcls.data.stats import print_splits

        print_splits(imported.manifest)
        print(f"{imported.manifest.name} is in {settings.out}; next: bcls data check {settings.out}")
    return 0


def _check(words: list[str]) -> int:
    about = (
        "Reads every picture, caption and feature of a dataset once, lists what is wrong, and writes quarantine.json, "
        "which training can skip. Exits with 1 where there are problems."
    )
    (folder,), flags = places("data", words, ("DIR",), "data check DIR")
    settings = parse("data check DIR", about, CheckSettings, flags)
    report = check_dataset(folder, settings)
    if settings.json:
        print(json.dumps(report.as_json()))
    else:
        from bcls.data.check import print_report

        print_report(report)
    return 0 if report.is_clean and not (settings.strict and report.findings) else 1


def _stats(words: list[str]) -> int:
    about = "Counts a dataset: captions an image, words a caption, sizes of pictures."
    (folder,), flags = places("data", words, ("DIR",), "data stats DIR")
    settings = parse("data stats DIR", about, StatsSettings, flags)
    from bcls.data.stats import compute_stats, plot_stats

    dataset = open_dataset(folder)
    stats = compute_stats(dataset, sizes=settings.sizes)
    if settings.plot is not None:
        plot_stats(stats, Path(settings.plot), dataset.name)
    if settings.json:
        print(json.dumps({"name": dataset.name, "splits": [one.as_json() for one in stats]}))
    else:
        from bcls.data.stats import print_stats

        print_stats(dataset.name, stats)
    return 0


def _features(words: list[str]) -> int:

    return extract_features(words)


@dataclass(frozen=True)
class StatsSettings:
    """Flags of ``bcls data stats``."""

    sizes: bool = True
    """Read the sizes of the pictures."""
    plot: str | None = None
    """File for a drawing, such as stats.png."""
    json: bool = False
    """Print the numbers as JSON."""


_JOBS: dict[str, tuple[Callable[[list[str]], int], str, str]] = {
    "import": (_import, "import KIND SOURCE --out DIR", "read another layout into a dataset folder"),
    "check": (_check, "check DIR", "read everything once and list what is wrong"),
    "stats": (_stats, "stats DIR", "count captions, words and sizes"),
    "features": (_features, "features DIR", "features of every picture, by a pretrained network"),
}
