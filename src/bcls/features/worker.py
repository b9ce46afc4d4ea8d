"""Feature worker: reads images and runs the backbone on several batches at a time."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

import bcls.features.regions as crop
from bcls._core.errors import fail
from bcls.data.dataset import Dataset
from bcls.features.backbones import Backbone, load_backbone
from bcls.features.regions import VIEWS, ZOOMS
from bcls.features.settings import FeatureSettings

Rows = npt.NDArray[np.float16]


def _crops_at_once(device: str) -> int:
    """Crops in a batch. On a CPU larger batches leave the caches, on a GPU smaller ones leave it idle."""
    if device == "cpu":
        return 16
    memory = torch.cuda.get_device_properties(device).total_memory
    return 1024 if memory > 60e9 else 256 if memory > 20e9 else 128


class FeatureWorker:
    """Computes the features of blocks of images; see :func:`bcls.features.jobs.run_blocks`.

    Readers are threads that decode images ahead of the network. Each lane is a thread that runs the network on a batch,
    with a single torch thread: no lane waits for the slowest of several torch threads, and the result does not depend
    on the number of CPU cores. On a GPU there is one lane, since cuDNN prepares every layer again in each thread, which
    takes seconds.

    Args:
        backbone: The network.
        dataset: The dataset with the images.
        settings: Views, regions and precision of the features, device of the network and number of readers.
        lanes: Number of batches processed at a time on a CPU.
    """

    def __init__(self, backbone: Backbone, dataset: Dataset, settings: FeatureSettings, lanes: int) -> None:
        device, regions = settings.device, crop.parse_regions(settings.regions)
        self._backbone = backbone.to(device, getattr(torch, settings.precision)).eval()
        if device != "cpu":  # half precision is 1.5 times as fast as float32 in this format, and slower in the other
            self._backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._dataset, self._settings, self._regions, self._device = dataset, settings, regions, device
        self._view, self._views = settings.view, settings.views
        self._boxes = len(crop.CROP_BOXES) if regions == "crops-36" else 1
        crops_of_image = VIEWS[self._view] * self._boxes
        self._images_at_once = max(1, _crops_at_once(device) // crops_of_image)
        self._batch = self._images_at_once * crops_of_image
        cells = regions[0] * regions[1] if isinstance(regions, tuple) else self._boxes
        self._shape = (backbone.channels,) if regions is None else (cells, backbone.channels)
        self._readers = ThreadPoolExecutor(settings.readers)
        threads = lanes if device == "cpu" else 1
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        self._started: dict[tuple[str, ...], list[Future[Rows]]] = {}

    def prefetch(self, block: Sequence[str]) -> None:
        """Start computing a block in the background."""
        ids = tuple(block)
        if ids not in self._started:
            step = self._images_at_once
            batches = [ids[start : start + step] for start in range(0, len(ids), step)]
            images = [[self._readers.submit(self._read, image_id) for image_id in batch] for batch in batches]
            self._started[ids] = [self._pool.submit(self._rows, *one) for one in zip(batches, images, strict=True)]

    def __call__(self, block: Sequence[str]) -> Rows:
        """Return the features of the images with these ids, one row for each view; NaN if an image is unreadable."""
        self.prefetch(block)
        return np.concatenate([batch.result() for batch in self._started.pop(tuple(block))])

    def close(self) -> None:
        """Cancel blocks that were started."""
        self._readers.shutdown(cancel_futures=True)
        self._pool.shutdown(cancel_futures=True)

    def _rows(self, ids: Sequence[str], read: Sequence[Future[Any]]) -> Rows:
        images = [image.result() for image in read]
        readable = [number for number, image in enumerate(images) if image is not None]
        rows = np.full((len(ids), 1 + self._views, *self._shape), np.nan, dtype=np.float16)
        if readable:
            # One view of all images at a time: the batches of whole images are then the same as without random crops,
            # and so are their bytes.
            for view in range(1 + self._views):
                rows[readable, view] = self._compute([images[number][view] for number in readable])
            finite = np.isfinite(rows[readable]).reshape(len(readable), -1).all(1)
            if not finite.all():
                got = f"NaN or infinity for image {ids[readable[int(np.argmin(finite))]]!r}"
                fail("precision", "features that are finite in float16", got, "use float32, or another backbone")
        return rows.reshape(-1, *self._shape)

    def _compute(self, images: list[torch.Tensor]) -> Rows:
        cut = self._boxes > 1
        parts = [one.to(self._device) for one in (images if cut else [torch.cat(images)])]
        with torch.inference_mode():
            pixels = torch.cat([crop.cut_boxes(one, self._backbone.side) for one in parts]) if cut else parts[0]
            if self._view in ZOOMS:
                pixels = crop.zoomed(pixels, self._view).flatten(0, 1)
            crops = len(pixels)
            if self._device != "cpu":  # cuDNN takes seconds to prepare the layers for a batch of another size
                pixels = torch.cat([pixels, pixels.new_zeros(self._batch - crops, *pixels.shape[1:])])
            grid = self._backbone(pixels)[:crops].float()
            values = crop.pool_regions(grid, self._regions) if isinstance(self._regions, tuple) else grid.mean((2, 3))
            values = values.unflatten(0, (-1, VIEWS[self._view])).mean(1)
            return cast(Rows, values.reshape(len(images), *self._shape).half().cpu().numpy())

    def _read(self, image_id: str) -> Any:
        try:
            image = self._dataset.read_image(image_id)
            if self._boxes > 1:
                return [crop.image_pixels(image)]
            # Zooms are made of bytes on the device of the network.
            view = "whole" if self._view in ZOOMS else self._view
            views = crop.image_views(image, image_id, self._views, self._settings.smallest_crop)
            return [self._backbone.views(one, view) for one in views]
        except (ValueError, OSError):
            return None  # the main process reads the image again to report the reason


def start_worker(
    backbone: Backbone | str, weights: str, dataset: Dataset, settings: FeatureSettings, lanes: int
) -> FeatureWorker:
    """Build a worker in the process that runs it.

    Args:
        backbone: The network. A worker in another process gets the name and loads the weights itself, which is faster
            than sending them.
        weights: Hash that the weights must have.
        dataset: See :class:`FeatureWorker`.
        settings: See :class:`FeatureWorker`.
        lanes: See :class:`FeatureWorker`.

    Raises:
        ValueError: The weights are different.
    """
    network = load_backbone(backbone) if isinstance(backbone, str) else backbone
    if network.weights != weights:
        expected = f"{network.name!r} with weights {weights}"
        fail("backbone", expected, network.weights, "install the same weights on all machines")
    return FeatureWorker(network, dataset, settings, lanes)
