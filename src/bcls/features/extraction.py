"""Feature extraction: compute the features of every image of a dataset and store them in its folder."""

import hashlib
import json
import re
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._core.config import check_shape
from bcls._core.errors import check_choice, fail
from bcls._core.extras import check_device, sha256_of
from bcls._core.files import write_whole
from bcls._core.locks import lock_folder
from bcls._core.progress import progress
from bcls.data.dataset import Dataset
from bcls.data.records import FeatureFile, add_features, read_quarantine
from bcls.data.text_files import read_json
from bcls.features.array_cache import ArrayCache, first_difference, installed_versions
from bcls.features.jobs import Start, run_blocks, torch_threads
from bcls.features.settings import FeatureSettings

#: Images in a block: the most work that is lost when the process is killed.
BLOCK = 256
_FORMAT = "bcls-features"


@dataclass(frozen=True)
class Extraction:
    """Result of an extraction.

    Attributes:
        name: Name of the features, for :meth:`bcls.data.Dataset.features`.
        folder: Folder of the features.
        shapes: Shape of the array of each finished split.
        views: Rows of an image: one for the image itself and one for each random crop.
        already: Splits that were finished before.
        unreadable: Images that cannot be read, by id, with the reason. Their splits are not finished.
        zero_rows: Ids of quarantined images that cannot be read and have rows of zeros.
    """

    name: str
    folder: Path
    shapes: dict[str, tuple[int, ...]]
    views: int
    already: tuple[str, ...]
    unreadable: dict[str, str]
    zero_rows: tuple[str, ...]


def extract(dataset: Dataset, settings: FeatureSettings | None = None) -> Extraction:
    """Extract the features of a dataset's images into its folder.

    They are stored as ``features/<name>/<split>.npy``, float16, ``(N, R, D)`` or ``(N, D)``, with a ``manifest.json``
    that records the settings, and are added to the dataset's manifest: open the dataset again and call
    ``features(name)``. An interrupted extraction is resumed by the same call and ends with the same bytes.

    With ``views`` random crops there are ``(1 + views) N`` rows, the row of an image before those of its crops.
    Evaluation uses the rows of the images; training draws one of the rows for each caption.

    A split with an unreadable image is not finished, unless ``bcls data check`` has put the image into quarantine: then
    its row is zero and listed in ``manifest.json``, and training skips it.

    Args:
        dataset: The dataset, with all images of its splits.
        settings: The settings; default: :class:`FeatureSettings`.

    Returns:
        What was extracted.

    Raises:
        ValueError: A setting is invalid or differs from that of an unfinished or finished extraction of this name, or
            none of the images can be read.
        MissingExtraError: A package that the backbone or engine needs is not installed.
        OSError: The features cannot be written.
    """
    settings = settings or FeatureSettings()
    plan = _make_plan(dataset, settings)
    folder = dataset.folder / "features" / plan.name
    with lock_folder(folder, "features that no other process is writing", argument="name"):
        before = finished_splits(folder, plan.settings)
        already = tuple(split for split in plan.splits if split in before and (folder / f"{split}.npy").exists())
        work = []
        for split in plan.splits:
            part = dataset.split(split)
            if split not in already:
                work.append(_SplitWork(part, split, folder, plan))
            elif before[split]["images"] != _images_hash(part):
                expected = f"features of the current images of split {split!r}"
                fail(str(folder), expected, "features of other images", "delete that folder, or use another --name")
            else:
                _add_to_dataset(dataset.folder, plan, split)
                (folder / f".{split}.blocks").unlink(missing_ok=True)  # of a process killed before it removed this
        _run(work, plan, settings)
        finished = finished_splits(folder, plan.settings)
    complete = [split for split in plan.splits if split in finished and (folder / f"{split}.npy").exists()]
    return Extraction(
        plan.name,
        folder,
        {split: (dataset.splits[split][0] * plan.views, *plan.shape) for split in complete},
        plan.views,
        already,
        {image_id: reason for one in work for image_id, reason in one.unreadable.items()},
        tuple(image_id for split in complete for image_id in finished[split]["zero_rows"]),
    )


