"""Figures of a model on the validation split."""

from dataclasses import dataclass
from functools import cached_property
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

    @cached_property
    def labels(self) -> npt.NDArray[np.float32] | None:
        """``(N, C)`` labels, made once; for ``"paired"``, which knows no single caption here, those of the best one."""
        if self.embeddings is None:
            return None
        vectors, owner = np.asarray(self.embeddings), self.image_of_caption
        return relevance(vectors, vectors, owner, owner, "max" if self.aggregate == "paired" else self.aggregate)


def validate(model: RetrievalModel, split: Validation) -> dict[str, float]:
    """Recalls with their sum ``rsum``, Kendall's tau-a against the labels, and ``tau``, the mean of both directions."""
    # On a GPU counting pairs takes milliseconds, on processors as long as an epoch of a small model.
    similarity = model.similarity_on_device(split.images, split.texts)
    figures = recalls(similarity, split.image_of_caption)
    if split.labels is not None:
        taus = kendall(similarity, split.labels)
        figures |= {key: taus[key] for key in ("i2t_tau_a", "t2i_tau_a")}
        figures["tau"] = (taus["i2t_tau_a"] + taus["t2i_tau_a"]) / 2
    return figures
