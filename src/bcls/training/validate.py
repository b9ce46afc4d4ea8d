"""Figures of a model on the validation split."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls
from bcls.labels.relevance import relevance
from bcls.models.base import RetrievalModel
from bcls.models.padded import Padded
from bcls.training.batch_labels import BatchLabels
from bcls.training.sampler import Numbers


@dataclass(frozen=True)
class Validation:
    """A split to look at.

    Attributes:
        images: All images, as the model's ``similarity`` takes them.
        texts: All captions, the same.
        image_of_caption: ``(C,)``.
        embeddings: ``(C, d)`` label vectors; ``None`` where there are no labels, and then no tau.
        aggregate: How an image's captions make one label.
        batches: Captions of each batch that the loss sees, the same after every epoch.
        batch_labels: What makes their labels, as in training; ``None`` where there are none.
    """

    images: Any
    texts: Padded
    image_of_caption: npt.NDArray[np.int64]
    embeddings: npt.NDArray[Any] | None
    aggregate: str
    batches: list[Numbers]
    batch_labels: BatchLabels | None

    @cached_property
    def labels(self) -> npt.NDArray[np.float32] | None:
        """``(N, C)`` labels, made once; for ``"paired"``, which knows no single caption here, those of the best one."""
        if self.embeddings is None:
            return None
        vectors, owner = np.asarray(self.embeddings), self.image_of_caption
        return relevance(vectors, vectors, owner, owner, "max" if self.aggregate == "paired" else self.aggregate)


def validate(model: RetrievalModel, split: Validation, loss: nn.Module) -> dict[str, float]:
    """Recalls with their sum ``rsum``, Kendall's tau-a against the labels, ``tau``, the mean of both directions.

    And ``loss``, the mean over batches as large as those of training, with nothing dropped and nothing cropped.
    """
    # On a GPU counting pairs takes milliseconds, on processors as long as an epoch of a small model.
    similarity = model.similarity_on_device(split.images, split.texts)
    figures = recalls(similarity, split.image_of_caption)
    if split.labels is not None:
        taus = kendall(similarity, split.labels)
        figures |= {key: taus[key] for key in ("i2t_tau_a", "t2i_tau_a")}
        figures["tau"] = (taus["i2t_tau_a"] + taus["t2i_tau_a"]) / 2
    if split.batches:
        figures["loss"] = _mean_loss(similarity, split, loss)
    return figures


def _mean_loss(similarity: Tensor, split: Validation, loss: nn.Module) -> float:
    device = similarity.device
    labels = split.batch_labels
    images = torch.from_numpy(split.image_of_caption).to(device)
    values = []
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        for captions in split.batches:
            chosen = torch.from_numpy(captions).to(device)
            owner = images[chosen]
            scores = similarity[owner[:, None], chosen].float()
            values.append(loss(scores, None if labels is None else labels(chosen), image_ids=owner))
        return float(torch.stack(values).mean())
