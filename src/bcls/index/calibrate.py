"""Measures an index, so that its similarities can be turned into scores."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bcls.index.calibration import Calibration, fit
from bcls.index.catalog import Catalog
from bcls.index.embedding import text_vectors
from bcls.index.engine import Engine
from bcls.index.rerank import scores_of
from bcls.index.source import Source
from bcls.index.texts import never_shown, shown

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel

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
