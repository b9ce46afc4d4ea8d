"""Suggested relaxation alpha: the spread of similarities between captions of one image."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import fail
from bcls.labels.cache import caption_vectors
from bcls.reports.charts import figure_file

#: Edges of the 40 equal intervals of the histogram.
_EDGES = np.linspace(-1, 1, 41)


class Captioned(Protocol):
    """Anything with captions of images: :class:`bcls.data.Dataset`, synthetic scenes, or a class of your own."""

    @property
    def texts(self) -> list[str]:
        """The captions."""

    @property
    def image_of_caption(self) -> NDArray[np.int64]:
        """The image of each caption."""


@dataclass(frozen=True)
class CaptionSpread:
    """Similarities between captions of one image, over all images.

    Attributes:
        alpha: Pooled standard deviation over all pairs of captions of one image, the paper's choice of alpha.
        per_image: Mean over images of the standard deviation within an image. It is smaller than ``alpha``, because
            images differ in how similar their captions are.
        mean: Mean similarity.
        quantiles: Similarity at 5, 25, 50, 75 and 95 percent of the pairs.
        images: Images with two captions or more; the others have no pairs.
        pairs: Pairs of captions.
        histogram: Pairs in each of 40 equal intervals of similarity from -1 to 1; the last one includes 1.
    """

    alpha: float
    per_image: float
    mean: float
    quantiles: tuple[float, ...]
    images: int
    pairs: int
    histogram: tuple[int, ...]


def suggest_alpha(dataset: Captioned, encoder: str = "minilm") -> CaptionSpread:
    """Suggest the relaxation alpha for a dataset: the spread of labels between captions of one image.

    Args:
        dataset: Captions and their images; use the training split.
        encoder: Name for :func:`bcls.labels.load_text_encoder`; the one that computes the labels.

    Returns:
        The statistics; ``alpha`` is an argument of :class:`bcls.losses.KendallWindowLoss`.

    Raises:
        ValueError: No image has two captions.
    """
    _count_captions(dataset.image_of_caption)  # reports a dataset without pairs before the encoder runs
    return caption_spread(caption_vectors(dataset, encoder), dataset.image_of_caption)


def caption_spread(vectors: NDArray[np.float32], image_of_caption: NDArray[np.int64]) -> CaptionSpread:
    r"""Compute the spread of the cosines between captions of one image.

    .. math::
        \alpha = \mathrm{std} \{ \cos(x_k, x_l) : k < l, \mathrm{image}(k) = \mathrm{image}(l) \}

    Args:
        vectors: ``(C, d)`` unit rows.
        image_of_caption: ``(C,)`` integers.

    Raises:
        ValueError: No image has two captions.

    Example:
        >>> vectors = np.array([[1, 0], [0.6, 0.8], [1, 0], [1, 0], [0, 1]], dtype=np.float32)
        >>> caption_spread(vectors, np.array([0, 0, 1, 1, 2])).alpha  # cosines 0.6 and 1
        0.2
    """
    counts = _count_captions(image_of_caption)
    order = np.argsort(image_of_caption, kind="stable")
    starts = np.cumsum(counts) - counts
    cosines, deviations = [], []
    for count in np.unique(counts[counts > 1]):  # all images with the same number of captions at a time
        rows = order[starts[counts == count][:, None] + np.arange(count)]
        all_pairs = np.einsum("ikd,ild->ikl", vectors[rows], vectors[rows], dtype=np.float64)
        upper = all_pairs[:, *np.triu_indices(count, k=1)]
        cosines.append(upper.ravel())
        deviations.append(upper.std(axis=1))
    every = np.concatenate(cosines)
    return CaptionSpread(
        alpha=round(float(every.std()), 6),
        per_image=float(np.concatenate(deviations).mean()),
        mean=float(every.mean()),
        quantiles=tuple(np.quantile(every, (0.05, 0.25, 0.5, 0.75, 0.95)).tolist()),
        images=int((counts > 1).sum()),
        pairs=len(every),
        # Rounding may give equal captions a cosine slightly above 1.
        histogram=tuple(np.histogram(every.clip(-1, 1), bins=_EDGES)[0].tolist()),
    )


def _count_captions(image_of_caption: NDArray[np.int64]) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.unique(image_of_caption, return_counts=True)[1]
    if not (counts > 1).any():
        fail("dataset", "images with two captions or more", f"{len(counts)} images with one", "use the paper's 0.2")
    return counts


def text_histogram(spread: CaptionSpread) -> str:
    """Format the histogram as text, one line for each interval from the first to the last that is not empty.

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
    lines = []
    for number in range(filled[0], filled[-1] + 1):
        bar = "#" * round(50 * counts[number] / counts.max())
        percent = 100 * counts[number] / counts.sum()
        lines.append(f"{_EDGES[number]:+.2f} to {_EDGES[number + 1]:+.2f} {bar} {percent:.1f} %")
    return "\n".join(lines)


def plot_histogram(spread: CaptionSpread, path: Path, title: str) -> None:
    """Plot the histogram with the mean and one alpha to either side.

    Args:
        spread: The result of :func:`bcls.labels.suggest_alpha`.
        path: File to write, such as ``alpha.png`` or ``alpha.svg``.
        title: Title, such as the name of the dataset.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with figure_file(path, (6, 3.5)) as figure:
        axes = figure.subplots()
        axes.stairs(100 * np.array(spread.histogram) / spread.pairs, _EDGES, fill=True, alpha=0.6)
        axes.axvline(spread.mean, color="black", label=f"mean {spread.mean:.2f}")
        low, high = spread.mean - spread.alpha, spread.mean + spread.alpha
        axes.axvspan(low, high, alpha=0.15, label=f"± alpha {spread.alpha:.3f}")
        axes.set(xlabel="similarity of two captions of one image", ylabel="% of pairs", title=title)
        axes.legend()
