"""Batches as numbers of captions, for recorded steps: the device looks up everything else.

Features, captions and labels of a small dataset lie on the GPU. A step then needs no more from the host than which
captions it is about, and which views of their images where these have several. Those of a whole epoch travel at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bcls.training.batch import Batch
from bcls.training.batch_labels import BatchLabels
from bcls.training.feed import Feed
from bcls.training.graph import STEP
from bcls.training.images import HeldImages
from bcls.training.plan import Numbers


@dataclass(frozen=True)
class Numbered:
    """A batch by the numbers of its captions.

    Attributes:
        captions: ``(B,)`` on the device.
        width: Words that captions are padded to; ``None`` where a caption is one vector.
        views: ``(B,)`` which view of its image each caption is shown with, on the device; ``None`` where there is one.
    """

    captions: Tensor
    width: int | None
    views: Tensor | None = None

    @property
    def shape(self) -> tuple[object, ...]:
        """What batches have in common that one recording serves."""
        return len(self.captions), self.width

    def tensors(self) -> Iterator[Tensor]:
        """What differs from batch to batch."""
        yield self.captions
        if self.views is not None:
            yield self.views

    def map(self, change: Callable[[Tensor], Tensor]) -> "Numbered":
        """The same with every tensor changed."""
        return Numbered(change(self.captions), self.width, None if self.views is None else change(self.views))


class Lookup:
    """Makes batches on the device from numbers.

    Args:
        feed: Of a single process, with images and captions on the device; see :meth:`serves`.
        labels: With all vectors on the device, or ``None``.
    """

    def __init__(self, feed: Feed, labels: BatchLabels | None) -> None:
        assert isinstance(feed.images, HeldImages)  # noqa: S101 - `serves` has seen to it
        self._feed, self._images, self._labels = feed, feed.images, labels
        self._owner = torch.from_numpy(feed.image_of_caption).to(feed.device)

    @staticmethod
    def serves(feed: Feed, labels: BatchLabels | None) -> bool:
        """Whether all that a batch needs is on the device."""
        held = isinstance(feed.images, HeldImages) and feed.texts.held
        return held and feed.ranks == 1 and (labels is None or labels.held)

    def batches(self, plan: Sequence[Numbers], epoch: int) -> Iterator[Numbered]:
        """The batches of a plan, in order; the epoch says which views are drawn, where there are some."""
        if not plan:
            return
        everything = np.concatenate(plan)
        sizes = [len(one) for one in plan]
        views: Sequence[Tensor | None] = [None] * len(plan)
        if self._images.views is not None:
            views = torch.split(torch.from_numpy(self._images.views(everything, epoch)).to(self._feed.device), sizes)
        numbers = torch.split(torch.from_numpy(everything).to(self._feed.device), sizes)
        for captions, sent, shown in zip(plan, numbers, views, strict=True):
            longest = self._feed.texts.longest(captions)
            yield Numbered(sent, None if longest is None else longest + -longest % STEP, shown)

    def open(self, batch: Numbered) -> Batch:
        """The whole batch, computed on the device alone."""
        captions = batch.captions
        ids = self._owner[captions]
        texts = self._feed.texts.rows(captions, batch.width)
        relevance = None if self._labels is None else self._labels(captions)
        return Batch(len(captions), self._images.rows(ids, batch.views), texts, ids, relevance)
