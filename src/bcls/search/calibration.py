"""Texts that an index is measured with: things that photos show, and things that no photo shows.

From a similarity to a score between 0 and 1 that means the same for every model and every index.

Measures an index, so that its similarities can be turned into scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail
from bcls.search.catalog import Catalog
from bcls.search.embedding import scores_of, text_vectors
from bcls.search.engine import Engine
from bcls.search.source import Source

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel

_SCENES = (
    "a dog running on a beach",
    "a cat asleep on a sofa",
    "a birthday cake with candles",
    "children playing football on grass",
    "a crowded street at night",
    "mountains covered in snow",
    "a red car parked by the road",
    "two people riding bicycles",
    "a plate of food on a table",
    "a man playing the guitar",
    "a woman in a white dress",
    "a boat on a lake",
    "a sunset over the sea",
    "a group of friends smiling at the camera",
    "a horse in a field",
    "a bird on a branch",
    "a train at a station",
    "flowers in a garden",
    "a baby in a high chair",
    "skiers on a slope",
    "a person climbing a rock",
    "a bridge over a river",
    "a bookshelf full of books",
    "an old church",
    "a surfer on a wave",
    "a girl jumping into a pool",
    "a man cooking in a kitchen",
    "a market stall with fruit",
    "a tent in the woods",
    "people dancing at a wedding",
    "a black and white dog catching a frisbee",
    "a tall building with many windows",
)
_SUBJECTS = (
    "the interest rate",
    "the second theorem",
    "a clause in the contract",
    "the tax declaration",
    "her opinion on grammar",
    "the exchange of letters about copyright",
    "the definition of an integer",
    "yesterday's password",
)
_STATEMENTS = (
    "was postponed until further notice",
    "follows from the assumption above",
    "is no longer compatible with version two",
    "was rejected by a narrow majority",
    "cannot be inferred from the data",
    "remains subject to approval",
    "was misquoted in the footnote",
    "depends on the rate of inflation",
)


def shown() -> tuple[str, ...]:
    """Everyday scenes that collections of photos often have."""
    return _SCENES


def never_shown() -> tuple[str, ...]:
    """Sentences about things that cannot be photographed.

    Example:
        >>> never_shown()[0]
        'the interest rate was postponed until further notice'
    """
    return tuple(f"{subject} {statement}" for subject in _SUBJECTS for statement in _STATEMENTS)


#: From this score on, a result is said to fit.
FITS = 0.5
_STEPS = 65
#: Share of the wide curve in a distribution.
_WIDE = 0.02


@dataclass(frozen=True)
class Calibration:
    r"""Compares a similarity with those of right results and of the best wrong ones.

    .. math:: score(s) = \frac{P(S_{right} \le s)}{P(S_{right} \le s) + P(S_{wrong} > s)}

    ``right`` are similarities of results that are right, ``wrong`` those of the *best* result, out of the whole index,
    for queries that nothing in it answers; the size of the index is in there. The score grows with s. It is 0.5 where
    as many right results lie below s as wrong ones lie above it (the equal error rate), near 0 where wrong results
    reach easily, near 1 where they hardly ever do. Both distributions are kept as quantiles and are straight lines
    between them, with a short slope beyond both ends so that the order is kept there too.

    Attributes:
        right: Quantiles of the similarities of right results, from the lowest to the highest.
        wrong: Quantiles of the best similarities of wrong results.
        origin: Where they come from, ``"captions"`` or ``"texts"`` or ``"photos"``.

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
                fail(name, "quantiles in rising order", getattr(self, name), "fit the calibration again")

    def __call__(self, similarity: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Scores of similarities, in the same shape."""
        values = np.asarray(similarity, dtype=np.float64)
        right = _below(values, self.right)
        wrong = 1 - _below(values, self.wrong)
        return right / (right + wrong)


def fit(right: npt.ArrayLike, wrong: npt.ArrayLike, origin: str) -> Calibration:
    """Take the quantiles of two samples.

    Args:
        right: Similarities of right results, at least one.
        wrong: Best similarities of wrong ones, at least one.
        origin: What the samples are.

    Example:
        >>> fit([0.5], [0.1, 0.2], "texts").right[0]
        0.5
    """
    samples = [np.asarray(sample, dtype=np.float64) for sample in (right, wrong)]
    low, high = ([round(float(one), 6) for one in np.quantile(one, np.linspace(0, 1, _STEPS))] for one in samples)
    return Calibration(low, high, origin)


def _below(values: npt.NDArray[np.float64], quantiles: list[float]) -> npt.NDArray[np.float64]:
    """Share of a distribution below each value: never quite 0 or 1, and rising everywhere."""
    points = np.asarray(quantiles, dtype=np.float64)
    shares = np.linspace(0, 1, len(points)) if len(points) > 1 else np.array([0.5])
    half = max(float(points[-1] - points[0]) / 2, 0.025)
    inside = np.interp(values, points, shares)
    # A wide curve (Cauchy's) counts a little, which lends the ends their slope.
    curve = 0.5 + np.arctan((values - (points[0] + points[-1]) / 2) / half) / np.pi
    return np.asarray((1 - _WIDE) * inside + _WIDE * curve)


#: Captions or photos that are measured at most, and candidates of a text for a model that ranks again.
SAMPLE, CROSS_SAMPLE, CANDIDATES = 1000, 48, 16
#: Scores of named photos for a text, by a model that ranks again.
_Again = Callable[[list[str], str], npt.NDArray[np.float64]]
#: From this many captions on, they are taken for right answers.
ENOUGH = 20


def calibrate(
    catalog: Catalog,
    photos: Engine,
    captions: Engine,
    model: "RetrievalModel",
    source: Source,
    *,
    cross: bool,
    max_pixels: int,
) -> dict[str, Calibration]:
    """Fit the scores of an index; see :class:`Calibration`.

    ``"text"`` is for a text and a photo: right answers are captions with their own photos, or, where there are few
    captions, everyday scenes with the best photo for them; wrong ones are sentences that no photo shows with the best
    photo for them. ``"photo"`` is for two photos: right are nearest neighbours, wrong are random pairs.

    Args:
        catalog: The entries.
        photos: Vectors of photos.
        captions: Vectors of captions.
        model: The model of the index.
        source: Where the photos are, for a model that ranks again.
        cross: Whether it does.
        max_pixels: Most pixels of a photo that it reads for that.

    Returns:
        The two, or nothing for an empty index.
    """
    numbers = catalog.numbers()
    if not len(numbers):
        return {}
    again = partial(scores_of, model, source, max_pixels=max_pixels) if cross else None
    right, origin = _own(catalog, photos, captions, again), "captions"
    if len(right) < ENOUGH:
        right, origin = _best(list(shown()), catalog, photos, model, again), "texts"
    wrong = _best(list(never_shown())[:: 4 if cross else 1], catalog, photos, model, again)
    return {"text": fit(right, wrong, origin), "photo": _between_photos(numbers, photos)}


def _own(catalog: Catalog, photos: Engine, captions: Engine, again: _Again | None) -> npt.NDArray[np.float64]:
    """Similarities of captions with their own photos."""
    chosen = _some(catalog.numbers("captions"), SAMPLE if again is None else CROSS_SAMPLE)
    found = list(catalog.captions([int(one) for one in chosen]).values())
    if not found:
        return np.empty(0)
    if again is not None:
        kept = [again([one.name], one.text) for one in found]
        return np.concatenate([one for one in kept if np.isfinite(one).all()] or [np.empty(0)])
    texts, images = captions.vectors([one.number for one in found]), photos.vectors([one.photo for one in found])
    return np.asarray((texts * images).sum(axis=1), dtype=np.float64)


def _best(
    texts: list[str], catalog: Catalog, photos: Engine, model: "RetrievalModel", again: _Again | None
) -> npt.NDArray[np.float64]:
    """Similarity of the best photo for each text."""
    found = photos.search(text_vectors(model, texts), 1 if again is None else CANDIDATES)
    if again is None:
        return np.asarray(found.scores[:, 0], dtype=np.float64)
    best = []
    for text, numbers in zip(texts, found.numbers, strict=True):
        names = [photo.facts.name for photo in catalog.photos([int(one) for one in numbers if one >= 0]).values()]
        best.append(float(np.max(again(names, text))))
    values = np.array(best)
    return values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)


def _between_photos(numbers: npt.NDArray[np.int64], photos: Engine) -> Calibration:
    chosen = _some(numbers, SAMPLE // 4)
    vectors = photos.vectors([int(one) for one in chosen])
    nearest = photos.search(vectors, 2)
    # The first is the photo itself, or a copy of it.
    right = nearest.scores[:, 1][nearest.numbers[:, 1] >= 0]
    wrong = (vectors @ np.roll(vectors, 1, axis=0).T).diagonal() if len(vectors) > 1 else np.zeros(1)
    return fit(right if len(right) else np.ones(1), wrong, "photos")


def _some(numbers: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """At most so many, always the same ones of the same numbers."""
    if len(numbers) <= most:
        return numbers
    return np.sort(np.random.default_rng(0).choice(numbers, most, replace=False))
