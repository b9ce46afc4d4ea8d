"""What an extraction can be told.

``manifest.json`` beside the features: what they are, what made them, which splits are finished.

What is to be extracted, worked out from the settings before anything is written.

The feature file of a split while it is made: rows first, then a line that says they are there.
"""

import hashlib
import json
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bcls import __version__
from bcls._core.errors import check_choice, check_whole, fail, shortened
from bcls._core.extras import check_device
from bcls._core.files import sync_folder, take, write_whole
from bcls.data.dataset import Dataset
from bcls.data.records import FeatureFile, add_features
from bcls.data.text_files import read_json
from bcls.features.jobs import ENGINES, Start
from bcls.features.regions import RandomViews

if TYPE_CHECKING:
    from bcls.features.backbones import Backbone


@dataclass(frozen=True)
class FeatureSettings:
    """Flags of ``bcls data features``."""

    backbone: str = "efficientnet-lite0"
    """efficientnet-lite0, 1 or 2, or the folder or hub name of a vision model of transformers."""
    regions: str = "36"
    """Regions a picture: a square number, rows and columns such as 4x9, or global for one vector."""
    view: str = "whole"
    """What the network sees: whole (stretched to a square) or centre; or the mean over several crops: mirrored (two),
    four-crop, six-crop or ten-crop."""
    views: int = 0
    """Random crops, half of them mirrored, beside each picture; training draws one a caption. With whole or centre."""
    smallest_crop: float = 0.5
    """The smallest of these random views, as a share of the picture's area."""
    name: str | None = None
    """Name of the features; made from the backbone, the regions, the view and the views when left out."""
    split: str | None = None
    """One split alone; all of them when left out."""
    engine: str = "local"
    """local works in this process, ray on a Ray cluster."""
    address: str | None = None
    """Address of a Ray cluster; without one, ray is started on this machine."""
    workers: int = 1
    """How many actors work at a time, with ray."""
    device: str = "auto"
    """cpu, cuda, or auto for a GPU where there is one."""
    precision: str = "float32"
    """Precision of the network: float32, bfloat16 or float16. Features are stored as float16."""
    images: str | None = None
    """Where the pictures are now, if they have moved since the import."""
    json: bool = False
    """Print the result as JSON."""


FILE = "manifest.json"
FORMAT = "bcls-features"


def check_name(argument: str, name: str) -> str:
    """A name that can be a folder or a file."""
    if not re.fullmatch(r"\w[\w.+-]*", name):
        fail(argument, "letters, digits, '.', '+', '-' and '_'", repr(name), "choose a plain name")
    return name


