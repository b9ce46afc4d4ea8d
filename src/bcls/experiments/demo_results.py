"""Settings and results of the demo: the table on the terminal, and the findings in words."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_whole
from bcls.reports.blocks import Cell, Table

if TYPE_CHECKING:
    from bcls.experiments.summary import Spread

#: The losses of the demo: names of :func:`bcls.losses.from_name`, and how they are written in text.
LOSSES = {"triplet-hn": "Triplet-HN", "triplet-sn": "Triplet-SN", "bcls": "BCLS"}
#: Metrics on the test split: key, heading, digits.
METRICS = (
    ("i2t_r1", "R@1 i→t", 1),
    ("i2t_r5", "R@5 i→t", 1),
    ("i2t_r10", "R@10 i→t", 1),
    ("t2i_r1", "R@1 t→i", 1),
    ("t2i_r5", "R@5 t→i", 1),
    ("t2i_r10", "R@10 t→i", 1),
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
    """Settings of the demo; the defaults take less than four minutes on two cores.

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


def summary(runs: Iterable[DemoRun]) -> dict[str, dict[str, "Spread"]]:
    """Compute mean and deviation of every test metric for every loss that has runs, in the order of :data:`LOSSES`."""
    from bcls.experiments.summary import spread  # it imports more than `bcls demo --help` needs

    runs = list(runs)
    return {
        loss: {key: spread([run.test[key] for run in runs if run.loss == loss]) for key, _, _ in METRICS}
        for loss in LOSSES
        if any(run.loss == loss for run in runs)
    }


def summary_json(runs: Iterable[DemoRun]) -> dict[str, dict[str, dict[str, float]]]:
    """Return :func:`summary` as it is written to ``results.json`` and printed with ``--json``."""
    return {
        loss: {key: {"mean": one.mean, "deviation": one.deviation} for key, one in metrics.items()}
        for loss, metrics in summary(runs).items()
    }


def results_table(runs: Sequence[DemoRun]) -> Table:
    """Create the table of the test metrics: mean and deviation over seeds, the best mean of a column in bold."""
    from bcls.experiments.summary import metric_cells

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
        "τ pseudo: agreement with MiniLM's labels, which BCLS learned from.\n"
        "τ true: agreement with the scenes, which no loss has seen.\n\n"
        f"Report with charts and a gallery: {out / 'report.html'}\n"
        f"All results: {out / 'results.json'}\n"
        f"Next: bcls evaluate {out / RUNS / 'bcls-seed0'} --data {out / SCENES} · bcls demo --help"
    )


def findings(runs: Sequence[DemoRun]) -> list[str]:
    """Describe the results in sentences that are computed from the metrics."""
    metrics = summary(runs)
    # BCLS is Triplet-SN with a second term, so that comparison comes first.
    first, *others = [loss for loss in ("bcls", "triplet-sn", "triplet-hn") if loss in metrics]
    found = [_comparison(first, other, metrics) for other in others]
    if not others:
        found.append(f"Only {LOSSES[first]} was trained, so there is no comparison.")
    elif len({(run.loss, run.seed) for run in runs}) == len(metrics):
        found.append("With one seed for each loss, these differences may be due to chance.")
    hard = [run.train_loss[-1] for run in runs if run.loss == "triplet-hn" and run.train_loss]
    stalled = [last for last in hard if abs(last - _STALLED) <= 0.05 * _STALLED]
    if stalled:
        found.append(
            f"Triplet-HN stalled in {len(stalled)} of {len(hard)} {'seed' if len(hard) == 1 else 'seeds'}: its "
            f"training loss ended at {fmean(stalled):.3f}, close to twice the margin ({_STALLED:.1f}), which "
            "is the loss of a model that scores all pairs alike. Many captions here fit several images, so the "
            "hardest negative is often a false negative, and pushing it away cancels what the positive pair teaches."
        )
    return found


def _comparison(one: str, other: str, metrics: Mapping[str, Mapping[str, "Spread"]]) -> str:
    tau, base = metrics[one]["tau_true"], metrics[other]["tau_true"]
    change = _difference(tau, base, 3, "closer to", "further from")
    change = f"{change} the true relevance than" if change else "as close to the true relevance as"
    order = f"{LOSSES[one]} ranks {change} {LOSSES[other]} (τ true {_against(tau, base, 3)})"
    rsum, base = metrics[one]["rsum"], metrics[other]["rsum"]
    change = _difference(rsum, base, 1, "higher", "lower") or "the same"
    return f"{order}; its RSUM is {change} ({_against(rsum, base, 1)})."


def _difference(one: "Spread", other: "Spread", digits: int, more: str, less: str) -> str:
    """Describe the difference of two means in percent of the second; empty if they are printed alike."""
    if f"{one.mean:.{digits}f}" == f"{other.mean:.{digits}f}":
        return ""
    word = more if one.mean > other.mean else less
    # A percentage of a value near zero or below has no meaning.
    share = abs(one.mean - other.mean) / other.mean * 100 if other.mean > 0 else math.inf
    if share > 100:
        return f"far {word}"
    return f"{share:.0f}\u00a0% {word}" if share >= 1 else f"less than 1\u00a0% {word}"


def _against(one: "Spread", other: "Spread", digits: int) -> str:
    known = one.deviation > 0 and other.deviation > 0
    close = known and abs(one.mean - other.mean) <= one.deviation + other.deviation
    text = f"{_number(one, digits)} against {_number(other, digits)}"
    return text + (", within the spread of the seeds" if close else "")


def _number(value: "Spread", digits: int) -> str:
    deviation = f"\u00a0±\u00a0{value.deviation:.{digits}f}" if value.deviation > 0 else ""
    return f"{value.mean:.{digits}f}{deviation}"
