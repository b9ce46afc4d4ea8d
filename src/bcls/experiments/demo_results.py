"""What can be set for the demo.

What the demo measured.

The demo's result in words, computed from the figures: true whatever they are.

The course of training as three small plots, ready to stand in a page.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_whole
from bcls.reports.charts import INK, as_element, drawing


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the demo; the defaults take less than four minutes on two cores."""

    out: str = "bcls-demo"
    """Folder for the report, the figures, the scenes and the runs; what an earlier demo left there is replaced."""
    images: int = 2000
    """How many scenes to draw: three quarters to train on, a tenth to validate, the rest to test."""
    seeds: int = 3
    """How many runs for each loss, with other weights and batches."""
    epochs: int = 5
    """How often each run sees every training caption, of which each image has five."""
    batch: int = 64
    """Pairs in a batch."""
    json: bool = False
    """Print the figures as JSON instead of a table."""

    def __post_init__(self) -> None:
        for flag, least in (("images", 100), ("seeds", 1), ("epochs", 1), ("batch", 2)):
            check_whole(f"--{flag}", getattr(self, flag), least=least)
        if self.batch > self.sizes[0]:
            check_whole("--images", self.images, least=-(-self.batch * 4 // 3))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Images to train on, to validate and to test."""
        train, validate = self.images * 3 // 4, self.images // 10
        return train, validate, self.images - train - validate


#: The losses of the demo, by the names of :func:`bcls.losses.from_name`, with how people write them.
LOSSES = {"triplet-hn": "Triplet-HN", "triplet-sn": "Triplet-SN", "bcls": "BCLS"}

#: Figures on the test split: key, heading, digits.
FIGURES = (
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


@dataclass(frozen=True)
class Run:
    """One training run under one loss from one seed."""

    loss: str
    """Name of the loss."""
    seed: int
    """Seed of weights and batches; the same data for all."""
    epochs: list[int]
    """Epochs after which the validation split was looked at."""
    train_loss: list[float]
    """Mean training loss of each of these epochs."""
    val_rsum: list[float]
    """RSUM on the validation split after each of these epochs."""
    val_tau_true: list[float]
    """Kendall's tau against the true relevance on the validation split, mean of both directions."""
    test: dict[str, float]
    """Figures on the test split after the last epoch, see :data:`FIGURES`."""
    seconds: float
    """How long the run took."""
    similarity: npt.NDArray[np.float32] = field(repr=False, compare=False)
    """(N, C) scores of the test split, for the gallery; not written to ``results.json``."""

    def as_json(self) -> dict[str, Any]:
        """All but the scores."""
        return {key: value for key, value in vars(self).items() if key != "similarity"}


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Spread of one or more values; one value has no deviation.

        Example:
            >>> Spread.of([1.0, 3.0])
            Spread(mean=2.0, deviation=1.4142135623730951)
        """
        numbers = list(values)
        return cls(fmean(numbers), stdev(numbers) if len(numbers) > 1 else 0.0)


def summary(runs: Iterable[Run]) -> dict[str, dict[str, Spread]]:
    """Spread of every test figure for every loss that has a run, in the order of :data:`LOSSES`."""
    runs = list(runs)
    return {
        loss: {key: Spread.of(run.test[key] for run in runs if run.loss == loss) for key, _, _ in FIGURES}
        for loss in LOSSES
        if any(run.loss == loss for run in runs)
    }


# With hard negatives and a mean over the batch, a model that scores all pairs alike pays the margin in both directions.
_STALLED = 2 * 0.2


def findings(runs: Sequence[Run]) -> list[str]:
    """Say in words what the table says, whatever it says."""
    figures = summary(runs)
    # BCLS is Triplet-SN with a second term, so that comparison comes first.
    ahead, *others = [loss for loss in ("bcls", "triplet-sn", "triplet-hn") if loss in figures]
    found = [_comparison(ahead, other, figures) for other in others]
    if not others:
        found.append(f"Only {LOSSES[ahead]} was trained, so there is nothing to compare it with.")
    elif len({(run.loss, run.seed) for run in runs}) == len(figures):
        found.append("With one seed for each loss there is no telling how much of this is chance.")
    hard = [run.train_loss[-1] for run in runs if run.loss == "triplet-hn" and run.train_loss]
    stalled = [last for last in hard if abs(last - _STALLED) <= 0.05 * _STALLED]
    if stalled:
        found.append(
            f"Triplet-HN stalled in {len(stalled)} of {len(hard)} {'seed' if len(hard) == 1 else 'seeds'}: its "
            f"training loss ended at {Spread.of(stalled).mean:.3f}, close to twice the margin ({_STALLED:.1f}), which "
            "is what a model pays that scores all pairs alike. Many captions here fit several pictures, so the "
            "hardest negative is often a false one, and pushing it away undoes what the match has taught."
        )
    return found


def _comparison(one: str, other: str, figures: Mapping[str, Mapping[str, Spread]]) -> str:
    tau, base = figures[one]["tau_true"], figures[other]["tau_true"]
    how = _difference(tau, base, 3, "closer to", "further from")
    how = f"{how} the true relevance than" if how else "as close to the true relevance as"
    order = f"{LOSSES[one]} ranks {how} {LOSSES[other]} (τ true {_against(tau, base, 3)})"
    rsum, base = figures[one]["rsum"], figures[other]["rsum"]
    change = _difference(rsum, base, 1, "higher", "lower") or "the same"
    return f"{order}; its RSUM is {change} ({_against(rsum, base, 1)})."


def _difference(one: Spread, other: Spread, digits: int, more: str, less: str) -> str:
    """Say how far apart two means are, in percent of the second; nothing where they print the same."""
    if f"{one.mean:.{digits}f}" == f"{other.mean:.{digits}f}":
        return ""
    word = more if one.mean > other.mean else less
    # Percent of next to nothing, or of less than nothing, tell nobody anything.
    share = abs(one.mean - other.mean) / other.mean * 100 if other.mean > 0 else math.inf
    if share > 100:
        return f"far {word}"
    return f"{share:.0f}\u00a0% {word}" if share >= 1 else f"less than 1\u00a0% {word}"


def _against(one: Spread, other: Spread, digits: int) -> str:
    text = f"{_number(one, digits)} against {_number(other, digits)}"
    known = one.deviation > 0 and other.deviation > 0
    close = known and abs(one.mean - other.mean) <= one.deviation + other.deviation
    return text + (", within the spread of the seeds" if close else "")


def _number(spread: Spread, digits: int) -> str:
    deviation = f"\u00a0±\u00a0{spread.deviation:.{digits}f}" if spread.deviation > 0 else ""
    return f"{spread.mean:.{digits}f}{deviation}"


#: Colour of each loss on a light and on a dark page. Told apart with any kind of colour blindness, readable as text,
#: and neither the green nor the red that mark right and wrong results.
COLOURS = {
    "triplet-hn": ("#ad5f00", "#e69f00"),
    "triplet-sn": ("#2673bd", "#58a6ea"),
    "bcls": ("#5b1a6e", "#f0c2ee"),
}

#: The plots: attribute of a run, and what it says to those who cannot see it.
PLOTS = {
    "train_loss": "Training loss by epoch",
    "val_rsum": "Validation RSUM by epoch",
    "val_tau_true": "Validation τ against the true relevance by epoch",
}

# The least distance of two labels, as a share of the height of a plot.
_LABEL_GAP = 0.11


def curve_svgs(runs: Sequence[Run]) -> dict[str, str]:
    """Draw the training loss and the two validation figures by epoch.

    Each loss has one line, the mean over its seeds, in a band from the lowest to the highest seed.

    Args:
        runs: Any number of runs.

    Returns:
        SVG elements by the keys of :data:`PLOTS`, to be put into a page: they take its font and text colour, and the
        losses' colours from ``--triplet-hn`` and so on where the page sets them.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with drawing(font_size=10.5) as figure_class:
        return {key: _svg(key, runs, figure_class) for key in PLOTS}


def _svg(key: str, runs: Sequence[Run], figure_class: Any) -> str:
    figure = figure_class(figsize=(3.7, 2.5))
    figure.patch.set_alpha(0.0)
    axes = figure.add_axes((0.125, 0.19, 0.635, 0.765))
    axes.patch.set_alpha(0.0)
    ends = {}
    for loss in LOSSES:
        points = _by_epoch(key, [run for run in runs if run.loss == loss])
        if points:
            ends[loss] = _draw(axes, loss, points)
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    axes.yaxis.get_major_locator().set_params(nbins=6)
    axes.tick_params(length=0)
    axes.grid(axis="y", color=INK, alpha=0.13, linewidth=0.8)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_alpha(0.4)
    _label(axes, ends)
    svg = as_element(figure, PLOTS[key], key)
    for loss, (colour, _) in COLOURS.items():
        svg = svg.replace(colour, f"var(--{loss}, {colour})")
    return svg


def _by_epoch(key: str, runs: Sequence[Run]) -> dict[int, list[float]]:
    """Collect the finite values of all seeds; runs need not have looked after the same epochs."""
    found: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        for epoch, value in zip(run.epochs, getattr(run, key), strict=True):
            if math.isfinite(value):
                found[epoch].append(value)
    return dict(sorted(found.items()))


def _draw(axes: Any, loss: str, points: dict[int, list[float]]) -> float:
    """Draw one line with its band, and return where it ends."""
    epochs, colour = list(points), COLOURS[loss][0]
    means = [sum(values) / len(values) for values in points.values()]
    lows, highs = [min(values) for values in points.values()], [max(values) for values in points.values()]
    axes.fill_between(epochs, lows, highs, color=colour, alpha=0.18, linewidth=0)
    # A single point makes no line.
    axes.plot(epochs, means, color=colour, linewidth=1.8, marker="o" if len(epochs) == 1 else "", markersize=4)
    return means[-1]


def _label(axes: Any, ends: dict[str, float]) -> None:
    """Write the name of each loss at the end of its line, moved up or down where two would touch."""
    low, high = axes.get_ylim()
    height = high - low
    wanted = sorted((end - low) / height for end in ends.values())
    for (loss, _), place in zip(sorted(ends.items(), key=lambda end: end[1]), _spread(wanted), strict=True):
        axes.text(1.03, place, LOSSES[loss], color=COLOURS[loss][0], va="center_baseline", transform=axes.transAxes)


def _spread(places: list[float]) -> list[float]:
    """Move rising places apart until all have room.

    Example:
        >>> [round(place, 3) for place in _spread([0.5, 0.52, 0.9])]
        [0.455, 0.565, 0.9]
    """
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        # Labels that touch become one stack around their common middle, which may then touch the stack below.
        while len(groups) > 1 and _bottom(groups[-1]) - _bottom(groups[-2]) < len(groups[-2]) * _LABEL_GAP:
            last = groups.pop()
            groups[-1] += last
    return [_bottom(group) + row * _LABEL_GAP for group in groups for row in range(len(group))]


def _bottom(group: list[float]) -> float:
    """Return where the lowest label of a stack stands; the whole stack stays beside the plot."""
    height = (len(group) - 1) * _LABEL_GAP
    return min(max(sum(group) / len(group) - height / 2, 0.0), 1.0 - height)
