"""Calibration: similarities of a model become scores between 0 and 1 that are comparable across indexes.

An index has a calibration of its own (:class:`Calibration`). A model may have one as well, which gives the probability
that a photo fits a text, for indexes of any size (:class:`ModelCalibration`).
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_numbers, fail
from bcls.data.text_files import read_json
from bcls.models.folder import CALIBRATION
from bcls.search.catalog import Catalog
from bcls.search.embedding import SearchModel, text_vectors
from bcls.search.engine import Engine

Floats: TypeAlias = npt.NDArray[np.float64]
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
PairScores = Callable[[list[str], str], Floats]
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

    def __call__(self, similarity: npt.ArrayLike) -> Floats:
        """Scores of similarities, in the same shape."""
        values = np.asarray(similarity, dtype=np.float64)
        right = _share_below(values, self.right)
        wrong = 1 - _share_below(values, self.wrong)
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


def _share_below(values: Floats, quantiles: list[float]) -> Floats:
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


def _own_captions(catalog: Catalog, photos: Engine, captions: Engine, pair_scores: PairScores | None) -> Floats:
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
) -> Floats:
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


#: Files in the folder of a model.
SETTINGS, BACKGROUND = CALIBRATION
_HINT = "install or export the model again"


@dataclass(frozen=True)
class ModelCalibration:
    r"""Probability that a photo fits a text, from their similarity s and from the text alone.

    .. math::
        p = \sigma(a_0 + a_1 s) \cdot \sigma(b_0 + b_1 s + b_2 \mu_T + b_3 \sigma_T + b_4 c_T)

    The first factor was fitted to people's judgements of photos and captions. The second one recognises texts about
    things that the photos do not show: :math:`\mu_T` and :math:`\sigma_T` are mean and standard deviation of the
    similarities of the text with fixed background photos, and :math:`c_T` is its largest cosine with centroids of the
    training captions, see :mod:`bcls.models.open_vocabulary`. Nothing depends on the index. The order of the photos
    stays that of the similarities, since :math:`a_1` and :math:`b_1` are positive.

    Attributes:
        pair: a.
        query: b.
        threshold: Photos with at least this probability count as fitting.
        gate: First and last coordinate of the class part of a text vector, and middle and width of its gate.
        background: ``(B, D)`` vectors of the background photos.
        word: How a text of one word is encoded, ``{}`` for the word.
    """

    pair: tuple[float, ...]
    query: tuple[float, ...]
    threshold: float
    gate: tuple[float, ...]
    background: Floats
    word: str = "{}"

    def prompt(self, text: str) -> str:
        """The text that is encoded for a query; the model was trained on sentences, and knows few words alone."""
        return text if " " in text else self.word.replace("{}", text)

    def __call__(self, similarity: npt.ArrayLike, vector: npt.ArrayLike) -> Floats:
        """Probabilities of photos with these similarities to a text, in the same shape.

        Args:
            similarity: Any shape.
            vector: ``(D,)`` vector of the text.
        """
        values, text = np.asarray(similarity, dtype=np.float64), np.asarray(vector, dtype=np.float64)
        mean, deviation, nearest = self.describe(text[None])[0]
        bias, slope, *others = self.query
        known = bias + slope * values + float(np.dot(others, (mean, deviation, nearest)))
        return _sigmoid(self.pair[0] + self.pair[1] * values) * _sigmoid(known)

    def describe(self, vectors: npt.ArrayLike) -> Floats:
        """``(C, 3)``: mean, standard deviation and nearest centroid's cosine of text vectors ``(C, D)``."""
        return query_terms(np.asarray(vectors, dtype=np.float64), self.background, self.gate)


def query_terms(texts: Floats, background: Floats, gate: tuple[float, ...]) -> Floats:
    """The terms of :meth:`ModelCalibration.describe`."""
    scores = np.einsum("cd,bd->cb", texts, background)  # the threads of a matrix product cost more for one text
    first, last, middle, width = gate
    inside = (texts[:, int(first) : int(last)] ** 2).sum(1)
    outside = (texts**2).sum(1) - inside
    tiny = 1e-12
    nearest = middle - width * np.log(np.maximum(inside, tiny) / np.maximum(outside, tiny))
    return np.stack([scores.mean(1), scores.std(1), np.clip(nearest, -1, 1)], axis=1)


def _sigmoid(values: npt.ArrayLike) -> Floats:
    return np.asarray(0.5 + 0.5 * np.tanh(np.asarray(values, dtype=np.float64) / 2))


def read_calibration(folder: Path) -> ModelCalibration | None:
    """Read the calibration in the folder of a model; ``None`` if it has none.

    Raises:
        ValueError: A file is damaged or missing.
    """
    path = folder / SETTINGS
    if not path.is_file():
        return None
    content = read_json(path)
    if not isinstance(content, dict):
        fail(str(path), "a JSON object", type(content).__name__, _HINT)
    sizes = {"pair": 2, "query": 5, "gate": 4, "threshold": 1}
    given = {name: content.get(name) for name in sizes} | {"threshold": [content.get("threshold")]}
    numbers = {name: check_numbers(f"{path}: {name}", given[name], _HINT, count=sizes[name]) for name in sizes}
    if min(numbers["pair"][1], numbers["query"][1]) <= 0 or not 0 < numbers["threshold"][0] < 1:
        fail(str(path), "positive slopes and a threshold between 0 and 1", json.dumps(content)[:80], _HINT)
    background = _read_background(path.with_name(BACKGROUND))
    first, last = numbers["gate"][:2]
    if not 0 <= first < last <= background.shape[1]:
        fail(str(path), f"coordinates up to {background.shape[1]}", numbers["gate"], _HINT)
    word = content.get("word", "{}")
    if not isinstance(word, str) or "{}" not in word:
        fail(f"{path}: word", "a text with {}", repr(word), _HINT)
    parts = {name: tuple(float(one) for one in numbers[name]) for name in ("pair", "query", "gate")}
    return ModelCalibration(**parts, threshold=float(numbers["threshold"][0]), background=background, word=word)


def _read_background(path: Path) -> Floats:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        found = load_file(path).get("background")
    except (OSError, SafetensorError) as error:
        fail(str(path), "vectors of background photos", str(error).splitlines()[0], _HINT)
    if found is None or found.ndim != 2 or not len(found) or not math.isfinite(float(found.astype(np.float32).sum())):
        fail(str(path), "an array `background` (B, D) of finite numbers", "none", _HINT)
    return np.asarray(found, dtype=np.float64)
