"""``bcls data``: import, check and summarize datasets, and extract image features."""

import json
import sys
import warnings
from dataclasses import dataclass

from bcls._core.errors import quoted
from bcls._core.files import user_path
from bcls.cli.arguments import Subcommands, parse, run_subcommand
from bcls.data.check import CheckSettings, check_dataset, print_report
from bcls.data.dataset import open_dataset
from bcls.data.importers import ImportSettings, run_import
from bcls.data.stats import compute_stats, plot_stats, print_splits, print_stats
from bcls.features.extraction import extract
from bcls.features.settings import FeatureSettings
from bcls.reports.charts import check_figure


@dataclass(frozen=True)
class ImportArguments(ImportSettings):
    """Import images and captions into a dataset folder.

    KIND is the layout of SOURCE: folder: images and a CSV, TSV or JSONL file of captions; karpathy: dataset_*.json
    with Karpathy's splits, images by --images; coco: captions_*.json of MS-COCO, a file or a folder of them; scan:
    a *_precomp folder with captions, ids and region features; butd: bottom-up-attention .tsv files: adds region
    features to the dataset at --out; webdataset: tar files with images and .txt or .json captions; huggingface: a
    folder that `datasets` saved with save_to_disk.

    Attributes:
        kind: Layout of the source.
        source: File or folder to import.
    """

    kind: str = ""
    source: str = ""


@dataclass(frozen=True)
class CheckArguments(CheckSettings):
    """Check every image, caption and feature of a dataset, and list the problems.

    Writes quarantine.json, whose entries training skips. The exit code is 1 if there are problems.

    Attributes:
        folder: Folder of the dataset.
    """

    folder: str = ""


@dataclass(frozen=True)
class StatsSettings:
    """Count captions per image, words per caption, and image sizes.

    Attributes:
        folder: Folder of the dataset.
        images: New location of the images if they have moved since the import.
        sizes: Read the sizes of the images.
        plot: Write a chart to this file, such as stats.png.
        json: Print JSON.
    """

    folder: str
    images: str | None = None
    sizes: bool = True
    plot: str | None = None
    json: bool = False


@dataclass(frozen=True)
class FeatureArguments(FeatureSettings):
    """Extract features of every image with a pretrained network and add them to the dataset.

    Run again to resume. The exit code is 1 if images are unreadable and not in quarantine; the others are
    extracted.

    Attributes:
        folder: Folder of the dataset.
    """

    folder: str = ""


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    from PIL import Image

    # An image above the pixel limit is reported anyway; Pillow's warning would repeat it.
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    return run_subcommand("data", "Dataset folders of images and captions.", SUBCOMMANDS, arguments)


def _import(arguments: list[str]) -> int:
    names = {"kind": "KIND", "source": "SOURCE"}
    settings = parse("data import", ImportArguments, arguments, positional=names)
    imported = run_import(settings.kind, settings.source, settings)
    for note in imported.notes:
        print(f"note: {note}", file=sys.stderr)
    splits = {split: {"images": n, "captions": c} for split, (n, c) in imported.manifest.splits.items()}
    if settings.json:
        print(json.dumps({"out": settings.out, "name": imported.manifest.name, "splits": splits}))
    else:
        print_splits(imported.manifest)
        print(f"{imported.manifest.name} is in {settings.out}; next: bcls data check {quoted(settings.out)}")
    return 0


def _check(arguments: list[str]) -> int:
    settings = parse("data check", CheckArguments, arguments, positional={"folder": "DIR"})
    report = check_dataset(settings.folder, settings)
    if settings.json:
        print(json.dumps(report.as_json()))
    else:
        print_report(report)
    return 0 if report.is_clean and not (settings.strict and report.findings) else 1


def _stats(arguments: list[str]) -> int:
    settings = parse("data stats", StatsSettings, arguments, positional={"folder": "DIR"})
    if settings.plot is not None:
        check_figure("--plot", str(user_path(settings.plot)))
    dataset = open_dataset(settings.folder, images=settings.images)
    stats = compute_stats(dataset, sizes=settings.sizes)
    unknown = sum(len(one.captions) - len(one.widths) for one in stats)
    if unknown and settings.sizes and dataset.image_sources:
        hint = f"see `bcls data check {quoted(settings.folder)}`, or set --images PATH if they have moved"
        print(f"note: {unknown} image{'s' * (unknown != 1)} cannot be read; {hint}", file=sys.stderr)
    if settings.plot is not None:
        plot_stats(stats, user_path(settings.plot), dataset.name)
    if settings.json:
        print(json.dumps({"name": dataset.name, "splits": [one.as_json() for one in stats]}))
    else:
        print_stats(dataset.name, stats)
    return 0


def _features(arguments: list[str]) -> int:
    settings = parse("data features", FeatureArguments, arguments, positional={"folder": "DIR"})
    # Absolute, for worker processes that start in another folder.
    images = None if settings.images is None else user_path(settings.images).resolve()
    done = extract(open_dataset(user_path(settings.folder).resolve(), images=images), settings)
    for image_id, reason in done.unreadable.items():
        print(f"unreadable: {image_id}: {reason}", file=sys.stderr)
    if settings.json:
        content = {"name": done.name, "folder": str(done.folder), "shapes": done.shapes, "already": done.already}
        print(json.dumps({**content, "views": done.views, "unreadable": done.unreadable, "zero_rows": done.zero_rows}))
    else:
        for split, shape in done.shapes.items():
            note = f", {done.views} rows per image" if done.views > 1 else ""
            note += " (already extracted)" if split in done.already else ""
            print(f"{split}: {' x '.join(map(str, shape))}{note}")
        if not done.unreadable:
            print(f"{done.name} is in {done.folder}")
        if done.zero_rows:
            hint = f"once they are repaired, delete {done.folder} and run this command again"
            print(f"note: rows of zeros for images in quarantine ({len(done.zero_rows)}); {hint}", file=sys.stderr)
    if done.unreadable:
        count = f"{len(done.unreadable)} unreadable image{'s' * (len(done.unreadable) != 1)}"
        check = f"bcls data check {quoted(settings.folder)}"
        hint = f"repair them, or run `{check}` to skip them, then run this command again"
        print(f"{count}; {hint}", file=sys.stderr)
    return 1 if done.unreadable else 0


SUBCOMMANDS: Subcommands = {
    "import": (_import, "import KIND SOURCE --out DIR", "import another layout into a dataset folder"),
    "check": (_check, "check DIR", "check images, captions and features, and list problems"),
    "stats": (_stats, "stats DIR", "count captions, words and image sizes"),
    "features": (_features, "features DIR --backbone NAME", "extract image features with a pretrained network"),
}
