"""Scores of pairs by the whole model, for models that look at regions and words together."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bcls.data.images import decode
from bcls.index.embedding import as_inputs
from bcls.index.source import Source

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel


def scores_of(
    model: "RetrievalModel", source: Source, names: Sequence[str], text: str, *, max_pixels: int
) -> npt.NDArray[np.float64]:
    """Score photos against a text with ``model.similarity``.

    Args:
        model: The model.
        source: Where the photos, or their features, are.
        names: N photos.
        text: The text.
        max_pixels: Pictures with more are not read.

    Returns:
        ``(N,)`` scores; minus infinity for a photo that cannot be read any more.
    """
    scores = np.full(len(names), -math.inf)
    inputs, there = read_inputs(source, names, max_pixels)
    if there:
        scores[there] = model.similarity(inputs, [text])[:, 0].numpy()
    return scores


def read_inputs(source: Source, names: Sequence[str], max_pixels: int) -> tuple[Any, list[int]]:
    """Pictures or features as ``model.similarity`` takes them, and which of the names could be read."""
    if not names:
        return [], []
    features = source.features(names)
    if features is not None:
        return as_inputs(features), list(range(len(names)))
    pictures: list[Any] = []
    there = []
    for place, name in enumerate(names):
        try:
            pictures.append(decode(source.read(name), name, max_pixels=max_pixels))
            there.append(place)
        except (OSError, ValueError):
            continue
    return pictures, there
