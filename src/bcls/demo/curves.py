"""The course of training as three small plots, ready to stand in a page."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from bcls._plots import INK, as_element, drawing
from bcls.demo.results import LOSSES, Run

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
