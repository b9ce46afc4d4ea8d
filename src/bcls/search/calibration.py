"""Calibration: similarities of a model become scores between 0 and 1 that are comparable across indexes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail
from bcls.search.catalog import Catalog
from bcls.search.embedding import SearchModel, text_vectors
from bcls.search.engine import Engine

#: Results with at least this score count as relevant.
FITS = 0.5
#: Captions or photos that are sampled, also for models with cross attention, and candidates per text for these.
SAMPLE, CROSS_SAMPLE, CANDIDATES = 1000, 48, 16
#: With at least this many captions, they are used as correct results.
ENOUGH = 20
_QUANTILES = 65
#: Weight of the wide curve in a distribution.
_WIDE = 0.02
#: Scores of named photos for a text, by a model with cross attention.
PairScores = Callable[[list[str], str], npt.NDArray[np.float64]]
_TEXTS = json.loads(Path(__file__).with_name("calibration.json").read_text(encoding="utf-8"))
#: Everyday scenes that are common in photo collections.
SCENES: list[str] = _TEXTS["scenes"]
#: Sentences that no photo can show.
NEVER_SHOWN = [f"{subject} {statement}" for subject in _TEXTS["subjects"] for statement in _TEXTS["statements"]]


@dataclass(frozen=True)
class Calibration:
    r"""Maps a similarity to a score, given the similarities of correct results and of the best wrong results.

    .. math:: score(s) = \frac{P(S_{right} \le s)}{P(S_{right} \le s) + P(S_{wrong} > s)}

    ``right`` are similarities of correct results. ``wrong`` are similarities of the *best* result in the whole index
    for queries that nothing in it matches, so they depend on the size of the index. The score increases with s. It is
    0.5 where the share of correct results below s equals the share of wrong results above it (the equal error rate).
    Both distributions are stored as quantiles and interpolated linearly, with a small slope beyond both ends that
    keeps the order.

    Attributes:
        right: Quantiles of the similarities of correct results, ascending.
        wrong: Quantiles of the best similarities of wrong results, ascending.
        origin: What was measured, ``"captions"``, ``"texts"`` or ``"photos"``.

    Example:
        >>> scores = Calibration([0.4, 0.6, 0.8], [0.1, 0.2, 0.5], "captions")
        >>> [round(float(one), 2) for one in scores([0.0, 0.1, 0.45, 0.7, 0.9])]
        [0.0, 0.0, 0.59, 1.0, 1.0]
    """

    right: list[float]
    wrong: list[float]
    origin: str

    def __post_init__(self) -> None:
        for name in ("right", "wrong"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or (np.diff(values) < 0).any():
                fail(name, "quantiles in ascending order", getattr(self, name), "run `bcls index` again")

    def __call__(self, similarity: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Scores of similarities, in the same shape."""
        values = np.asarray(similarity, dtype=np.float64)
        right = share_below(values, self.right)
        wrong = 1 - share_below(values, self.wrong)
        return right / (right + wrong)


def fit(right: npt.ArrayLike, wrong: npt.ArrayLike, origin: str) -> Calibration:
    """Compute a calibration from two samples.

    Args:
        right: Similarities of correct results, at least one.
        wrong: Best similarities of wrong results, at least one.
        origin: What was measured.

    Example:
        >>> fit([0.5], [0.1, 0.2], "texts").right[0]
        0.5
    """
    samples = [np.asarray(sample, dtype=np.float64) for sample in (right, wrong)]
    low, high = ([round(float(one), 6) for one in np.quantile(one, np.linspace(0, 1, _QUANTILES))] for one in samples)
    return Calibration(low, high, origin)


def share_below(values: npt.NDArray[np.float64], quantiles: list[float]) -> npt.NDArray[np.float64]:
    """Share of a distribution below each value: strictly increasing, strictly between 0 and 1."""
    points = np.asarray(quantiles, dtype=np.float64)
    shares = np.linspace(0, 1, len(points)) if len(points) > 1 else np.array([0.5])
    half = max(float(points[-1] - points[0]) / 2, 0.025)
    inside = np.interp(values, points, shares)
    # A wide Cauchy distribution gets a small weight, which gives the ends their slope.
    curve = 0.5 + np.arctan((values - (points[0] + points[-1]) / 2) / half) / np.pi
    return np.asarray((1 - _WIDE) * inside + _WIDE * curve)


