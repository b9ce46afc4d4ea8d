"""Batches for the loop, made ahead of time where that helps.

A batch on the device: what a step of the optimiser is computed from.

Batches as numbers of captions, for recorded steps: the device looks up everything else.

Features, captions and labels of a small dataset lie on the GPU. A step then needs no more from the host than which
captions it is about, and which views of their images where these have several. Those of a whole epoch travel at once.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bcls.models.padded import Padded
from bcls.training.batch_labels import BatchLabels
from bcls.training.cuda_graph import STEP
from bcls.training.images import HeldImages, ImageSource, fits
from bcls.training.sampler import Numbers, share_of_rank

#: Batches that are made ahead.
_AHEAD = 3


@dataclass(frozen=True)
class Pairs:
    """A batch: the numbers of all its captions, and what this process encodes of it.

    Attributes:
        captions: ``(B,)`` captions of the whole batch.
        images: Inputs of this process's share of the images.
        texts: Inputs of its share of the captions.
    """

    captions: Numbers
    images: Padded
    texts: Padded


class Texts:
    """Captions as the model takes them, made once and kept on the device if they fit."""

    def __init__(self, texts: Padded, device: torch.device) -> None:
        self.all = texts
        self._lengths = None if texts.lengths is None else texts.lengths.numpy()
        self._device = device
        self._held = texts.to(device) if fits(texts.values.nbytes, device) else texts

    @property
    def held(self) -> bool:
        """Whether all captions are on the device, or there is only one."""
        return self._held.values.device.type == self._device.type

    def longest(self, captions: Numbers) -> int | None:
        """Words of the longest of some captions; ``None`` where each is one vector."""
        return None if self._lengths is None else int(self._lengths[captions].max())

    def take(self, captions: Numbers, whole: Numbers) -> Padded:
        """Some captions, cut to the longest of the whole batch, so that all processes have one width."""
        rows = torch.from_numpy(captions).to(self._held.values.device, non_blocking=True)
        return self.rows(rows, self.longest(whole))

    def rows(self, captions: Tensor, width: int | None) -> Padded:
        """Some captions by numbers that lie where the captions do, cut or padded to a width."""
        taken = self._held.take(captions)
        if width is None:
            return taken
        values = taken.values[:, :width]
        if values.shape[1] < width:
            values = functional.pad(values, (0, width - values.shape[1]))
        return Padded(values, taken.lengths)


@dataclass(frozen=True)
class Feed:
    """Makes the batches of this process.

    Attributes:
        images: Where images come from.
        texts: The captions.
        image_of_caption: ``(C,)`` number of each caption's image.
        device: Where batches are wanted.
        rank: Number of this process.
        ranks: How many there are.
    """

    images: ImageSource
    texts: Texts
    image_of_caption: Numbers
    device: torch.device
    rank: int = 0
    ranks: int = 1

    def batches(self, plan: Sequence[Numbers], epoch: int) -> Iterator[Pairs]:
        """The batches of a plan, in order, on the device."""
        if self.images.at_hand:
            yield from (self._send(self._make(captions, epoch)) for captions in plan)
            return
        with ThreadPoolExecutor(1, "bcls-feed") as ahead:
            coming: deque[Future[Pairs]] = deque()
            try:
                for captions in plan:
                    coming.append(ahead.submit(self._make, captions, epoch))
                    if len(coming) > _AHEAD:
                        yield self._send(coming.popleft().result())
                while coming:
                    yield self._send(coming.popleft().result())
            finally:
                for one in coming:
                    one.cancel()

    def _make(self, whole: Numbers, epoch: int) -> Pairs:
        own = whole[share_of_rank(whole, self.rank, self.ranks)]
        images = self.images.take(self.image_of_caption[own], own, epoch)
        if self.device.type == "cuda" and images.values.device.type == "cpu":  # so that the copy runs beside the work
            images = Padded(images.values.pin_memory(), images.lengths)
        return Pairs(whole, images, self.texts.take(own, whole))

    def _send(self, pairs: Pairs) -> Pairs:
        return Pairs(pairs.captions, pairs.images.to(self.device), pairs.texts.to(self.device))


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
