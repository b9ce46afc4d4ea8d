"""How much memory there is to hold things in.

Where a batch's images come from: features, kept where they fit, or pictures, read by threads.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
import torch
from PIL import Image

from bcls.data.dataset import Dataset
from bcls.data.features import Features
from bcls.data.images import random_view
from bcls.models.padded import Padded
from bcls.training.sampler import Numbers

#: Share of the free memory that one kind of data may take.
_SHARE = 0.25
#: Linux alone has these.
_MEMINFO, _LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def free_bytes(device: torch.device) -> int:
    """Memory that a process could have on a device now; on the CPU no more than the limit of a container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limit = _words(_LIMIT)
    free = _available()
    return min(free, int(limit[0])) if limit and limit[0].isdigit() else free


def _available() -> int:
    """What the kernel would give away, the disk's cache included; half of all memory where it does not say."""
    words = _words(_MEMINFO)
    if "MemAvailable:" in words:
        return 1024 * int(words[words.index("MemAvailable:") + 1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _words(path: Path) -> list[str]:
    """Words of one of the kernel's files; none where there is no such file."""
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def fits(size: int, device: torch.device) -> bool:
    """Whether so many bytes may be kept on a device throughout a run.

    Example:
        >>> fits(1000, torch.device("cpu"))
        True
    """
    return size < _SHARE * free_bytes(device)


class ImageSource(Protocol):
    """Gives what the model's image side takes."""

    #: Whether batches are ready at once, so that reading ahead would only cost.
    at_hand: bool

    def take(self, images: Numbers, captions: Numbers, epoch: int) -> Padded:
        """Inputs of some images in training; ``captions`` and ``epoch`` say which crop or view, where there is one."""
        ...

    def everything(self) -> Any:
        """All images, in order and as they are, for :meth:`bcls.models.base.RetrievalModel.similarity`."""
        ...


@dataclass(frozen=True)
class DrawnViews:
    """Which view of its image a caption is shown with: drawn from seed, epoch and caption, and from nothing else.

    Reads a SplitMix64 generator at the caption's place, so that any captions can be asked for, in any order.

    Attributes:
        seed: Of the run.
        number: Views of an image, the whole picture included.

    Example:
        >>> DrawnViews(seed=1, number=4)(np.arange(8), epoch=1)
        array([1, 0, 0, 3, 1, 0, 1, 3])
    """

    seed: int
    number: int

    def __call__(self, captions: Numbers, epoch: int) -> Numbers:
        """``(C,)`` numbers of views, from 0, for some captions."""
        start = np.random.SeedSequence((self.seed, epoch)).generate_state(1, np.uint64)
        mixed = start + (captions.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        high = (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(33)  # 31 bits, so that the product stays in 64
        drawn: Numbers = (high.astype(np.int64) * self.number) >> 31
        return drawn


def feature_images(features: Features, device: torch.device, seed: int | None = None) -> ImageSource:
    """Features of a dataset, vectors ``(N, d)`` or regions ``(N, R, d)``: on the device where they fit, else mapped.

    Args:
        features: The features.
        device: Where they are wanted.
        seed: Of the run, to draw one of an image's views for each caption where it has several; ``None`` for whole
            pictures, whose rows alone are held then.
    """
    views = DrawnViews(seed, features.views) if seed is not None and features.views > 1 else None
    number = 1 if views is None else views.number
    size = int(np.prod(features.shape)) * features.arrays[0].dtype.itemsize * number
    if not fits(size, device):
        return MappedImages(features, views)
    images, each = np.divmod(np.arange(len(features) * number), number)
    held = Padded(torch.from_numpy(features.take(images, each)), _counts(features, number))
    return HeldImages(held, device, views)


class HeldImages:
    """Features kept on the device, in the precision that they have.

    Args:
        features: ``(N, d)`` or ``(N, R, d)``; with views ``N V`` rows, those of an image one after another.
        device: Where they are wanted.
        views: Draws one of an image's V views for each caption; ``None`` where there is one.
    """

    at_hand = True

    def __init__(self, features: Padded, device: torch.device, views: DrawnViews | None = None) -> None:
        self._held = features.to(device)
        self.views = views

    def take(self, images: Numbers, captions: Numbers, epoch: int) -> Padded:
        """See :class:`ImageSource`."""
        device = self._held.values.device
        views = None if self.views is None else torch.from_numpy(self.views(captions, epoch))
        return self.rows(
            torch.from_numpy(images).to(device, non_blocking=True),
            None if views is None else views.to(device, non_blocking=True),
        )

    def rows(self, images: torch.Tensor, views: torch.Tensor | None = None) -> Padded:
        """Some images by numbers that lie where the features do, each in one of its views; whole without ``views``."""
        if self.views is not None:
            images = images * self.views.number + (0 if views is None else views)
        taken = self._held.take(images)
        return Padded(taken.values.float(), taken.lengths)

    def everything(self) -> Padded:
        """See :class:`ImageSource`."""
        whole = self._held.take(slice(None, None, 1 if self.views is None else self.views.number))
        return Padded(whole.values.float(), whole.lengths)


class MappedImages:
    """Features in files larger than the memory; the rows of a batch are read when it comes.

    Args:
        features: The features; row ``i`` is that of image ``i``.
        views: Draws one of an image's views for each caption; ``None`` for whole pictures.
    """

    at_hand = False

    def __init__(self, features: Features, views: DrawnViews | None = None) -> None:
        self._features, self._views = features, views
        self._number = 1 if views is None else views.number
        self._counts = _counts(features, self._number)

    def take(self, images: Numbers, captions: Numbers, epoch: int) -> Padded:
        """See :class:`ImageSource`."""
        return self._read(images, 0 if self._views is None else self._views(captions, epoch))

    def everything(self) -> Padded:
        """See :class:`ImageSource`."""
        return self._read(np.arange(len(self._features)), 0)

    def _read(self, images: Numbers, views: Numbers | int) -> Padded:
        lengths = None if self._counts is None else self._counts[torch.from_numpy(images * self._number + views)]
        return Padded(torch.from_numpy(self._features.take(images, views)).float(), lengths)


def _counts(features: Features, views: int) -> torch.Tensor | None:
    """Real regions of each row, the first ``views`` rows of each image one after another."""
    if len(features.shape) < 3 or all(counts is None for counts in features.counts):
        return None
    every = features.shape[1]
    counts = [features.regions(image, view) for image in range(len(features)) for view in range(views)]
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
