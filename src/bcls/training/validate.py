"""Figures of a model on the validation split."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._padded import Padded
from bcls.evaluation import kendall, recalls
from bcls.labels import relevance
from bcls.models.base import RetrievalModel


@dataclass(frozen=True)
class Validation:
    """A split to look at.

    Attributes:
        images: All images, as the model's ``similarity`` takes them.
        texts: All captions, the same.
        image_of_caption: ``(C,)``.
        embeddings: ``(C, d)`` label vectors; ``None`` where there are no labels, and then no tau.
        aggregate: How an image's captions make one label.
    """

    images: Any
    texts: Padded
    image_of_caption: npt.NDArray[np.int64]
    embeddings: npt.NDArray[Any] | None
    aggregate: str


def validate(model: RetrievalModel, split: Validation) -> dict[str, float]:
    """Recalls with their sum ``rsum``, Kendall's tau-a against the labels, and ``tau``, the mean of both directions.

    Labels are those of training, but for ``"paired"``, which knows no single caption here and uses the best one.
    """
    similarity = model.similarity(split.images, split.texts)
    figures = recalls(similarity, split.image_of_caption)
    if split.embeddings is not None:
        owner = split.image_of_caption
        aggregate = "max" if split.aggregate == "paired" else split.aggregate
        vectors = np.asarray(split.embeddings)
        taus = kendall(similarity, relevance(vectors, vectors, owner, owner, aggregate))
        figures |= {key: taus[key] for key in ("i2t_tau_a", "t2i_tau_a")}
        figures["tau"] = (taus["i2t_tau_a"] + taus["t2i_tau_a"]) / 2
    return figures
