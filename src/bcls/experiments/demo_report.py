"""Report of the demo: one HTML file with the table, the charts and a gallery."""

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import bcls
from bcls._core.errors import fail
from bcls._core.files import write_whole
from bcls.data.dataset import Dataset
from bcls.evaluation.pages import Direction, Gallery, ranking
from bcls.evaluation.recall import query_ranks
from bcls.experiments.demo_results import LOSSES, DemoRun, findings, results_table, summary
from bcls.reports.blocks import Table
from bcls.reports.charts import ChartImage, ChartLine, line_chart
from bcls.reports.html import render_page

Floats = npt.NDArray[np.float32]
#: Number of results of each query.
SHOWN = 5
#: From this true relevance on, a result is nearly correct.
NEAR = 0.6
#: Colours of the losses in charts; ``page.css`` has the same.
COLOURS = {"triplet-hn": "#ad5f00", "triplet-sn": "#2673bd", "bcls": "#5b1a6e"}
#: Charts: attribute of a run, title and caption.
CHARTS = {
    "train_loss": ("Training loss", "Each loss has its own scale: compare shapes, not heights."),
    "val_rsum": ("Validation RSUM", "Finding exactly the image or caption that belongs to the query."),
    "val_tau_true": ("Validation τ true", "Ranking all items by how much of the caption is true of the image."),
}
_COUNTS = {1: "one loss", 2: "two losses", 3: "three losses"}


@dataclass(frozen=True)
class RelevanceSplit:
    """A split with both kinds of relevance of all pairs.

    Attributes:
        split: N images and C captions.
        pseudo: ``(N, C)`` pseudo labels.
        true: ``(N, C)`` true relevance.
    """

    split: Dataset
    pseudo: Floats
    true: Floats


def write_report(
    path: Path, runs: Sequence[DemoRun], test: RelevanceSplit, settings: dict[str, object], seconds: float
) -> None:
    """Write the report.

    Args:
        path: File to write, in an existing folder.
        runs: The finished runs; losses and seeds may be missing.
        test: The test split of the runs.
        settings: Settings that are listed at the end.
        seconds: Duration of the whole demo.

    Raises:
        ValueError: There is no run of any known loss.
        MissingExtraError: Jinja2 or matplotlib is not installed.
    """
    runs = [run for run in runs if run.loss in LOSSES]
    if not runs:
        fail("runs", f"at least one run of {', '.join(LOSSES)}", "none", "wait until the first runs have finished")
    images, captions = test.true.shape
    losses = list(summary(runs))
    names = [LOSSES[loss] for loss in losses]
    missing = [name for name in LOSSES.values() if name not in names]
    lede = (
        f"One two-tower model was trained to match drawn scenes with captions, with {_join(names)}, {_seeds(runs)} and "
        f"the same budget for each. The metrics are computed on {images:,} images and {captions:,} captions that were "
        f"not used for training. Everything took {_duration(seconds)}."
    )
    versions = {"bcls": bcls.__version__, "Python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("torch", "numpy", "pillow", "matplotlib")}
    page = render_page(
        "demo.html",
        f"A small image-text model, trained the same way with {_COUNTS[len(losses)]}",
        lede=lede + (f" There is no finished run of {_join(missing)}." if missing else ""),
        findings=findings(runs),
        table=results_table(runs),
        table_note=f"Test split of {images:,} images and {captions:,} captions; mean ± standard deviation over "
        f"{_seeds(runs)}, best mean in bold. Recalls in percent.",
        charts=[(_chart(key, runs), caption) for key, (_, caption) in CHARTS.items()],
        **_gallery(runs, test),
        settings={name.replace("_", " "): value for name, value in (settings | versions).items()},
        every_run=Table.of_texts(
            ["loss", "seed", "RSUM", "τ true", "seconds"],
            [
                [LOSSES[run.loss], str(run.seed), f"{run.test['rsum']:.1f}", f"{run.test['tau_true']:.3f}",
                 f"{run.seconds:.1f}"]
                for run in runs
            ],
        ),
    )  # fmt: skip
    write_whole(path, page)


def pick(similarities: Mapping[str, Floats], test: RelevanceSplit, count: int, direction: Direction) -> list[int]:
    """Choose the queries on which the losses differ most, whichever of them is ahead.

    Queries with at least ``SHOWN`` correct or nearly correct items come first, since others leave little to rank. Among
    these, the order is by the difference between the highest and the lowest mean true relevance of the first ``SHOWN``
    results. No image and no text is chosen twice.

    Args:
        similarities: ``(N, C)`` scores by loss.
        test: The test split.
        count: Number of queries; fewer if there are not as many.
        direction: ``"i2t"`` or ``"t2i"``.

    Returns:
        Rows (``"i2t"``) or columns (``"t2i"``).
    """
    means = np.stack([_mean_relevance(scores, test.true, direction) for scores in similarities.values()])
    # Rounded, since the order of summation must not decide.
    gap = (means.max(axis=0) - means.min(axis=0)).round(6)
    fitting = (test.true >= NEAR).sum(axis=1 if direction == "i2t" else 0)
    owner, texts = test.split.image_of_caption, test.split.texts
    picked: list[int] = []
    seen: set[object] = set()
    for query in np.lexsort((-gap, fitting < SHOWN)).tolist():
        marks = {query} if direction == "i2t" else {int(owner[query]), texts[query]}
        if seen.isdisjoint(marks):
            picked.append(query)
            seen |= marks
    return picked[:count]


def _mean_relevance(similarity: Floats, true: Floats, direction: Direction) -> npt.NDArray[np.float64]:
    """Compute the mean true relevance of the first results of every query."""
    scores, labels = (similarity, true) if direction == "i2t" else (similarity.T, true.T)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :SHOWN]
    means: npt.NDArray[np.float64] = np.take_along_axis(labels, best, axis=1).mean(axis=1, dtype=np.float64)
    return means