def calibrate(
    catalog: Catalog, photos: Engine, captions: Engine, model: SearchModel, pair_scores: PairScores | None = None
) -> dict[str, Calibration]:
    """Fit the scores of an index; see :class:`Calibration`.

    ``"text"`` is for a text and a photo. Correct results are captions with their own photos or, if there are few
    captions, everyday scenes with the best photo for each. Wrong results are sentences that no photo can show, with
    the best photo for each. ``"photo"`` is for two photos: correct are nearest neighbors, wrong are random pairs.

    Args:
        catalog: The entries.
        photos: Vectors of photos.
        captions: Vectors of captions.
        model: The model of the index.
        pair_scores: Scores of photos for a text, for models with cross attention.

    Returns:
        The two calibrations, or an empty dict for an empty index.
    """
    numbers = catalog.numbers()
    if not len(numbers):
        return {}
    right, origin = _own_captions(catalog, photos, captions, pair_scores), "captions"
    if len(right) < ENOUGH:
        right, origin = _best_photos(SCENES, catalog, photos, model, pair_scores), "texts"
    wrong = _best_photos(NEVER_SHOWN[:: 1 if pair_scores is None else 4], catalog, photos, model, pair_scores)
    return {"text": fit(right, wrong, origin), "photo": _between_photos(numbers, photos)}


def _own_captions(
    catalog: Catalog, photos: Engine, captions: Engine, pair_scores: PairScores | None
) -> npt.NDArray[np.float64]:
    """Similarities of captions with their own photos."""
    chosen = _sample(catalog.numbers("captions"), SAMPLE if pair_scores is None else CROSS_SAMPLE)
    found = list(catalog.captions(chosen).values())
    if not found:
        return np.empty(0)
    if pair_scores is not None:
        scores = np.concatenate([pair_scores([one.name], one.text) for one in found])
        return np.asarray(scores[np.isfinite(scores)])
    texts, images = captions.vectors([one.number for one in found]), photos.vectors([one.photo for one in found])
    return np.asarray((texts * images).sum(axis=1), dtype=np.float64)


def _best_photos(
    texts: Sequence[str], catalog: Catalog, photos: Engine, model: SearchModel, pair_scores: PairScores | None
) -> npt.NDArray[np.float64]:
    """Similarity of the best photo for each text."""
    found = photos.search(text_vectors(model, texts), 1 if pair_scores is None else CANDIDATES)
    if pair_scores is None:
        return np.asarray(found.scores[:, 0], dtype=np.float64)
    best = []
    for text, numbers in zip(texts, found.numbers, strict=True):
        names = [photo.name for photo in catalog.photos(numbers[numbers >= 0].tolist()).values()]
        best.append(float(np.max(pair_scores(names, text))))
    values = np.array(best)
    return values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)


def _between_photos(numbers: npt.NDArray[np.int64], photos: Engine) -> Calibration:
    vectors = photos.vectors(_sample(numbers, SAMPLE // 4))
    nearest = photos.search(vectors, 2)
    # The first neighbor is the photo itself, or a copy of it.
    right = nearest.scores[:, 1][nearest.numbers[:, 1] >= 0]
    wrong = (vectors @ np.roll(vectors, 1, axis=0).T).diagonal() if len(vectors) > 1 else np.zeros(1)
    return fit(right if len(right) else np.ones(1), wrong, "photos")


def _sample(numbers: npt.NDArray[np.int64], size: int) -> list[int]:
    """At most ``size`` of the numbers, always the same ones for the same input."""
    if len(numbers) > size:
        numbers = np.sort(np.random.default_rng(0).choice(numbers, size, replace=False))
    return [int(number) for number in numbers]
