"""Inputs and batches of a run: image sources, captions, and the loaders that make batches from them.

Features are kept on the device if they fit into memory, and read from their files otherwise; without features images
are read and cropped by threads. :class:`Loader` makes batches on the host, ahead of time where that helps. For recorded
steps it makes them on the GPU: features, captions and labels lie there, so a step needs only the indices of its
captions (:class:`IndexBatch`).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bcls._core.progress import progress
from bcls.data import Dataset, Features
from bcls.data.images import random_view
from bcls.evaluation.scores import LazyImages, lazy_images, read_features
from bcls.models.base import RetrievalModel
from bcls.models.layers import Padded
from bcls.training.batch_labels import BatchLabels, LabelSource
from bcls.training.config import TrainConfig
from bcls.training.memory import fits_in_memory
from bcls.training.sampler import Indices, share_of_rank

#: Batches that are made ahead.
_AHEAD = 3
#: Captions of recorded steps are padded to one word less than a multiple of this, so that few recordings serve all
#: batches. Cross-attention adds a node for the whole caption, and multiples of 8 are fast on a GPU.
CAPTION_STEP = 8


class Batch(NamedTuple):
    """What one optimizer step is computed from, on the device.

    Attributes:
        pairs: Number of pairs, of all processes together.
        images: Inputs of this process's share of the images.
        texts: Inputs of its share of the captions.
        image_ids: ``(B,)`` indices of the images of the whole batch.
        relevance: ``(B, B)`` labels of the whole batch, or ``None`` for a loss without labels.
        unimodal: Similarities between its images and between its captions, see :meth:`BatchLabels.unimodal`; ``None``
            without `unimodal_weight`.
        label_inputs: With streaming, in place of ``relevance``: see :meth:`BatchLabels.streaming_inputs`.
    """

    pairs: int
    images: Padded
    texts: Padded
    image_ids: Tensor
    relevance: Tensor | None
    unimodal: tuple[Tensor, Tensor] | None = None
    label_inputs: dict[str, Tensor] | None = None


class ViewSampler(NamedTuple):
    """Which view of its image a caption is shown with, drawn from seed, epoch and caption alone.

    Reads a SplitMix64 generator at the caption's position, so any captions can be drawn in any order.

    Attributes:
        seed: Seed of the run.
        number: Views of an image, the whole image included.

    Example:
        >>> ViewSampler(seed=1, number=4)(np.arange(8), epoch=1)
        array([1, 0, 0, 3, 1, 0, 1, 3])
    """

    seed: int
    number: int

    def __call__(self, captions: Indices, epoch: int) -> Indices:
        """``(C,)`` views, from 0, of some captions."""
        start = np.random.SeedSequence((self.seed, epoch)).generate_state(1, np.uint64)
        mixed = start + (captions.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        high = (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(33)  # 31 bits, so that the product fits into 64
        drawn: Indices = (high.astype(np.int64) * self.number) >> 31
        return drawn


def feature_source(features: Features, device: torch.device, seed: int | None = None) -> "ImageSource":
    """Features of a dataset, vectors ``(N, d)`` or regions ``(N, R, d)``: on the device if they fit, else mapped.

    Args:
        features: The features.
        device: Device of the model.
        seed: Seed of the run, to draw one of an image's views for each caption if it has several; ``None`` for whole
            images, and then only their rows are kept.
    """
    views = ViewSampler(seed, features.views) if seed is not None and features.views > 1 else None
    number = 1 if views is None else views.number
    size = int(np.prod(features.shape)) * features.arrays[0].dtype.itemsize * number
    if not fits_in_memory(size, device):
        return MappedFeatures(features, views)
    images, each = np.divmod(np.arange(len(features) * number), number)
    return DeviceFeatures(read_features(features, images, each), device, views)


class DeviceFeatures:
    """Features kept on the device, in the precision of their file.

    Args:
        features: ``(N, d)`` or ``(N, R, d)``; with views ``N V`` rows, those of an image one after another.
        device: Device of the model.
        views: Draws one of an image's V views for each caption; ``None`` for one row an image.
    """

    #: Whether batches need no reading, so that making them ahead is of no use.
    in_memory = True

    def __init__(self, features: Padded, device: torch.device, views: ViewSampler | None = None) -> None:
        self._features, self._device, self.views = features.to(device), device, views

    def take(self, images: Indices, captions: Indices, epoch: int) -> Padded:
        """Inputs of some images in training; ``captions`` and ``epoch`` select the crop or view, if there is one."""
        rows = images if self.views is None else images * self.views.number + self.views(captions, epoch)
        return self._features.take(torch.from_numpy(rows).to(self._device, non_blocking=True)).float()

    def rows(self, images: Tensor, views: Tensor | None) -> Padded:
        """Some images by indices on the device, each in one of its views if it has several."""
        if self.views is not None and views is not None:
            images = images * self.views.number + views
        return self._features.take(images).float()

    def everything(self) -> Padded:
        """All images, in order and uncropped, for :meth:`bcls.models.base.RetrievalModel.similarity`."""
        return self._features.take(slice(None, None, 1 if self.views is None else self.views.number)).float()


class MappedFeatures:
    """Features in files larger than the memory; the rows of a batch are read when it is made.

    Args:
        features: The features; row ``i`` is that of image ``i``.
        views: Draws one of an image's views for each caption; ``None`` for whole images.
    """

    in_memory = False

    def __init__(self, features: Features, views: ViewSampler | None = None) -> None:
        self._features, self._views = features, views

    def take(self, images: Indices, captions: Indices, epoch: int) -> Padded:
        """See :meth:`DeviceFeatures.take`."""
        views = 0 if self._views is None else self._views(captions, epoch)
        return read_features(self._features, images, views).float()

    def everything(self) -> Padded:
        """See :meth:`DeviceFeatures.everything`."""
        return read_features(self._features, np.arange(len(self._features))).float()


@dataclass(frozen=True)
class ImageReader:
    """Images of a dataset, read and cropped by threads.

    Attributes:
        dataset: The dataset.
        prepare: The model's ``prepare_images``.
        pool: Threads that read.
        seed: Seed of the run.
        smallest_crop: Share of the area of the smallest crop; ``None`` for whole images.
    """

    dataset: Dataset
    prepare: Callable[[Any], Padded]
    pool: Executor
    seed: int
    smallest_crop: float | None
    in_memory: ClassVar = False

    def take(self, images: Indices, captions: Indices, epoch: int) -> Padded:
        """See :meth:`DeviceFeatures.take`."""

        def read(image: int, caption: int) -> Tensor:
            loaded = self.dataset.read_image(self.dataset.image_ids[image])
            if self.smallest_crop is not None:
                loaded = random_view(loaded, (self.seed, epoch, caption), self.smallest_crop)
            return self.prepare([loaded]).values

        return Padded(torch.cat(list(self.pool.map(read, images.tolist(), captions.tolist()))))

    def everything(self) -> LazyImages:
        """See :meth:`DeviceFeatures.everything`."""
        return lazy_images(self.dataset, self.pool)


#: Provides the inputs of a model's image side.
ImageSource = DeviceFeatures | MappedFeatures | ImageReader


class CaptionInputs:
    """Captions as the model takes them, prepared once and kept on the device if they fit.

    Args:
        texts: Token indices with lengths, or vectors of a frozen encoder.
        device: Device of the model.
    """

    def __init__(self, texts: Padded, device: torch.device) -> None:
        self._lengths = None if texts.lengths is None else texts.lengths.numpy()
        self._texts = texts.to(device) if fits_in_memory(texts.values.nbytes, device) else texts
        self.on_device = self._texts.values.device.type == device.type

    def longest(self, captions: Indices) -> int | None:
        """Words of the longest of some captions; ``None`` if each caption is one vector."""
        return None if self._lengths is None else int(self._lengths[captions].max())

    def take(self, captions: Indices, whole: Indices) -> Padded:
        """Some captions, cut to the longest of the whole batch, so that all processes have the same width."""
        rows = torch.from_numpy(captions).to(self._texts.values.device, non_blocking=True)
        texts = self.rows(rows, self.longest(whole))
        return texts if self._lengths is None else replace(texts, host_lengths=self._lengths[captions].tolist())

    def rows(self, captions: Tensor, width: int | None) -> Padded:
        """Some captions by indices on their device, cut or padded to a width."""
        taken = self._texts.take(captions)
        if width is None:
            return taken
        values = taken.values[:, :width]
        return Padded(functional.pad(values, (0, width - values.shape[1])), taken.lengths)


def image_source(
    config: TrainConfig, dataset: Dataset, model: RetrievalModel, pool: Executor, *, training: bool, show_progress: bool
) -> ImageSource:
    """The images of a split as the model takes them; a frozen encoder encodes them here, once."""
    augment = training and config.augment
    if config.features is not None:
        # Views are drawn like crops of images.
        return feature_source(dataset.features(config.features), model.device, config.seed if augment else None)
    if getattr(model, "frozen_images", False):
        encode: Callable[[Any], Padded] = model.image_vectors_of  # type: ignore[assignment]
        what = f"encoding {len(dataset.images):,} images once with the frozen image encoder"
        with progress(what, len(dataset.images), show=show_progress) as report:
            return DeviceFeatures(encode(lazy_images(dataset, pool, report)), model.device)
    return ImageReader(dataset, model.prepare_images, pool, config.seed, config.smallest_crop if augment else None)


def caption_inputs(dataset: Dataset, model: RetrievalModel, *, show_progress: bool) -> Padded:
    """The captions of a split as the model takes them; a frozen encoder encodes them here, once."""
    if not getattr(model, "frozen_text", False):
        return model.prepare_texts(dataset.texts)
    encode: Callable[[Any], Padded] = model.text_vectors_of  # type: ignore[assignment]
    what = f"encoding {len(dataset.texts):,} captions once with the frozen text encoder"
    with progress(what, len(dataset.texts), show=show_progress) as report:
        return encode(_ReportedList(dataset.texts, report))


class IndexBatch(NamedTuple):
    """A batch as the indices of its captions.

    Attributes:
        captions: ``(B,)`` on the device.
        width: Words that captions are padded to; ``None`` if a caption is one vector.
        views: ``(B,)`` view of its image that each caption is shown with, on the device; ``None`` if there is one.
    """

    captions: Tensor
    width: int | None
    views: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int | None]:
        """Batches of equal shape can share one recording."""
        return len(self.captions), self.width

    def tensors(self) -> list[Tensor]:
        """Its tensors."""
        return [self.captions] if self.views is None else [self.captions, self.views]

    def clone(self) -> "IndexBatch":
        """A copy with tensors of its own."""
        return IndexBatch(self.captions.clone(), self.width, None if self.views is None else self.views.clone())


@dataclass(frozen=True)
class Loader:
    """Makes the batches of this process.

    Attributes:
        images: The images.
        texts: The captions.
        image_of_caption: ``(C,)`` index of each caption's image.
        device: Device of the model.
        labels: Makes the labels of a batch; ``None`` without labels.
        rank: Number of this process.
        ranks: Number of processes.
        unimodal: Whether batches have similarities between items of one modality; needs ``labels``.
        streaming: Whether the loss computes the labels itself, from embeddings.
    """

    images: ImageSource
    texts: CaptionInputs
    image_of_caption: Indices
    device: torch.device
    labels: LabelSource | None = None
    rank: int = 0
    ranks: int = 1
    unimodal: bool = False
    streaming: bool = False

    def batches(self, plan: Sequence[Indices], epoch: int) -> Iterator[Batch]:
        """The batches of a plan, in order, on the device."""
        if self.images.in_memory:
            yield from (self._batch(captions, self._inputs(captions, epoch)) for captions in plan)
            return
        with ThreadPoolExecutor(1, "bcls-load") as thread:
            coming: deque[Future[tuple[Padded, Padded]]] = deque()
            try:
                for number in range(len(plan) + _AHEAD):
                    if number < len(plan):
                        coming.append(thread.submit(self._inputs, plan[number], epoch))
                    if number >= _AHEAD:
                        yield self._batch(plan[number - _AHEAD], coming.popleft().result())
            finally:
                for inputs in coming:
                    inputs.cancel()

    def _inputs(self, whole: Indices, epoch: int) -> tuple[Padded, Padded]:
        own = share_of_rank(whole, self.rank, self.ranks)
        images = self.images.take(self.image_of_caption[own], own, epoch)
        if self.device.type == "cuda" and images.values.device.type == "cpu":  # so that the copy is asynchronous
            images = Padded(images.values.pin_memory(), images.lengths)
        return images, self.texts.take(own, whole)

    def _batch(self, whole: Indices, inputs: tuple[Padded, Padded]) -> Batch:
        images, texts = (one.to(self.device) for one in inputs)
        ids = torch.from_numpy(self.image_of_caption[whole]).to(self.device, non_blocking=True)
        if self.streaming and isinstance(self.labels, BatchLabels):
            own = share_of_rank(whole, self.rank, self.ranks)
            return Batch(len(whole), images, texts, ids, None, label_inputs=self.labels.streaming_inputs(own))
        return Batch(len(whole), images, texts, ids, *self.labels_of(whole))

    def labels_of(self, captions: Indices | Tensor) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
        """``relevance`` and ``unimodal`` of a batch of these captions."""
        if self.labels is None:
            return None, None
        if self.unimodal and isinstance(self.labels, BatchLabels):
            return self.labels(captions), self.labels.unimodal(captions)
        return self.labels(captions), None

    @property
    def on_device(self) -> bool:
        """Whether all inputs of a batch are on the device of a single process, as :meth:`load` needs them."""
        kept = isinstance(self.images, DeviceFeatures) and self.texts.on_device
        return kept and self.ranks == 1 and (self.labels is None or self.labels.on_device)

    @cached_property
    def _owner(self) -> Tensor:
        return torch.from_numpy(self.image_of_caption).to(self.device)

    def index_batches(self, plan: Sequence[Indices], epoch: int) -> Iterator[IndexBatch]:
        """The batches of a plan as indices, in order; the epoch selects the views, if there are several."""
        draw = self.images.views if isinstance(self.images, DeviceFeatures) else None
        for captions in plan:
            # Non-blocking copies: others would wait for the steps that the GPU has not finished.
            views = None if draw is None else torch.from_numpy(draw(captions, epoch)).to(self.device, non_blocking=True)
            longest = self.texts.longest(captions)
            width = None if longest is None else longest + -(longest + 1) % CAPTION_STEP
            yield IndexBatch(torch.from_numpy(captions).to(self.device, non_blocking=True), width, views)

    def load(self, batch: IndexBatch) -> Batch:
        """The whole batch, computed on the device; see :attr:`on_device`."""
        assert isinstance(self.images, DeviceFeatures)  # noqa: S101 - `on_device` has checked it
        captions, ids = batch.captions, self._owner[batch.captions]
        images, texts = self.images.rows(ids, batch.views), self.texts.rows(captions, batch.width)
        return Batch(len(captions), images, texts, ids, *self.labels_of(captions))


class _ReportedList(list[str]):
    """A list that reports the end of each slice that is read."""

    def __init__(self, items: list[str], report: Callable[[int], None]) -> None:
        super().__init__(items)
        self._report = report

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            self._report(place.indices(len(self))[1])
        return super().__getitem__(place)
