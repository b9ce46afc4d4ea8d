"""Settings, results and report of the demo: a table for the terminal, and an HTML page with charts and a gallery."""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

import bcls
from bcls._core.errors import check_whole, quoted
from bcls._core.files import write_whole
from bcls.data.dataset import Dataset
from bcls.evaluation.pages import Direction, Gallery, ranking
from bcls.evaluation.recall import query_ranks
from bcls.experiments.results import Spread, metric_cells, spread
from bcls.reports.blocks import Cell, Table
from bcls.reports.charts import ChartImage, ChartLine, line_chart
from bcls.reports.html import render_page

#: The losses of the demo: names of :func:`bcls.losses.from_name` or keys of :data:`SETTINGS`, and their names in text.
LOSSES = {"triplet-hn": "Triplet-HN", "triplet-sn": "Triplet-SN", "bcls": "BCLS", "recommended": "Recommended"}
#: Losses with settings. The recommended one is that of configs/flickr8k/recommended.yaml, with the greatest weight of
#: 0.5, 1 and 2 for the Kendall term that kept the validation RSUM within 1 % of that of Triplet-SN.
SETTINGS: dict[str, dict[str, Any]] = {
    "recommended": {
        "name": "triplet-sn+kendall",
        "triplet-sn": {"lse": "mean"},
        "kendall": {"alpha": 0.2, "normalize": "active"},
        "weights": [1, 0.5],
    }
}
#: Metrics on the test split: key, heading, digits.
METRICS = (
    *((f"{key}_r{k}", f"R@{k} {way}", 1) for key, way in (("i2t", "i→t"), ("t2i", "t→i")) for k in (1, 5, 10)),
    ("rsum", "RSUM", 1),
    ("tau_pseudo", "τ pseudo", 3),
    ("tau_true", "τ true", 3),
)
#: Folders of the dataset and of the runs in the folder of the demo.
SCENES, RUNS = "scenes", "runs"
# The mean of Triplet-HN for a model that scores all pairs alike: the margin, in both directions.
_STALLED = 2 * 0.2