def _gallery(runs: Sequence[DemoRun], test: RelevanceSplit) -> dict[str, Any]:
    """Prepare four captions and two images as queries, with the results of one run for each loss."""
    by_loss = {loss: [run for run in runs if run.loss == loss] for loss in LOSSES}
    # The seed of the first run if the loss has it, else the first run of the loss.
    shown = {
        loss: next((run for run in own if run.seed == runs[0].seed), own[0]) for loss, own in by_loss.items() if own
    }
    scores = {loss: run.similarity for loss, run in shown.items()}
    owner = test.split.image_of_caption
    ranks = {loss: query_ranks(similarity, owner) for loss, similarity in scores.items()}
    gallery = Gallery(
        test.split,
        {
            "pseudo label": lambda image, caption: float(test.pseudo[image, caption]),
            "true relevance": lambda image, caption: float(test.true[image, caption]),
        },
    )
    means = {
        direction: {loss: _mean_relevance(one, test.true, direction) for loss, one in scores.items()}
        for direction in ("i2t", "t2i")
    }

    def queries(direction: Direction, count: int) -> list[dict[str, object]]:
        return [
            gallery.query(
                [ranking(one, owner, ranks[loss], direction, query, SHOWN) for loss, one in scores.items()],
                [LOSSES[loss] for loss in scores],
                notes=[f"mean true relevance {means[direction][loss][query]:.2f}" for loss in scores],
                classes=[f"loss {loss}" for loss in scores],
            )
            for query in pick(scores, test, count, direction)
        ]

    rule = "the first"
    if len(scores) > 1:
        rule = (
            f"those with the largest difference between the losses in the mean true relevance of the first {SHOWN} "
            "results, whichever loss is ahead. They show the losses at their most different; the table has the average"
        )
    return {
        "gallery": gallery,
        "gallery_rule": f"Chosen by a rule: among the queries with at least {SHOWN} items of true relevance {NEAR} or "
        f"more (and others only if there are too few), {rule}. Rankings are those of seed "
        f"{', '.join(str(seed) for seed in sorted({run.seed for run in shown.values()}))}.",
        "lists": [
            {"title": "Images for a caption", "queries": queries("t2i", 4)},
            {"title": "Captions for an image", "queries": queries("i2t", 2)},
        ],
    }


def _chart(key: str, runs: Sequence[DemoRun]) -> ChartImage | None:
    """Draw one line for each loss: the mean over seeds, in a band from the lowest to the highest seed."""
    lines = []
    for loss, name in LOSSES.items():
        by_epoch: dict[float, list[float]] = {}
        for run in runs:
            for epoch, value in zip(run.epochs, getattr(run, key), strict=True):
                if run.loss == loss and math.isfinite(value):
                    by_epoch.setdefault(epoch, []).append(value)
        points = [(epoch, sum(values) / len(values)) for epoch, values in sorted(by_epoch.items())]
        band = [(epoch, min(values), max(values)) for epoch, values in sorted(by_epoch.items())]
        lines.append(ChartLine(name, points, band=band, colour=COLOURS[loss]))
    return line_chart(CHARTS[key][0], "epoch", lines)


def _seeds(runs: Sequence[DemoRun]) -> str:
    """Write the number of seeds, of each loss if they differ."""
    counts = {loss: sum(run.loss == loss for run in runs) for loss in summary(runs)}
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{LOSSES[loss]} {count}" for loss, count in counts.items())
        return f"{min(counts.values())} to {max(counts.values())} seeds ({each})"
    count = next(iter(counts.values()))
    return "one seed" if count == 1 else f"{count} seeds"


def _join(words: Iterable[str]) -> str:
    """Write a list in words.

    Example:
        >>> _join(["a", "b", "c"])
        'a, b and c'
    """
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}\u00a0min {rest}\u00a0s" if minutes else f"{rest}\u00a0s"
