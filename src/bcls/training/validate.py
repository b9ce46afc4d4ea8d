"""Evaluation on the validation split after each epoch."""

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
from bcls.training.batch_labels import LabelSource
from bcls.training.sampler import Indices


@dataclass(frozen=True)
class Validation:
    """The inputs of the validation split.

    Attributes:
        images: All images, as the model's ``similarity`` takes them.
        texts: All captions, as the model's ``similarity`` takes them.
        image_of_caption: ``(C,)`` index of each caption's image.
        embeddings: ``(C, d)`` embeddings of the captions for the labels; without them there is no tau.
        aggregate: How labels combine the captions of an image.
        batches: Captions of each batch of the validation loss, the same after every epoch.
        batch_labels: Makes the labels of these batches, as in training; ``None`` without labels.
    """

    images: Any
    texts: Padded
    image_of_caption: Indices
    embeddings: npt.NDArray[Any] | None
    aggregate: str
    batches: list[Indices]
    batch_labels: LabelSource | None

    @cached_property
    def labels(self) -> npt.NDArray[np.float32] | None:
        """``(N, C)`` labels, computed once. ``"paired"`` has no single caption here and uses the maximum."""
        if self.embeddings is None:
            return None
        vectors, owner = np.asarray(self.embeddings), self.image_of_caption
        return relevance(vectors, vectors, owner, owner, "max" if self.aggregate == "paired" else self.aggregate)


def validate(model: RetrievalModel, split: Validation, loss: nn.Module) -> dict[str, float]:
    """Evaluate a model on the validation split.

    Args:
        model: The model.
        split: The inputs.
        loss: The loss of the run.

    Returns:
        Recalls with their sum ``rsum``; with labels Kendall's tau-a in both directions and their mean ``tau``; and
        ``loss``, the mean over batches of the training size, without dropout and crops.
    """
    # On a GPU counting pairs takes milliseconds, on a CPU as long as an epoch of a small model.
    similarity = model.similarity_on_device(split.images, split.texts)
    metrics = recalls(similarity, split.image_of_caption)
    if split.labels is not None:
        taus = kendall(similarity, split.labels)
        metrics |= {key: taus[key] for key in ("i2t_tau_a", "t2i_tau_a")}
        metrics["tau"] = (taus["i2t_tau_a"] + taus["t2i_tau_a"]) / 2
    if split.batches:
        metrics["loss"] = _mean_loss(similarity, split, loss)
    return metrics


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
