"""A batch on the device: what a step of the optimiser is computed from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bcls._padded import Padded
from bcls.training.batch_labels import BatchLabels
from bcls.training.feed import Pairs
from bcls.training.plan import Numbers


@dataclass(frozen=True)
class Batch:
    """One batch.

    Attributes:
        pairs: How many pairs it has, those of all processes together.
        images: Inputs of this process's share of the images.
        texts: Inputs of its share of the captions.
        image_ids: ``(B,)`` numbers of the images of the whole batch.
        relevance: ``(B, B)`` labels of the whole batch, or ``None`` for a loss that needs none.
    """

    pairs: int
    images: Padded
    texts: Padded
    image_ids: Tensor
    relevance: Tensor | None

    @property
    def shape(self) -> tuple[object, ...]:
        """What batches have in common that one recording serves."""
        return tuple((part.shape, part.dtype) for part in self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """Its tensors, always in the same order."""
        every = (self.images.values, self.images.lengths, self.texts.values, self.texts.lengths, self.image_ids)
        yield from (one for one in (*every, self.relevance) if one is not None)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The same with every tensor changed."""

        def of(one: Tensor | None) -> Tensor | None:
            return None if one is None else change(one)

        images = Padded(change(self.images.values), of(self.images.lengths))
        texts = Padded(change(self.texts.values), of(self.texts.lengths))
        return Batch(self.pairs, images, texts, change(self.image_ids), of(self.relevance))


def labelled(pairs: Pairs, labels: BatchLabels | None, image_of_caption: Numbers) -> Batch:
    """Put labels and image numbers to the pairs of a batch."""
    ids = torch.from_numpy(image_of_caption[pairs.captions]).to(pairs.images.values.device, non_blocking=True)
    relevance = None if labels is None else labels(pairs.captions)
    return Batch(len(pairs.captions), pairs.images, pairs.texts, ids, relevance)
