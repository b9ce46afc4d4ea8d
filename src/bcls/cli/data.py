"""``bcls data features``: features of a dataset's pictures.

``bcls data``: import a dataset, check it, count it, extract features.
"""

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bcls.cli.arguments import Subcommands, parse, run_subcommand
from bcls.data.check import CheckSettings, check_dataset
from bcls.data.dataset import open_dataset
from bcls.data.importers import KINDS, ImportSettings, run_import
from bcls.features.extraction import FeatureSettings


@dataclass(frozen=True)
class FeatureArguments(FeatureSettings):
    """Arguments of ``bcls data features``."""

    folder: str = ""
    """Folder of the dataset."""


@dataclass(frozen=True)
class ImportArguments(ImportSettings):
    """Arguments of ``bcls data import``."""

    kind: str = ""
    """Layout of the source."""
    source: str = ""
    """File or folder to import."""


@dataclass(frozen=True)
class CheckArguments(CheckSettings):
    """Arguments of ``bcls data check``."""

    folder: str = ""
    """Folder of the dataset."""


def extract_features(arguments: Sequence[str]) -> int:
    """Run the job; ``words`` stand after ``bcls data features``.

    Returns:
        0 when the features are there, 1 when pictures cannot be read and are not in quarantine.
    """
    about = (
        "Extracts features of every picture with a pretrained network, and enters them in the dataset. Run again to go "
        "on after a break. Exits with 1 where pictures cannot be read; all others are done then."
    )
    settings = parse("data features", about, FeatureArguments, arguments, positional={"folder": "DIR"})
    folder = settings.folder
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
    """Run the command; see :func:`bcls.cli.main.main`."""
    from PIL import Image

    # An image above the pixel limit is reported anyway; Pillow's warning would repeat it.
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    return run_subcommand("data", "Dataset folders of images and captions.", SUBCOMMANDS, arguments)


def _import(arguments: Sequence[str]) -> int:
    kinds = "; ".join(f"{kind}: {what}" for kind, (_, what, _) in KINDS.items())
    about = f"Reads images and captions into a dataset folder. Kinds of source: {kinds}."
    names = {"kind": "KIND", "source": "SOURCE"}
    settings = parse("data import", about, ImportArguments, arguments, positional=names)
    imported = run_import(settings.kind, settings.source, settings)
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


def _check(arguments: Sequence[str]) -> int:
    about = (
        "Reads every picture, caption and feature of a dataset once, lists what is wrong, and writes quarantine.json, "
        "which training can skip. Exits with 1 where there are problems."
    )
    settings = parse("data check", about, CheckArguments, arguments, positional={"folder": "DIR"})
    report = check_dataset(settings.folder, settings)
    if settings.json:
        print(json.dumps(report.as_json()))
    else:
        from bcls.data.check import print_report

        print_report(report)
    return 0 if report.is_clean and not (settings.strict and report.findings) else 1


def _stats(arguments: Sequence[str]) -> int:
    about = "Counts a dataset: captions an image, words a caption, sizes of pictures."
    settings = parse("data stats", about, StatsSettings, arguments, positional={"folder": "DIR"})
    from bcls.data.stats import compute_stats, plot_stats

    dataset = open_dataset(settings.folder)
    stats = compute_stats(dataset, sizes=settings.sizes)
    if settings.plot is not None:
        plot_stats(stats, Path(settings.plot), dataset.name)
    if settings.json:
        print(json.dumps({"name": dataset.name, "splits": [one.as_json() for one in stats]}))
    else:
        from bcls.data.stats import print_stats

        print_stats(dataset.name, stats)
    return 0


@dataclass(frozen=True)
class StatsSettings:
    """Flags of ``bcls data stats``."""

    folder: str
    """Folder of the dataset."""
    sizes: bool = True
    """Read the sizes of the pictures."""
    plot: str | None = None
    """File for a drawing, such as stats.png."""
    json: bool = False
    """Print the numbers as JSON."""


SUBCOMMANDS: Subcommands = {
    "import": (_import, "import KIND SOURCE --out DIR", "import another layout into a dataset folder"),
    "check": (_check, "check DIR", "check images, captions and features, and list problems"),
    "stats": (_stats, "stats DIR", "count captions, words and image sizes"),
    "features": (extract_features, "features DIR --backbone NAME", "extract image features with a pretrained network"),
}