def finished_splits(folder: Path, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The splits of these features that are finished, with what is recorded of each; none where there are none.

    Raises:
        ValueError: They were made with other settings, or the file is not what this library writes.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        fail(str(path), f'a JSON object with "format": "{FORMAT}"', "something else", "choose another name")
    made, splits = content.get("settings"), content.get("splits")
    if not isinstance(made, dict) or not isinstance(splits, dict) or not all(map(_is_split, splits.values())):
        fail(str(path), "settings and splits as bcls writes them", "something else", f"remove {folder}")
    other = difference(made, settings)
    if other is not None:
        key, before, now = other
        remedy = f"choose another name for these, or remove {folder}"
        fail(key, f"{before}, as in the finished features {folder.name!r}", now, remedy)
    return splits


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """The first setting that differs from a recorded one, with both of its values; ``None`` where all are the same.

    Example:
        >>> difference({"side": 224, "views": 4}, {"side": 224})
        ('views', '4', 'none')
    """
    now = json.loads(json.dumps(now))
    for key in {**now, **before}:  # also what only one of them has
        if (key in before, before.get(key)) != (key in now, now.get(key)):
            then, here = (shortened(repr(one[key])) if key in one else "none" for one in (before, now))
            return shortened(key), then, here
    return None


def _is_split(made: Any) -> bool:
    return isinstance(made, dict) and "images" in made and isinstance(made.get("zero_rows"), list)


def record_split(
    dataset: Path, name: str, split: str, settings: Mapping[str, Any], made: Mapping[str, Any], views: int
) -> None:
    """Note that a split is finished, beside the features and then in the dataset's manifest."""
    folder = dataset / "features" / name
    splits = {**finished_splits(folder, settings), split: dict(made)}
    # In one order, whichever was finished first.
    content = {"format": FORMAT, "version": 1, "settings": dict(settings), "splits": dict(sorted(splits.items()))}
    write_whole(folder / FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    enter(dataset, name, split, views)


def enter(dataset: Path, name: str, split: str, views: int) -> None:
    """Enter a finished split, with so many rows a picture, in the dataset's manifest, where it is not there yet."""
    with alone(dataset / "features", wait=True):
        add_features(dataset, name, split, FeatureFile(f"features/{name}/{split}.npy", every=views, views=views))


@contextmanager
def alone(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes out of a folder of features.

    Args:
        folder: The folder; made if it is not there.
        wait: Wait until the other one is done.

    Raises:
        ValueError: Another one is there, and we do not wait.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+", encoding="utf-8") as file:
        owner = take(file, wait=wait)
        if owner is not None:
            got = f"{folder}, in use by {owner}"
            fail("name", "features that no other process makes now", got, "wait for it, or end it")
        yield


PRECISIONS = ("float32", "bfloat16", "float16")
_PACKAGES = ("torch", "numpy", "pillow", "transformers", "efficientnet_lite_pytorch")


@dataclass(frozen=True)
class Plan:
    """An extraction.

    Attributes:
        name: Name of the features.
        shape: Shape of the features of one view of a picture.
        views: Views of a picture, the whole one included, each with a row.
        settings: What the features are, as it is recorded.
        made_with: Device and software, which show in the last bits.
        start: Builds a worker.
        splits: The splits, in order.
    """

    name: str
    shape: tuple[int, ...]
    views: int
    settings: dict[str, Any]
    made_with: dict[str, Any]
    start: Start[tuple[str, ...]]
    splits: tuple[str, ...]


def make_plan(dataset: Dataset, settings: FeatureSettings) -> Plan:
    """Check the settings, load the backbone, and see what follows from them.

    Raises:
        ValueError: A setting is wrong, or the dataset is only a part of its splits.
    """
    import torch

    from bcls.features.backbones import load_backbone
    from bcls.features.regions import VIEWS, parse_regions, pool_regions

    check_choice("engine", settings.engine, ENGINES)
    check_choice("precision", settings.precision, PRECISIONS)
    check_choice("view", settings.view, VIEWS)
    check_whole("workers", settings.workers, least=1)
    views = _random_views(settings)
    regions = parse_regions(settings.regions)
    splits = _splits(dataset, settings.split)
    device = _device(settings.device)
    backbone = load_backbone(settings.backbone)
    shape: tuple[int, ...] = (backbone.channels,)
    if regions is not None:  # an error about the grid comes now, not from a worker
        shape = tuple(pool_regions(torch.zeros(1, backbone.channels, *backbone.grid), regions).shape[1:])
    options = {
        "dataset": replace(dataset, captions=()),  # workers need none
        "view": settings.view,
        "regions": regions,
        "device": device,
        "precision": getattr(torch, settings.precision),
        "lanes": max(1, torch.get_num_threads() // settings.workers),
        "views": views,
    }
    return Plan(
        check_name("name", settings.name or _default_name(settings)),
        shape,
        views.rows,
        _recorded(backbone, settings, regions),
        {"device": torch.cuda.get_device_name(device) if device != "cpu" else "cpu", "software": _software()},
        _start(dataset, backbone, settings, options),
        splits,
    )


def images_hash(image_ids: tuple[str, ...]) -> str:
    """A hash of image ids and their order."""
    return hashlib.sha256("\n".join(image_ids).encode()).hexdigest()


def _splits(dataset: Dataset, split: str | None) -> tuple[str, ...]:
    if split is not None:
        check_choice("split", split, dataset.splits)
    chosen = tuple(dataset.splits) if split is None else (split,)
    for one in chosen:
        check_name("split", one)
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


def _random_views(settings: FeatureSettings) -> RandomViews:
    from bcls.features.regions import VIEWS

    number = check_whole("views", settings.views, least=0)
    smallest = settings.smallest_crop
    if not 0 < smallest <= 1:
        fail("smallest_crop", "a share above 0, up to 1", smallest, "0.5 is usual; 1 keeps the whole picture")
    if number and VIEWS[settings.view] > 1:
        got = f"{number} with the view {settings.view}, which is a mean over {VIEWS[settings.view]} crops already"
        fail("views", "0, or another view", got, "use --view whole or centre, or leave --views out")
    return RandomViews(number, smallest)


def _default_name(settings: FeatureSettings) -> str:
    view = "" if settings.view == "whole" else f"-{settings.view}"
    views = f"-views{settings.views}" if settings.views else ""
    return f"{Path(settings.backbone).name}-{settings.regions}{view}{views}"


def _recorded(backbone: "Backbone", settings: FeatureSettings, regions: tuple[int, int] | None) -> dict[str, Any]:
    return {
        "backbone": settings.backbone,
        "weights": backbone.weights,
        "side": backbone.side,
        "mean": list(backbone.mean),
        "std": list(backbone.std),
        "view": settings.view,
        "regions": "global" if regions is None else list(regions),
        "channels": backbone.channels,
        "precision": settings.precision,
        "dtype": "float16",
        # Told only where there are some, so that features that earlier releases made are known again.
        **({"views": settings.views, "smallest_crop": settings.smallest_crop} if settings.views else {}),
    }


def _software() -> dict[str, str]:
    found = {"bcls": __version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _start(
    dataset: Dataset, backbone: "Backbone", settings: FeatureSettings, options: dict[str, Any]
) -> Start[tuple[str, ...]]:
    from bcls.features.worker import PictureWorker, start_worker

    if settings.engine == "local":
        return partial(PictureWorker, backbone, **options)
    if not dataset.folder.is_absolute():
        fail("dataset", "an absolute folder with ray", str(dataset.folder), "open it by its absolute path")
    # Weights are loaded where they are used; sending them would take longer.
    return partial(start_worker, backbone.name, backbone.weights, **options)


class SplitFile:
    """``<split>.npy`` in the making. Whenever the process is killed, the next one goes on where it was.

    Rows are written to ``.<split>.part`` and forced onto the disk before a line in ``.<split>.blocks`` says that their
    block is done; the first line there holds what the features depend on. When all blocks are done, the file gets its
    name.

    Args:
        folder: Folder of the features.
        split: Name of the split.
        shape: Number of rows, then the shape of one row.
        depends: What the bytes depend on; another extraction under this name is refused.

    Raises:
        ValueError: A broken-off extraction depends on something else.
    """

    def __init__(self, folder: Path, split: str, shape: tuple[int, ...], depends: Mapping[str, Any]) -> None:
        self.path = folder / f"{split}.npy"
        self._part, self._journal = folder / f".{split}.part", folder / f".{split}.blocks"
        self._shape = shape
        #: Blocks that are done, with the ids of pictures whose rows are zero.
        self.done: dict[int, list[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if self._journal.exists() and (self._part.exists() or self.path.exists()):
            self._take_up(dict(depends))
        else:
            self._begin(dict(depends))

    def write(self, block: int, start: int, rows: npt.NDArray[np.float16], zero: Sequence[str]) -> None:
        """Keep the rows of a block.

        Args:
            block: Its number.
            start: Number of its first row.
            rows: The rows.
            zero: Ids of the pictures in it that cannot be read and have rows of zeros.
        """
        begin = self._part.stat().st_size - int(np.prod(self._shape)) * rows.itemsize
        with self._part.open("r+b") as file:
            file.seek(begin + start * rows[0].nbytes)
            file.write(np.ascontiguousarray(rows).data)
            file.flush()
            os.fsync(file.fileno())
        with self._journal.open("ab") as file:
            file.write(json.dumps({"block": block, "zero": list(zero)}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.done[block] = list(zero)

    def finish(self) -> None:
        """Give the file its name; the caller says that it is finished and then calls :meth:`forget`."""
        if self._part.exists():
            self._part.replace(self.path)
            sync_folder(self.path.parent)

    def forget(self) -> None:
        """Drop the notes about blocks."""
        self._journal.unlink(missing_ok=True)

    def _begin(self, depends: dict[str, Any]) -> None:
        self._journal.unlink(missing_ok=True)
        with self._part.open("wb") as file:
            header = {"descr": "<f2", "fortran_order": False, "shape": self._shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + int(np.prod(self._shape)) * 2)
            file.flush()
            os.fsync(file.fileno())
        write_whole(self._journal, json.dumps(depends) + "\n")
        sync_folder(self._journal.parent)

    def _take_up(self, depends: dict[str, Any]) -> None:
        whole, _, _ = self._journal.read_bytes().rpartition(b"\n")
        try:
            before, *lines = map(json.loads, whole.decode().split("\n"))
            before = dict(before)
            done = {operator.index(line["block"]): list(line["zero"]) for line in lines}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"a damaged one ({' '.join(str(error).split())[:200]})"
            fail(str(self._journal), "notes about the blocks that are done", reason, f"remove {self._journal.parent}")
        other = difference(before, depends)
        if other is not None:
            key, then, now = other
            remedy = f"finish that one first, choose another name, or remove {self._journal.parent}"
            fail(key, f"{then}, as in the extraction that was broken off", now, remedy)
        self.done = done
        os.truncate(self._journal, len(whole) + 1)  # a line that was cut off
