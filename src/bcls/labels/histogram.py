"""The similarities between captions of one image as a picture, on the terminal or in a file."""

from pathlib import Path

import numpy as np

from bcls._extras import require
from bcls.labels.alpha import BINS, CaptionSpread

_WIDTH = 50


def text_histogram(spread: CaptionSpread) -> str:
    """Draw the histogram with a line for each interval from the lowest to the highest that has pairs.

    Example:
        >>> spread = CaptionSpread(0.2, 0.0, 0.8, (), 2, 3, (0,) * 36 + (1, 0, 0, 2))
        >>> print(text_histogram(spread))
        +0.80 to +0.85 ######################### 33.3 %
        +0.85 to +0.90  0.0 %
        +0.90 to +0.95  0.0 %
        +0.95 to +1.00 ################################################## 66.7 %
    """
    counts = np.array(spread.histogram)
    filled = np.flatnonzero(counts)
    edges = np.linspace(-1, 1, BINS + 1)
    lines = []
    for place in range(filled[0], filled[-1] + 1):
        bar = "#" * round(_WIDTH * counts[place] / counts.max())
        share = 100 * counts[place] / counts.sum()
        lines.append(f"{edges[place]:+.2f} to {edges[place + 1]:+.2f} {bar} {share:.1f} %")
    return "\n".join(lines)


def plot_histogram(spread: CaptionSpread, path: Path, title: str) -> None:
    """Draw the histogram with the mean and one alpha to either side.

    Args:
        spread: What :func:`bcls.labels.suggest_alpha` gave.
        path: File to write, such as ``alpha.png`` or ``alpha.svg``.
        title: Name of the dataset.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    require("matplotlib", "plots", "drawing the similarities")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    edges = np.linspace(-1, 1, BINS + 1)
    axes.stairs(100 * np.array(spread.histogram) / spread.pairs, edges, fill=True, alpha=0.6)
    axes.axvline(spread.mean, color="black", label=f"mean {spread.mean:.2f}")
    axes.axvspan(
        spread.mean - spread.alpha, spread.mean + spread.alpha, alpha=0.15, label=f"± alpha {spread.alpha:.3f}"
    )
    axes.set(xlabel="similarity of two captions of one image", ylabel="% of pairs", title=title)
    axes.legend()
    figure.savefig(path)
