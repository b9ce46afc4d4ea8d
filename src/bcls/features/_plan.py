"""What is to be extracted, worked out from the settings before anything is written."""

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcls import __version__
from bcls._checks import check_choice, check_whole, fail
from bcls._device import check_device
from bcls.data import Dataset
from bcls.features._record import check_name
from bcls.features._views import RandomViews
from bcls.features.settings import FeatureSettings
from bcls.jobs import ENGINES, Start

if TYPE_CHECKING:
    from bcls.backbones import Backbone

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

    from bcls.backbones import VIEWS, load_backbone, parse_regions, pool_regions

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
    from bcls.backbones import VIEWS

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
    from bcls.features._worker import PictureWorker, start_worker

    if settings.engine == "local":
        return partial(PictureWorker, backbone, **options)
    if not dataset.folder.is_absolute():
        fail("dataset", "an absolute folder with ray", str(dataset.folder), "open it by its absolute path")
    # Weights are loaded where they are used; sending them would take longer.
    return partial(start_worker, backbone.name, backbone.weights, **options)
