"""How well labels agree with people: the paper's Table II."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls._progress import Step, progress
from bcls.labels.encoder import load_text_encoder
from bcls.labels.judgements import Captions, Judgements, read_captions, read_judgements
from bcls.labels.pairs import pair_relevance

_RESAMPLES = 1000


@dataclass(frozen=True)
class Quality:
    """Agreement of one kind of labels with people."""

    encoder: str
    """Name of the text encoder."""
    aggregate: str
    """How the captions of an image were put together."""
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


def label_quality(cxc: Path, captions: Path, encoders: list[str], aggregates: list[str]) -> list[Quality]:
    """Compare labels with the CxC judgements, one row for each encoder, aggregate and subset of pairs.

    Args:
        cxc: CxC's ``sits_*.csv``, plain or ``.gz``.
        captions: The captions as JSON, plain or ``.gz``; they must hold every caption of every judged image.
        encoders: Names for :func:`bcls.labels.load_text_encoder`.
        aggregates: ``"max"``, ``"mean"``, ``"paired"``.

    Raises:
        ValueError: If a file is not what it should be, or they do not belong together.
    """
    texts, judged = read_captions(captions), read_judgements(cxc)
    rows = _rows_of(texts, judged, captions)
    own = texts.image_ids[rows] == judged.image_ids
    table = []
    for name in encoders:
        encoder = load_text_encoder(name)
        with progress(f"captions by {name}", len(set(texts.texts))) as step:
            vectors = encoder.encode(texts.texts, partial(_only_done, step))
        for aggregate in aggregates:
            labels = pair_relevance(vectors, texts.image_ids, judged.image_ids, rows, aggregate)
            for subset, chosen in (("all", np.ones_like(own)), ("others", ~own)):
                if chosen.sum() > 1:
                    table.append(_row(name, aggregate, subset, labels[chosen], _only(judged, chosen)))
    return table


def _only_done(step: Step, done: int, _: int) -> None:
    step(done)


def _rows_of(texts: Captions, judged: Judgements, path: Path) -> NDArray[np.int64]:
    """Row of each judged caption, with a count of those that are not there."""
    order = np.argsort(texts.caption_ids)
    place = np.searchsorted(texts.caption_ids[order], judged.caption_ids).clip(max=len(order) - 1)
    rows: NDArray[np.int64] = order[place]
    lost = (texts.caption_ids[rows] != judged.caption_ids) | ~np.isin(judged.image_ids, texts.image_ids)
    if lost.any():
        fail(
            "--captions",
            "every judged caption, and the captions of every judged image",
            f"{int(lost.sum())} of {len(lost)} pairs without, in {path}",
            "give the captions of the same split as the judgements",
        )
    return rows


def _only(judged: Judgements, chosen: NDArray[np.bool_]) -> Judgements:
    return Judgements(judged.image_ids[chosen], judged.caption_ids[chosen], judged.scores[chosen])


def _row(encoder: str, aggregate: str, subset: str, labels: NDArray[np.float32], judged: Judgements) -> Quality:
    from scipy import stats

    low, high = _interval(labels.astype(np.float64), judged.scores, judged.image_ids)
    pearson = float(stats.pearsonr(labels, judged.scores).statistic)
    spearman = float(stats.spearmanr(labels, judged.scores).statistic)
    return Quality(encoder, aggregate, subset, len(labels), pearson, spearman, low, high)


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
    low, high = np.nanpercentile(drawn, (2.5, 97.5))
    return float(low), float(high)
