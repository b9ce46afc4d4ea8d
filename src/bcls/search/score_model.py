"""Calibration that belongs to a model: the probability that a photo fits a text, for indexes of any size."""

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_numbers, fail, refuse_damage
from bcls.data.text_files import read_json
from bcls.models.folder import CALIBRATION, CONFIG, SHA256, check_hashes
from bcls.search.calibration import share_below

#: Files in the folder of a model.
SETTINGS, BACKGROUND = CALIBRATION
#: Photos with at least this score count as similar to the image of a query.
SIMILAR = 0.9
_HINT = "install or export the model again"


@dataclass(frozen=True)
class ModelCalibration:
    r"""Probability that a photo fits a text, from their similarity s and from the text alone.

    .. math::
        p = \sigma(a_0 + a_1 s) \cdot \sigma(b_0 + b_1 s + b_2 \mu_T + b_3 \sigma_T + b_4 c_T)

    The first factor was fitted to people's judgements of photos and captions. The second one recognizes texts about
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
    background: npt.NDArray[np.floating]
    word: str = "{}"

    def prompt(self, text: str) -> str:
        """The text that is encoded for a query; the model was trained on sentences, and knows few words alone."""
        return text if " " in text else self.word.replace("{}", text)

    def __call__(self, similarity: npt.ArrayLike, vector: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Probabilities of photos with these similarities to a text, in the same shape.

        Args:
            similarity: Any shape.
            vector: ``(D,)`` vector of the text, or ``(C, D)`` for C similarities with one text each.
        """
        values, text = np.asarray(similarity, dtype=np.float64), np.asarray(vector)
        bias, slope, *others = self.query
        known = bias + slope * values + (self.describe(np.atleast_2d(text)) @ others).reshape(text.shape[:-1])
        return _sigmoid(self.pair[0] + self.pair[1] * values) * _sigmoid(known)

    def score_similar(self, similarity: npt.ArrayLike, text: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Scores of photos for an image: how few unrelated photos have such a good match.

        The score is the share of background photos whose best match among the other background photos is less
        similar, so that it is evenly distributed for unrelated photos, and close to 1 for copies of the image.

        Args:
            similarity: Similarities with the unit vector of the query, any shape.
            text: ``(D,)`` sum of text vectors that the vector of the image is added to, zero for an image alone. The
                background photos are combined with it as well.
        """
        products = np.einsum("bd,d->b", self.background, np.asarray(text, dtype=np.float32))
        lengths = np.linalg.norm(self.background + np.asarray(text, dtype=np.float32), axis=1)
        best = (self._between_background + products).max(axis=1) / lengths
        return share_below(np.asarray(similarity, dtype=np.float64), np.sort(best).tolist())

    @cached_property
    def _between_background(self) -> npt.NDArray[np.floating]:
        """``(B, B)`` similarities of the background photos with each other."""
        found = self.background @ self.background.T
        np.fill_diagonal(found, -np.inf)
        return found

    def describe(self, vectors: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """``(C, 3)``: mean, standard deviation and nearest centroid's cosine of text vectors ``(C, D)``."""
        return query_terms(np.asarray(vectors), self.background, self.gate)


def query_terms(
    texts: npt.NDArray[np.floating], background: npt.NDArray[np.floating], gate: tuple[float, ...]
) -> npt.NDArray[np.float64]:
    """The terms of :meth:`ModelCalibration.describe`."""
    # Not a matrix product, whose threads cost more for one text.
    scores = np.einsum("cd,bd->cb", texts, background).astype(np.float64)
    texts = texts.astype(np.float64)
    first, last, middle, width = gate
    inside = (texts[:, int(first) : int(last)] ** 2).sum(1)
    outside = (texts**2).sum(1) - inside
    tiny = 1e-12
    nearest = middle - width * np.log(np.maximum(inside, tiny) / np.maximum(outside, tiny))
    return np.stack([scores.mean(1), scores.std(1), np.clip(nearest, -1, 1)], axis=1)


def _sigmoid(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.asarray(0.5 + 0.5 * np.tanh(np.asarray(values, dtype=np.float64) / 2))


def read_calibration(folder: Path) -> ModelCalibration | None:
    """Read the calibration in the folder of a model; ``None`` if it has none.

    Raises:
        ValueError: A file is damaged or missing, or differs from its hash in the config of the model.
    """
    path, config = folder / SETTINGS, folder / CONFIG
    if config.is_file():
        check_hashes(folder, read_json(config).get(SHA256), CALIBRATION)
    if not path.is_file():
        return None
    content = read_json(path)
    if not isinstance(content, dict):
        fail(str(path), "a JSON object", type(content).__name__, _HINT)
    pair, query, gate = (
        tuple(check_numbers(f"{path}: {name}", content.get(name), _HINT, count=count))
        for name, count in (("pair", 2), ("query", 5), ("gate", 4))
    )
    (threshold,) = check_numbers(f"{path}: threshold", [content.get("threshold")], _HINT)
    if min(pair[1], query[1]) <= 0 or not 0 < threshold < 1:
        fail(str(path), "positive slopes and a threshold between 0 and 1", json.dumps(content)[:80], _HINT)
    background = _read_background(path.with_name(BACKGROUND))
    if not 0 <= gate[0] < gate[1] <= background.shape[1]:
        fail(str(path), f"coordinates up to {background.shape[1]}", gate, _HINT)
    word = content.get("word", "{}")
    if not isinstance(word, str) or "{}" not in word:
        fail(f"{path}: word", "a text with {}", repr(word), _HINT)
    return ModelCalibration(pair, query, threshold, gate, background, word)


def _read_background(path: Path) -> npt.NDArray[np.float32]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    with refuse_damage(str(path), "vectors of background photos", _HINT, OSError, SafetensorError):
        found = load_file(path).get("background")
    if found is None or found.ndim != 2 or len(found) < 2 or not math.isfinite(float(found.astype(np.float32).sum())):
        fail(str(path), "an array `background` (B, D) of finite numbers with two or more rows", "none", _HINT)
    return np.asarray(found, dtype=np.float32)
