"""Counts of a dataset: captions, their lengths, sizes of pictures.

Tables for the terminal.
"""

import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from bcls.data.dataset import Dataset
from bcls.data.images import FORMATS
from bcls.data.records import Manifest

if TYPE_CHECKING:
    pass

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Stats:
    """Numbers of one split.

    Attributes:
        split: Its name.
        captions: Captions of each image.
        words: Words of each caption, as spaces part them.
        widths: Width of each picture that could be read, in pixels.
        heights: Its height.
    """

    split: str
    captions: Numbers
    words: Numbers
    widths: Numbers
    heights: Numbers

    def as_json(self) -> dict[str, Any]:
        """Counts and summaries, in types that JSON knows."""
        return {
            "split": self.split,
            "images": len(self.captions),
            "captions": len(self.words),
            "captions_per_image": _summary(self.captions),
            "words_per_caption": _summary(self.words),
            "width": _summary(self.widths),
            "height": _summary(self.heights),
        }


def count(dataset: Dataset, *, sizes: bool = True) -> list[Stats]:
    """Count each split of a dataset.

    Args:
        dataset: The dataset.
        sizes: Read the sizes of the pictures as well; those that cannot be read are passed over.
    """
    counted = []
    for split in dataset.splits:
        part = dataset.split(split)
        captions = Counter(caption.image_id for caption in part.captions)
        pictures = sizes and bool(dataset.manifest.images)
        read = [size for image in part.image_ids if (size := _size(part, image))] if pictures else []
        shape = np.array(read, dtype=np.int64).reshape(-1, 2)
        each = np.array([captions[image] for image in part.image_ids], dtype=np.int64)
        words = np.array([len(text.split()) for text in part.texts], dtype=np.int64)
        counted.append(Stats(split, each, words, shape[:, 0], shape[:, 1]))
    return counted


def plot(stats: list[Stats], path: Path, title: str) -> None:
    """Draw captions an image, words a caption and sizes of pictures.

    Args:
        stats: What :func:`count` gave.
        path: File to write, such as ``stats.png`` or ``stats.svg``.
        title: Name of the dataset.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    from bcls._core.extras import require

    require("matplotlib", "plots", "drawing the numbers of a dataset")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.5), layout="constrained")
    each, words, sizes = figure.subplots(1, 3)
    for one in stats:
        each.hist(one.captions, bins=np.arange(one.captions.max(initial=1) + 2) - 0.5, alpha=0.5, label=one.split)
        words.hist(one.words, bins=np.arange(0, 52, 2), alpha=0.5, density=True, label=one.split)
        sizes.scatter(one.widths, one.heights, s=4, alpha=0.3, label=one.split)
    each.set(xlabel="captions an image", ylabel="images")
    words.set(xlabel="words a caption", ylabel="share of captions")
    sizes.set(xlabel="width", ylabel="height of the picture")
    each.legend()
    figure.suptitle(title)
    figure.savefig(path)


def _size(dataset: Dataset, image_id: str) -> tuple[int, int] | None:
    try:
        with Image.open(io.BytesIO(dataset.read_bytes(image_id)), formats=FORMATS) as image:
            return image.size
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError):
        return None


def _summary(values: Numbers) -> dict[str, float] | None:
    if not len(values):
        return None
    low, middle, high = np.percentile(values, [5, 50, 95])
    return {
        "min": int(values.min()),
        "p5": float(low),
        "median": float(middle),
        "mean": round(float(values.mean()), 3),
        "p95": float(high),
        "max": int(values.max()),
    }


def print_splits(manifest: Manifest) -> None:
    """Print the numbers of images and captions of each split."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("split", title=escape(manifest.name))
    for column in ("images", "captions"):
        table.add_column(column, justify="right")
    for split, (images, captions) in manifest.splits.items():
        table.add_row(escape(split), f"{images:,}", f"{captions:,}")
    Console().print(table)


def print_stats(name: str, stats: "list[Stats]") -> None:
    """Print the numbers of each split, as ``low / median / high``: the 5th, 50th and 95th percentile."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("split", title=escape(name), caption="5th / 50th / 95th percentile")
    columns = ("captions_per_image", "words_per_caption", "width", "height")
    for column in (
        "images",
        "captions",
        *(column.replace("_per_", " an " if "image" in column else " a ") for column in columns),
    ):
        table.add_column(column, justify="right")
    for one in stats:
        row = one.as_json()
        cells = [_cell(row[column]) for column in columns]
        table.add_row(escape(one.split), f"{row['images']:,}", f"{row['captions']:,}", *cells)
    Console().print(table)


def _cell(summary: dict[str, float] | None) -> str:
    return "" if summary is None else " / ".join(f"{summary[key]:g}" for key in ("p5", "median", "p95"))
