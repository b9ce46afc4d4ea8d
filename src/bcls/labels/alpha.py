"""How wide a window should be: the spread of similarities between captions of one image.

The similarities between captions of one image as a picture, on the terminal or in a file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import fail
from bcls._core.extras import require
from bcls._core.progress import progress
from bcls.labels.encoders import load_text_encoder

#: Intervals of the histogram from -1 to 1.
BINS = 40


class Captioned(Protocol):
    """Anything with captions of images: :class:`bcls.data.Dataset`, the drawn scenes, or your own."""

    @property
    def texts(self) -> list[str]:
        """The captions."""
        ...

    @property
    def image_of_caption(self) -> NDArray[np.int64]:
        """Whose caption each is."""
        ...


@dataclass(frozen=True)
class CaptionSpread:
    """Similarities between captions of one image, over all images."""

    alpha: float
    """Pooled standard deviation over all pairs of captions of one image, the paper's choice of alpha."""
    per_image: float
    """Mean over images of the standard deviation within one; smaller, for images differ in how alike theirs are."""
    mean: float
    """Mean similarity."""
    quantiles: tuple[float, ...]
    """Similarity at 5, 25, 50, 75 and 95 percent of the pairs."""
    images: int
    """Images with two captions or more; the others say nothing."""
    pairs: int
    """Pairs of captions."""
    histogram: tuple[int, ...]
    """Pairs in each of 40 equal intervals of similarity from -1 to 1; the upper end is in the last."""


def suggest_alpha(dataset: Captioned, encoder: str = "minilm") -> CaptionSpread:
    """Relaxation alpha for a dataset: how far labels of one meaning lie apart.

    Args:
        dataset: Captions and whose they are; use the training split.
        encoder: Name for :func:`bcls.labels.load_text_encoder`; the one that makes the labels.

    Returns:
        The statistic with its surroundings; ``alpha`` goes into :class:`bcls.losses.KendallWindowLoss`.

    Raises:
        ValueError: If no image has two captions.
    """
    model = load_text_encoder(encoder)
    with progress(f"captions by {encoder}", len(set(dataset.texts))) as step:
        vectors = model.encode(dataset.texts, lambda done, _: step(done))
    return caption_spread(vectors, dataset.image_of_caption)


def caption_spread(vectors: NDArray[np.float32], image_of_caption: NDArray[np.int64]) -> CaptionSpread:
    r"""Spread of the cosines between captions of one image.

    .. math::
        \alpha = \mathrm{std} \{ \cos(x_k, x_l) : k < l, \mathrm{image}(k) = \mathrm{image}(l) \}

    Args:
        vectors: ``(C, d)`` unit rows.
        image_of_caption: ``(C,)`` integers.

    Raises:
        ValueError: If no image has two captions.

    Example:
        >>> vectors = np.array([[1, 0], [0.6, 0.8], [1, 0], [1, 0], [0, 1]], dtype=np.float32)
        >>> caption_spread(vectors, np.array([0, 0, 1, 1, 2])).alpha  # cosines 0.6 and 1
        0.2
    """
    order = np.argsort(image_of_caption, kind="stable")
    _, counts = np.unique(image_of_caption, return_counts=True)
    starts = np.cumsum(counts) - counts
    cosines, deviations = [], []
    for count in np.unique(counts[counts > 1]):  # images with as many captions, together
        rows = order[starts[counts == count][:, None] + np.arange(count)]
        all_pairs = np.einsum("ikd,ild->ikl", vectors[rows], vectors[rows], dtype=np.float64)
        upper = all_pairs[:, *np.triu_indices(count, k=1)]
        cosines.append(upper.ravel())
        deviations.append(upper.std(axis=1))
    if not cosines:
        fail("dataset", "images with two captions or more", f"{len(counts)} images with one", "keep the paper's 0.2")
    every = np.concatenate(cosines)
    quantiles = tuple(float(value) for value in np.quantile(every, (0.05, 0.25, 0.5, 0.75, 0.95)))
    return CaptionSpread(
        alpha=round(float(every.std()), 6),
        per_image=float(np.concatenate(deviations).mean()),
        mean=float(every.mean()),
        quantiles=quantiles,
        images=int((counts > 1).sum()),
        pairs=len(every),
        # Rounding may put the cosine of equal captions a little above 1.
        histogram=tuple(int(count) for count in np.histogram(every.clip(-1, 1), bins=BINS, range=(-1, 1))[0]),
    )


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