@dataclass(frozen=True)
class DemoSettings:
    """Generate synthetic scenes with captions, and compare four losses on them.

    Labels every pair with MiniLM, trains a small two-tower model with Triplet-HN, Triplet-SN, BCLS and the recommended
    loss with the same budget, prints a table and writes a report. The defaults take four minutes on two cores.

    Attributes:
        out: Folder for the report, the results, the scenes and the runs; an earlier demo in it is replaced.
        images: Number of scenes: three quarters for training, a tenth for validation, the rest for the test.
        seeds: Number of runs for each loss.
        epochs: Number of passes over the training captions, five for each image.
        batch: Pairs in a batch.
        json: Print the results as JSON instead of a table.
    """

    out: str = "bcls-demo"
    images: int = 2000
    seeds: int = 3
    epochs: int = 5
    batch: int = 64
    json: bool = False

    def __post_init__(self) -> None:
        for flag, least in (("images", 100), ("seeds", 1), ("epochs", 1), ("batch", 2)):
            check_whole(f"--{flag}", getattr(self, flag), least=least)
        if self.batch > self.sizes[0]:
            check_whole("--images", self.images, least=-(-self.batch * 4 // 3))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of images for training, validation and test."""
        train, validate = self.images * 3 // 4, self.images // 10
        return train, validate, self.images - train - validate


@dataclass(frozen=True)
class DemoRun:
    """One training run with one loss and one seed.

    Attributes:
        loss: Name of the loss.
        seed: Seed of weights and batches; the data is the same for all runs.
        epochs: Epochs after which the validation split was evaluated.
        train_loss: Mean training loss of each of these epochs.
        val_rsum: Validation RSUM after each of these epochs.
        val_tau_true: Kendall's tau with the true relevance on the validation split, mean of both directions.
        test: Metrics on the test split, see :data:`METRICS`.
        seconds: Duration of the run.
        similarity: ``(N, C)`` scores of the test split, for the gallery; not written to ``results.json``.
    """

    loss: str
    seed: int
    epochs: list[int]
    train_loss: list[float]
    val_rsum: list[float]
    val_tau_true: list[float]
    test: dict[str, float]
    seconds: float
    similarity: npt.NDArray[np.float32] = field(repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return all values except the scores."""
        return {key: value for key, value in vars(self).items() if key != "similarity"}


def summary(runs: Sequence[DemoRun]) -> dict[str, dict[str, Spread]]:
    """Compute mean and deviation of every test metric for every loss that has runs, in the order of :data:`LOSSES`."""
    tests = {loss: [run.test for run in runs if run.loss == loss] for loss in LOSSES}
    keys = [key for key, _, _ in METRICS]
    return {loss: {key: spread([test[key] for test in own]) for key in keys} for loss, own in tests.items() if own}


def summary_json(runs: Sequence[DemoRun]) -> dict[str, dict[str, dict[str, float]]]:
    """Return :func:`summary` as it is written to ``results.json`` and printed with ``--json``."""
    return {
        loss: {key: {"mean": one.mean, "deviation": one.deviation} for key, one in metrics.items()}
        for loss, metrics in summary(runs).items()
    }


def results_table(runs: Sequence[DemoRun]) -> Table:
    """Create the table of the test metrics: mean and deviation over seeds, the best mean of a column in bold."""
    metrics = summary(runs)
    cells = metric_cells(METRICS, list(metrics.values()))
    rows = [[Cell(LOSSES[loss]), *own] for loss, own in zip(metrics, cells, strict=True)]
    return Table(["loss", *(heading for _, heading, _ in METRICS)], rows)


def print_table(runs: Sequence[DemoRun], out: Path) -> None:
    """Print the table of the test metrics and the next steps."""
    seeds = len({run.seed for run in runs})
    results_table(runs).print(f"Test split, {f'mean ± deviation over {seeds} seeds' if seeds > 1 else 'one seed'}")
    print(
        "R@K: share of queries with a correct item among the first K results; RSUM: their sum.\n"
        "τ pseudo: agreement with MiniLM's labels, from which BCLS and the recommended loss learn.\n"
        "τ true: agreement with the true relevance of the scenes, which no loss uses.\n"
        "Recommended: Triplet-SN and half of the Kendall loss over all pairs, triplet-sn+kendall.\n\n"
        f"Report with charts and a gallery: {out / 'report.html'}\n"
        f"All results: {out / 'results.json'}\n"
        f"Next: bcls evaluate {quoted(out / RUNS / 'bcls-seed0')} --data {quoted(out / SCENES)} · bcls demo --help"
    )


def _comparison(one: str, other: str, metrics: Mapping[str, Mapping[str, Spread]]) -> str:
    tau, tau_text = _difference(metrics[one]["tau_true"], metrics[other]["tau_true"], 3, "closer to", "further from")
    rsum, rsum_text = _difference(metrics[one]["rsum"], metrics[other]["rsum"], 1, "higher", "lower")
    order = f"{tau} the true relevance than" if tau else "as close to the true relevance as"
    order = f"{LOSSES[one]} ranks {order} {LOSSES[other]} (τ true {tau_text})"
    return f"{order}; its RSUM is {rsum or 'the same'} ({rsum_text})."


def _difference(one: Spread, other: Spread, digits: int, more: str, less: str) -> tuple[str, str]:
    """Describe the difference of two means in percent of the second (empty if they are printed alike), and both means.

    Example:
        >>> _difference(Spread(9.0, 0, 1), Spread(3.0, 0, 1), 1, "above", "below")
        ('far above', '9.0 against 3.0')
    """
    gap = one.mean - other.mean
    numbers = [
        f"{value.mean:.{digits}f}" + (f"\u00a0±\u00a0{value.deviation:.{digits}f}" if value.deviation > 0 else "")
        for value in (one, other)
    ]
    both = " against ".join(numbers)
    if one.deviation > 0 and other.deviation > 0 and abs(gap) <= one.deviation + other.deviation:
        both += ", within the spread of the seeds"
    if f"{one.mean:.{digits}f}" == f"{other.mean:.{digits}f}":
        return "", both
    # A percentage of a value near zero or below has no meaning.
    share = abs(gap) / other.mean * 100 if other.mean > 0 else math.inf
    size = "far" if share > 100 else f"{share:.0f}\u00a0%" if share >= 1 else "less than 1\u00a0%"
    return f"{size} {more if gap > 0 else less}", both


Floats = npt.NDArray[np.float32]
#: Number of results of each query.
SHOWN = 5
#: From this true relevance on, a result is nearly correct.
NEAR = 0.6
#: Colors of the losses in charts; ``page.css`` has the same.
COLORS = {"triplet-hn": "#ad5f00", "triplet-sn": "#2673bd", "bcls": "#5b1a6e", "recommended": "#1d7a45"}
#: Charts: attribute of a run, title and caption.
CHARTS = {
    "train_loss": ("Training loss", "Each loss has its own scale: compare shapes, not heights."),
    "val_rsum": ("Validation RSUM", "Finding exactly the image or caption that belongs to the query."),
    "val_tau_true": ("Validation τ true", "Ranking all items by how much of the caption is true of the image."),
}


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
    means = summary(runs)
    # BCLS is Triplet-SN with a second term, so that comparison comes first.
    pairs = (("bcls", "triplet-sn"), ("bcls", "triplet-hn"), ("recommended", "triplet-sn"))
    hard = [run.train_loss[-1] for run in runs if run.loss == "triplet-hn" and run.train_loss]
    versions = {"bcls": bcls.__version__, "Python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("torch", "numpy", "pillow", "matplotlib")}
    rows = [(LOSSES[run.loss], str(run.seed), run.test["rsum"], run.test["tau_true"], run.seconds) for run in runs]
    page = render_page(
        "demo.html",
        "A small image-text model, trained the same way with four losses",
        seeds=len({run.seed for run in runs}),
        sizes=test.true.shape,
        duration=_duration(seconds),
        comparisons=[_comparison(one, other, means) for one, other in pairs if {one, other} <= means.keys()],
        hard=hard,
        stalled=[last for last in hard if abs(last - _STALLED) <= 0.05 * _STALLED],
        stalled_loss=_STALLED,
        table=results_table(runs),
        charts=[(_chart(key, runs), caption) for key, (_, caption) in CHARTS.items()],
        **_gallery(runs, test),
        settings={name.replace("_", " "): value for name, value in (settings | versions).items()},
        every_run=Table.of_texts(
            ["loss", "seed", "RSUM", "τ true", "seconds"],
            [[name, seed, f"{rsum:.1f}", f"{tau:.3f}", f"{took:.1f}"] for name, seed, rsum, tau, took in rows],
        ),
    )
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
    scores = {run.loss: run.similarity for run in runs if run.seed == runs[0].seed}
    owner = test.split.image_of_caption
    ranks = {loss: query_ranks(similarity, owner) for loss, similarity in scores.items()}
    labels = {"pseudo label": test.pseudo, "true relevance": test.true}
    readers = {name: lambda image, caption, of=of: float(of[image, caption]) for name, of in labels.items()}
    gallery = Gallery(test.split, readers)

    def queries(direction: Direction, count: int) -> list[dict[str, object]]:
        means = {loss: _mean_relevance(one, test.true, direction) for loss, one in scores.items()}
        return [
            gallery.query(
                [ranking(one, owner, ranks[loss], direction, query, SHOWN) for loss, one in scores.items()],
                [LOSSES[loss] for loss in scores],
                notes=[f"mean true relevance {means[loss][query]:.2f}" for loss in scores],
                classes=[f"loss {loss}" for loss in scores],
            )
            for query in pick(scores, test, count, direction)
        ]

    return {
        "gallery": gallery,
        "shown": SHOWN,
        "near": NEAR,
        "gallery_seed": runs[0].seed,
        "lists": [
            {"title": "Images for a caption", "queries": queries("t2i", 4)},
            {"title": "Captions for an image", "queries": queries("i2t", 2)},
        ],
    }


def _chart(key: str, runs: Sequence[DemoRun]) -> ChartImage | None:
    """Draw one line for each loss: the mean over seeds, in a band from the lowest to the highest seed."""
    lines = []
    for loss, name in LOSSES.items():
        every = [getattr(run, key) for run in runs if run.loss == loss]
        by_epoch = list(zip(runs[0].epochs, zip(*every, strict=True), strict=False))
        points = [(float(epoch), fmean(values)) for epoch, values in by_epoch]
        band = [(float(epoch), min(values), max(values)) for epoch, values in by_epoch]
        lines.append(ChartLine(name, points, band=band, color=COLORS[loss]))
    return line_chart(CHARTS[key][0], "epoch", lines)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}\u00a0min {rest}\u00a0s" if minutes else f"{rest}\u00a0s"
