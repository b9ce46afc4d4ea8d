"""Pictures to features: reads and computes several batches side by side."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from bcls._core.errors import fail
from bcls.data.dataset import Dataset
from bcls.features.backbones import Backbone, load_backbone
from bcls.features.regions import VIEWS, RandomViews, View, pool_regions

#: Crops that go through the network at a time. On a processor more only leave its caches, a GPU is idle with fewer.
_BATCH = {"cpu": 16, "cuda": 128}

Rows = npt.NDArray[np.float16]


class PictureWorker:
    """Computes the features of blocks of pictures; see :class:`bcls.features.Ahead`.

    Every lane is a thread that reads a batch of pictures and then runs the network on it, with a single torch thread:
    while one lane reads, another computes; nothing waits for the slowest of several torch threads; and the result does
    not depend on how many processors there are. On a GPU the lanes take turns.

    Args:
        backbone: The network.
        dataset: Where the pictures are.
        view: What the network sees of a picture.
        regions: Rows and columns of regions, or ``None`` for one vector.
        device: Where the network runs.
        precision: Its type.
        lanes: How many batches are worked on at a time.
        views: Random views that are looked at in the same way as the picture itself.
    """

    def __init__(
        self,
        backbone: Backbone,
        dataset: Dataset,
        view: View,
        regions: tuple[int, int] | None,
        device: str,
        precision: torch.dtype,
        lanes: int,
        views: RandomViews,
    ) -> None:
        self._backbone = backbone.to(device, precision).eval()
        self._dataset, self._view, self._regions, self._device = dataset, view, regions, device
        self._views = views
        self._turn = threading.Semaphore(lanes if device == "cpu" else 1)
        self._pool = ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(1,))
        self._begun: dict[tuple[str, ...], list[Future[Rows]]] = {}

    def ahead(self, block: Sequence[str]) -> None:
        """Begin with a block."""
        ids = tuple(block)
        step = max(1, _BATCH[self._device.partition(":")[0]] // VIEWS[self._view])
        if ids not in self._begun:
            parts = [ids[start : start + step] for start in range(0, len(ids), step)]
            self._begun[ids] = [self._pool.submit(self._rows, part) for part in parts]

    def __call__(self, block: Sequence[str]) -> Rows:
        """Features of the pictures with these ids, a row for each view of each; NaN for what cannot be read."""
        self.ahead(block)
        return np.concatenate([part.result() for part in self._begun.pop(tuple(block))])

    def close(self) -> None:
        """Drop what was begun."""
        self._pool.shutdown(cancel_futures=True)

    def _rows(self, ids: Sequence[str]) -> Rows:
        pictures = [self._read(image_id) for image_id in ids]
        readable = [number for number, picture in enumerate(pictures) if picture is not None]
        shape: tuple[int, ...] = (self._backbone.channels,)
        if self._regions is not None:
            shape = (self._regions[0] * self._regions[1], *shape)
        rows = np.full((len(ids), self._views.rows, *shape), np.nan, dtype=np.float16)
        if readable:
            # One view of all pictures at a time: whole pictures then share a batch with the same others as without
            # views, and have the same bytes.
            for view in range(self._views.rows):
                pixels = torch.cat([pictures[number][view] for number in readable])
                rows[readable, view] = self._compute(pixels, len(readable))
            finite = np.isfinite(rows[readable]).reshape(len(readable), -1).all(1)
            if not finite.all():
                image_id = ids[readable[int(np.argmin(finite))]]
                got = f"others for the picture {image_id!r}"
                fail("precision", "features that are finite in float16", got, "use float32, or another backbone")
        return rows.reshape(-1, *shape)

    def _compute(self, pixels: torch.Tensor, images: int) -> Rows:
        with self._turn, torch.inference_mode():
            grid = self._backbone(pixels.to(self._device)).float()
            values = grid.mean((2, 3)) if self._regions is None else pool_regions(grid, self._regions)
            values = values.unflatten(0, (images, -1)).mean(1)
            return cast(Rows, values.half().cpu().numpy())

    def _read(self, image_id: str) -> Any:
        try:
            pictures = self._views.of(self._dataset.read_image(image_id), image_id)
            return [self._backbone.views(one, self._view) for one in pictures]
        except (ValueError, OSError):
            return None  # the main process reads it once more, to say why


def start_worker(name: str, weights: str, **options: Any) -> PictureWorker:
    """Load a backbone where the work is done, and see that it is the same as everywhere.

    Args:
        name: Name of the backbone.
        weights: The hash that its weights must have.
        options: The other arguments of :class:`PictureWorker`.

    Raises:
        ValueError: The weights are others.
    """
    backbone = load_backbone(name)
    if backbone.weights != weights:
        fail("backbone", f"{name!r} with weights {weights}", backbone.weights, "install the same weights everywhere")
    return PictureWorker(backbone, **options)
