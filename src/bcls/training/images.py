"""Where a batch's images come from: features, kept where they fit, or pictures, read by threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, overload

import numpy as np
import torch
from PIL import Image

from bcls._padded import Padded
from bcls.data import Dataset, Features
from bcls.training.crops import random_view
from bcls.training.plan import Numbers
from bcls.training.room import fits


class ImageSource(Protocol):
    """Gives what the model's image side takes."""

    #: Whether batches are ready at once, so that reading ahead would only cost.
    at_hand: bool

    def take(self, images: Numbers, captions: Numbers, epoch: int) -> Padded:
        """Inputs of some images in training; ``captions`` and ``epoch`` say which crop, where there is one."""
        ...

    def everything(self) -> Any:
        """All images, in order and as they are, for :meth:`bcls.models.base.RetrievalModel.similarity`."""
        ...


def feature_images(features: Features, device: torch.device) -> ImageSource:
    """Features of a dataset, vectors ``(N, d)`` or regions ``(N, R, d)``: on the device where they fit, else mapped."""
    size = int(np.prod(features.shape)) * features.arrays[0].dtype.itemsize
    if not fits(size, device):
        return MappedImages(features)
    return HeldImages(Padded(torch.from_numpy(features.take(range(len(features)))), _counts(features)), device)


class HeldImages:
    """Features kept on the device, in the precision that they have.

    Args:
        features: ``(N, d)`` or ``(N, R, d)``.
        device: Where they are wanted.
    """

    at_hand = True

    def __init__(self, features: Padded, device: torch.device) -> None:
        self._held = features.to(device)

    def take(self, images: Numbers, captions: Numbers, epoch: int) -> Padded:
        """See :class:`ImageSource`."""
        return self.rows(torch.from_numpy(images).to(self._held.values.device, non_blocking=True))

    def rows(self, images: torch.Tensor) -> Padded:
        """Some images by numbers that lie where the features do."""
        taken = self._held.take(images)
        return Padded(taken.values.float(), taken.lengths)

    def everything(self) -> Padded:
        """See :class:`ImageSource`."""
        return Padded(self._held.values.float(), self._held.lengths)


class MappedImages:
    """Features in files larger than the memory; the rows of a batch are read when it comes.

    Args:
        features: The features; row ``i`` is that of image ``i``.
    """

    at_hand = False

    def __init__(self, features: Features) -> None:
        self._features = features
        self._counts = _counts(features)

    def take(self, images: Numbers, captions: Numbers, epoch: int) -> Padded:
        """See :class:`ImageSource`."""
        lengths = None if self._counts is None else self._counts[torch.from_numpy(images)]
        return Padded(torch.from_numpy(self._features.take(images)).float(), lengths)

    def everything(self) -> Padded:
        """See :class:`ImageSource`."""
        return self.take(np.arange(len(self._features)), np.arange(0), 0)


def _counts(features: Features) -> torch.Tensor | None:
    if len(features.shape) < 3 or all(counts is None for counts in features.counts):
        return None
    every = features.shape[1]
    counts = [features.regions(image) for image in range(len(features))]
    return torch.tensor([every if count is None else count for count in counts], dtype=torch.int64)


class PictureImages:
    """Pictures of a dataset, read and cropped by threads.

    Args:
        dataset: The dataset.
        prepare: The model's ``prepare_images``.
        pool: Threads that read.
        seed: Of the run.
        smallest_crop: Share of the area of the smallest crop; ``None`` for whole pictures.
    """

    at_hand = False

    def __init__(
        self,
        dataset: Dataset,
        prepare: Callable[[Any], Padded],
        pool: ThreadPoolExecutor,
        seed: int,
        smallest_crop: float | None,
    ) -> None:
        self._dataset, self._prepare, self._pool = dataset, prepare, pool
        self._seed, self._smallest = seed, smallest_crop

    def take(self, images: Numbers, captions: Numbers, epoch: int) -> Padded:
        """See :class:`ImageSource`."""

        def read(image: int, caption: int) -> Padded:
            picture = self._dataset.read_image(self._dataset.image_ids[image])
            if self._smallest is not None:
                picture = random_view(picture, (self._seed, epoch, caption), self._smallest)
            return self._prepare([picture])

        read_ones = list(self._pool.map(read, images.tolist(), captions.tolist()))
        return Padded(torch.cat([one.values for one in read_ones]))

    def everything(self) -> Sequence[Image.Image]:
        """See :class:`ImageSource`."""
        return Pictures(self._dataset, self._pool)


class Pictures(Sequence[Image.Image]):
    """The pictures of a dataset, read when they are asked for and not kept."""

    def __init__(self, dataset: Dataset, pool: ThreadPoolExecutor) -> None:
        self._dataset, self._pool = dataset, pool

    def __len__(self) -> int:
        return len(self._dataset.images)

    @overload
    def __getitem__(self, place: int) -> Image.Image: ...
    @overload
    def __getitem__(self, place: slice) -> list[Image.Image]: ...
    def __getitem__(self, place: int | slice) -> Image.Image | list[Image.Image]:
        if isinstance(place, int):
            return self._dataset.read_image(self._dataset.image_ids[place])
        return list(self._pool.map(self._dataset.read_image, self._dataset.image_ids[place]))
