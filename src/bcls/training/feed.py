"""Batches for the loop, made ahead of time where that helps."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bcls._padded import Padded
from bcls.training.images import ImageSource
from bcls.training.plan import Numbers, share_of_rank
from bcls.training.room import fits

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
