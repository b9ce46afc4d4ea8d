"""Statistics of a dataset: captions per image, words per caption, image sizes; as JSON, table and plot."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls.data.dataset import Dataset
from bcls.data.images import image_size
from bcls.data.records import Manifest
from bcls.reports.blocks import Table
from bcls.reports.charts import figure_file

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SplitStats:
    """Statistics of one split.

    Attributes:
        split: Its name.
        captions: Number of captions of each image.
        words: Number of words of each caption, separated by spaces.
        widths: Width of each readable image in pixels, in upright orientation.
        heights: Height of each readable image in pixels.
    """

    split: str
    captions: Counts
    words: Counts
    widths: Counts
    heights: Counts

    def as_json(self) -> dict[str, Any]:
        """Return counts and summaries as JSON types."""
        return {
            "split": self.split,
            "images": len(self.captions),
            "captions": len(self.words),
            "captions_per_image": _summary(self.captions),
            "words_per_caption": _summary(self.words),
            "width": _summary(self.widths),
            "height": _summary(self.heights),
        }


def compute_stats(dataset: Dataset, *, sizes: bool = True) -> list[SplitStats]:
    """Compute the statistics of each split of a dataset.

    Args:
        dataset: The dataset.
        sizes: Read the sizes of the images as well; unreadable images are skipped.
    """
    stats = []
    for split in dataset.splits:
        part = dataset.split(split)
        captions = Counter(caption.image_id for caption in part.captions)
        shapes = []
        for image in part.image_ids if sizes and dataset.image_sources else ():
            with suppress(OSError, ValueError):
                shapes.append(image_size(part.read_bytes(image), image))
        shape = np.array(shapes, dtype=np.int64).reshape(-1, 2)
        per_image = np.array([captions[image] for image in part.image_ids], dtype=np.int64)
        words = np.array([len(text.split()) for text in part.texts], dtype=np.int64)
        stats.append(SplitStats(split, per_image, words, shape[:, 0], shape[:, 1]))
    return stats


def plot_stats(stats: list[SplitStats], path: Path, title: str) -> None:
    """Plot captions per image, words per caption and image sizes.

    Args:
        stats: Result of :func:`compute_stats`.
        path: File to write, such as ``stats.png`` or ``stats.svg``.
        title: Name of the dataset.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    longest = max((int(one.words.max(initial=0)) for one in stats), default=0)
    with figure_file(path, (12, 3.5)) as figure:
        captions, words, sizes = figure.subplots(1, 3)
        for one in stats:
            bins = np.arange(one.captions.max(initial=1) + 2) - 0.5
            captions.hist(one.captions, bins=bins, alpha=0.5, label=one.split)
            words.hist(one.words, bins=np.linspace(0, max(50, longest), 26), alpha=0.5, density=True, label=one.split)
            sizes.scatter(one.widths, one.heights, s=4, alpha=0.3, label=one.split)
        captions.set(xlabel="captions per image", ylabel="images")
        words.set(xlabel="words per caption", ylabel="share of captions")
        sizes.set(xlabel="image width", ylabel="image height")
        captions.legend()
        figure.suptitle(title)


def print_splits(manifest: Manifest) -> None:
    """Print the numbers of images and captions of each split."""
    rows = [(split, f"{images:,}", f"{captions:,}") for split, (images, captions) in manifest.splits.items()]
    Table.of_texts(("split", "images", "captions"), rows).print(manifest.name)


def print_stats(name: str, stats: list[SplitStats]) -> None:
    """Print the statistics of each split; distributions as their 5th, 50th and 95th percentile."""
    summaries = ("captions_per_image", "words_per_caption", "width", "height")
    rows = []
    for row in (one.as_json() for one in stats):
        percentiles = ("{p5:g} / {median:g} / {p95:g}".format(**row[key]) if row[key] else "" for key in summaries)
        rows.append((row["split"], f"{row['images']:,}", f"{row['captions']:,}", *percentiles))
    columns = ("split", "images", "captions", *(key.replace("_", " ") for key in summaries))
    Table.of_texts(columns, rows).print(name, "5th / 50th / 95th percentile")


def _summary(values: Counts) -> dict[str, float] | None:
    if not len(values):
        return None
    p5, median, p95 = np.percentile(values, [5, 50, 95]).tolist()
    low, mean, high = int(values.min()), round(float(values.mean()), 3), int(values.max())
    return {"min": low, "p5": p5, "median": median, "mean": mean, "p95": p95, "max": high}
