"""How well labels agree with people: the paper's Table II, and more judgements than it has."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bcls.labels.judged import Judged

_RESAMPLES = 1000


@dataclass(frozen=True)
class Quality:
    """Agreement of one kind of labels with people."""

    data: str
    """Whose judgements, such as ``"cxc-sits"``."""
    encoder: str
    """Name of the text encoder or metric."""
    aggregate: str
    """How the captions of an image were put together; ``"references"`` by the metric, ``"image"`` from the photo."""
    subset: str
    """``"all"`` pairs, or the ``"others"``, without the images' own captions."""
    pairs: int
    """How many pairs."""
    pearson: float
    """Pearson's correlation with the mean judgement."""
    spearman: float
    """Spearman's rank correlation."""
    low: float
    """Lower end of the 95 % interval of Pearson's, by resampling images."""
    high: float
    """Upper end."""


def label_quality(encoder: str, aggregate: str, judged: Judged, labels: NDArray[np.float64]) -> Iterator[Quality]:
    """Agreement of labels with people: over all pairs, and where images' own captions are among them without these.

    Args:
        encoder: Who made the labels, for the row.
        aggregate: How, for the row.
        judged: The pairs and what people said.
        labels: ``(P,)`` labels of the pairs.
    """
    own = judged.own
    yield _row(encoder, aggregate, "all", judged, labels, np.ones_like(own))
    if own.any() and np.count_nonzero(~own) > 1:
        yield _row(encoder, aggregate, "others", judged, labels, ~own)


def _row(
    encoder: str,
    aggregate: str,
    subset: str,
    judged: Judged,
    labels: NDArray[np.float64],
    chosen: NDArray[np.bool_],
) -> Quality:
    from scipy import stats

    mine, people = labels[chosen], judged.ratings[chosen]
    low, high = _interval(mine, people, judged.groups[chosen])
    pearson = float(stats.pearsonr(mine, people).statistic)
    spearman = float(stats.spearmanr(mine, people).statistic)
    return Quality(judged.data, encoder, aggregate, subset, len(mine), pearson, spearman, low, high)


def _interval(
    labels: NDArray[np.float64], scores: NDArray[np.float64], images: NDArray[np.int64]
) -> tuple[float, float]:
    """95 % bootstrap interval of Pearson's correlation; images are drawn, each with all its pairs.

    Correlation needs only six sums, and a draw of images adds up the sums of its images.
    """
    _, group = np.unique(images, return_inverse=True)
    columns = (np.ones_like(labels), labels, scores, labels**2, scores**2, labels * scores)
    sums = np.stack([np.bincount(group, weights=column) for column in columns], axis=1)  # (images, 6)
    draws = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=_RESAMPLES)
    count, x, y, xx, yy, xy = (draws @ sums).T
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = (xy - x * y / count) / np.sqrt((xx - x**2 / count) * (yy - y**2 / count))
    # A draw whose pairs are all alike has no correlation.
    low, high = np.percentile(kept, (2.5, 97.5)) if len(kept := drawn[np.isfinite(drawn)]) else (np.nan, np.nan)
    return float(low), float(high)