def finished_splits(folder: Path, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Read ``manifest.json`` of a feature folder.

    Returns:
        The record of each finished split; empty without a manifest.

    Raises:
        ValueError: The features have other settings, or the file is not a manifest of features.
    """
    path = folder / "manifest.json"
    if not path.exists():
        return {}
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        fail(str(path), f'a JSON object with "format": "{_FORMAT}"', "another file", "use another --name")
    shape = {"settings": dict, "splits": {str: {"images": str, "zero_rows": [str]}}}
    check_shape(str(path), content, shape, f"delete {folder} and extract again")
    changed = first_difference(content["settings"], settings)
    if changed is not None:
        expected = f"{changed.before}, as in the finished features {folder.name!r}"
        fail(changed.name, expected, changed.now, f"use another --name, or delete {folder}")
    splits: dict[str, dict[str, Any]] = content["splits"]
    return splits


@dataclass(frozen=True)
class _Plan:
    """What an extraction computes, derived from the settings before anything is written.

    Attributes:
        name: Name of the features.
        splits: The splits, in order.
        shape: Shape of one row.
        views: Rows of an image.
        settings: The recorded settings of the features.
        made_with: Device and software, which affect the last bits of the features.
        start: Builds a worker.
    """

    name: str
    splits: tuple[str, ...]
    shape: tuple[int, ...]
    views: int
    settings: dict[str, Any]
    made_with: dict[str, Any]
    start: Start[tuple[str, ...]]


def _make_plan(dataset: Dataset, settings: FeatureSettings) -> _Plan:
    """Check the settings, load the backbone and derive the rest."""
    import torch

    from bcls.features.backbones import load_backbone
    from bcls.features.regions import CROP_BOXES, parse_regions, pool_regions
    from bcls.features.worker import start_worker

    settings.check()
    regions = parse_regions(settings.regions)
    splits = _check_splits(dataset, settings.split)
    name = _check_name("name", settings.name or settings.default_name)
    for split in splits:
        file = dataset.manifest.features.get(name, {}).get(split)
        if file is not None and file.path != f"features/{name}/{split}.npy":
            fail("name", "an unused name", f"{name!r}, the name of {file.path}", "choose another name")
    device = _device(settings.device)
    if settings.engine == "ray" and not dataset.folder.is_absolute():
        fail("dataset", "an absolute folder with the engine 'ray'", str(dataset.folder), "open it by its absolute path")
    backbone = load_backbone(settings.backbone)
    shape: tuple[int, ...] = (backbone.channels,)
    if regions == "crops-36":
        shape = (len(CROP_BOXES), *shape)
    elif regions is not None:  # pooling an empty grid reports too many regions here, not in a worker
        shape = tuple(pool_regions(torch.zeros(1, backbone.channels, *backbone.grid), regions).shape[1:])
    recorded = {
        "backbone": settings.backbone,
        "weights": backbone.weights,
        "side": backbone.side,
        "mean": list(backbone.mean),
        "std": list(backbone.std),
        "view": settings.view,
        "regions": list(regions) if isinstance(regions, tuple) else settings.regions,
        "channels": backbone.channels,
        "precision": settings.precision,
        "dtype": "float16",
    }
    if settings.views:  # omitted if 0, as in features of earlier releases
        recorded |= {"views": settings.views, "smallest_crop": settings.smallest_crop}
    network = backbone if settings.engine == "local" else backbone.name
    lanes = max(1, torch.get_num_threads() // settings.actors)
    images = replace(dataset, captions=())  # workers need no captions
    start = partial(start_worker, network, backbone.weights, images, replace(settings, device=device), lanes)
    software = installed_versions("torch", "numpy", "pillow", "transformers", "efficientnet_lite_pytorch")
    made_with = {"device": device if device == "cpu" else torch.cuda.get_device_name(device), "software": software}
    return _Plan(name, splits, shape, 1 + settings.views, recorded, made_with, start)


def _check_name(argument: str, name: str) -> str:
    """Check that a name can be the name of a folder or file."""
    if not re.fullmatch(r"\w[\w.+-]*", name):
        fail(argument, "letters, digits, '.', '+', '-' and '_'", repr(name), "choose another name")
    return name


def _check_splits(dataset: Dataset, split: str | None) -> tuple[str, ...]:
    chosen = tuple(dataset.splits) if split is None else (check_choice("split", split, dataset.splits),)
    for one in chosen:
        _check_name("split", one)
        images, stored = dataset.splits[one][0], dataset.split_sizes[one]
        if images != stored:
            fail("dataset", f"all {stored} images of split {one!r}", images, "pass the dataset as it was opened")
    return chosen


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    check_choice("device", name.partition(":")[0], ("auto", "cpu", "cuda"))
    return check_device(name)


def _images_hash(part: Dataset) -> str:
    return hashlib.sha256("\n".join(part.image_ids).encode()).hexdigest()


class _SplitWork:
    """The blocks of one split and the file that they are written to.

    Attributes:
        cache: The file.
        unreadable: Images that cannot be read and are not in quarantine, with the reason.
    """

    def __init__(self, part: Dataset, split: str, folder: Path, plan: _Plan) -> None:
        self._part, self._split, self._plan = part, split, plan
        self._images = _images_hash(part)
        self._quarantined = read_quarantine(part.folder).images
        settings = {**plan.settings, **plan.made_with, "images": self._images, "block": BLOCK}
        self._rows = len(part.images) * plan.views
        self.cache = ArrayCache(folder / f"{split}.npy", self._rows, BLOCK * plan.views, settings)
        self.unreadable: dict[str, str] = {}

    def block(self, number: int) -> tuple[str, ...]:
        """Return the ids of the images in a block."""
        return self._part.image_ids[number * BLOCK : (number + 1) * BLOCK]

    def write(self, number: int, rows: npt.NDArray[Any]) -> None:
        """Write the rows of a block, unless an image cannot be read and is not in quarantine.

        Raises:
            ValueError: None of the images can be read.
        """
        ids = self.block(number)
        broken = [ids[row] for row in np.flatnonzero(np.isnan(rows).reshape(len(ids), -1).any(1))]
        reasons = {image_id: self._reason(image_id) for image_id in broken if image_id not in self._quarantined}
        if reasons and len(broken) == len(ids) > 1:
            got = f"none of {len(ids)} ({next(iter(reasons.values()))})"
            fail("dataset", "images that can be read", got, "use --images if they were moved")
        self.unreadable |= reasons
        if not reasons:
            rows[np.repeat(np.isin(ids, broken), self._plan.views)] = 0
            self.cache.write(number, rows, broken)

    def finish(self) -> None:
        """Rename and record the file if all blocks are written."""
        if not self.cache.remaining:
            self.cache.finish(self._record)

    def _record(self) -> None:
        folder, plan = self.cache.path.parent, self._plan
        zero_rows = [image_id for _, ids in sorted(self.cache.done.items()) for image_id in ids]
        inputs = {"rows": self._rows, "sha256": sha256_of(self.cache.path), "images": self._images, **plan.made_with}
        record = {**inputs, "zero_rows": zero_rows}
        # Sorted, so that the file does not depend on the order in which splits were finished.
        splits = dict(sorted({**finished_splits(folder, plan.settings), self._split: record}.items()))
        content = {"format": _FORMAT, "version": 1, "settings": plan.settings, "splits": splits}
        write_whole(folder / "manifest.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        _add_to_dataset(self._part.folder, plan, self._split)

    def _reason(self, image_id: str) -> str:
        try:
            self._part.read_image(image_id)
        except ValueError as error:
            return str(error)
        except OSError as error:
            return str(error.strerror or error)
        return "a worker could not read it, but this process can"


def _add_to_dataset(dataset: Path, plan: _Plan, split: str) -> None:
    file = FeatureFile(f"features/{plan.name}/{split}.npy", every=plan.views, views=plan.views)
    add_features(dataset, plan.name, split, file)


def _run(splits: list[_SplitWork], plan: _Plan, settings: FeatureSettings) -> None:
    """Compute the remaining blocks of all splits and show progress."""
    todo = [(split, number) for split in splits for number in split.cache.remaining]
    blocks = [split.block(number) for split, number in todo]
    for split in splits:  # finishes splits whose process was killed after the last block
        split.finish()
    if not todo:
        return
    results = run_blocks(
        blocks,
        plan.start,
        engine=settings.engine,
        address=settings.address,
        workers=settings.actors,
        threads=1,
        gpus=0.0 if plan.made_with["device"] == "cpu" else 1.0,
    )
    total, done, started = sum(map(len, blocks)), 0, time.monotonic()
    # Lanes compute while a block is written, so the number of threads is set for the whole loop.
    with torch_threads(1), closing(results), progress(f"features {plan.name}", total) as step:
        for place, rows in results:
            split, number = todo[place]
            split.write(number, rows)
            split.finish()
            done += len(blocks[place])
            step(done, f"{done / (time.monotonic() - started):.1f} images/s")
