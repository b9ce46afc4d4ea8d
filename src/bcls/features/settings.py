"""Settings of a feature extraction."""

import os
from dataclasses import dataclass
from pathlib import Path

from bcls._core.errors import check_choice, check_whole, fail
from bcls.features.jobs import check_engine

PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class FeatureSettings:
    """Flags of ``bcls data features``.

    Attributes:
        backbone: efficientnet-lite0, 1 or 2, the folder or hub name of a vision model of transformers, or several of
            them joined by +.
        regions: Regions of an image: a square number, ROWSxCOLUMNS such as 4x6, crops-36 for 36 crops at several
            scales, each with its own pass of the network, or global for one vector.
        view: Crops that the network sees: whole (stretched to a square) or centre; or the mean over several crops:
            mirrored (two), four-crop, six-crop or ten-crop.
        views: Number of random crops of each image, half of them mirrored; training draws one per caption. Only with
            whole or centre, and not with crops-36.
        smallest_crop: Smallest area of a random crop, as a fraction of the image.
        name: Name of the features. Default: made from backbone, regions, view and views.
        split: Extract one split only. Default: all splits.
        engine: local runs in this process, ray on a Ray cluster.
        address: Address of a Ray cluster. Default: start Ray on this machine.
        workers: Threads that decode images, or Ray actors. Default: one per core, or one actor.
        device: cpu, cuda, or auto for a GPU if there is one.
        precision: Precision of the network: float32, bfloat16 or float16. Features are stored as float16.
        images: Folder or archive with the images, if they were moved since the import.
        json: Print the result as JSON.
    """

    backbone: str = "efficientnet-lite0"
    regions: str = "36"
    view: str = "whole"
    views: int = 0
    smallest_crop: float = 0.5
    name: str | None = None
    split: str | None = None
    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    device: str = "auto"
    precision: str = "float32"
    images: str | None = None
    json: bool = False

    @property
    def default_name(self) -> str:
        """Name of the features, unless one is set."""
        view = "" if self.view == "whole" else f"-{self.view}"
        views = f"-views{self.views}" if self.views else ""
        backbone = "+".join(Path(part.strip()).name for part in self.backbone.split("+"))
        return f"{backbone}-{self.regions}{view}{views}"

    @property
    def actors(self) -> int:
        """Number of processes that run the network."""
        return self.workers or 1 if self.engine == "ray" else 1

    @property
    def readers(self) -> int:
        """Threads that decode images in each of these processes."""
        cores = os.cpu_count() or 1
        return max(1, cores // self.actors) if self.engine == "ray" else self.workers or cores

    def check(self) -> None:
        """Check the values, before any expensive work.

        Raises:
            ValueError: A value is invalid, or does not fit the others.
        """
        from bcls.features.regions import VIEWS

        check_whole("workers", 1 if self.workers is None else self.workers, least=1)
        check_engine(self.engine, self.address, self.actors)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("view", self.view, VIEWS)
        check_whole("views", self.views, least=0)
        if not 0 < self.smallest_crop <= 1:
            hint = "0.5 is usual; 1 keeps the whole image"
            fail("smallest_crop", "a fraction above 0 and at most 1", self.smallest_crop, hint)
        if not self.views and self.smallest_crop != FeatureSettings.smallest_crop:
            fail("smallest_crop", "no value without random crops", self.smallest_crop, "set their number with --views")
        if self.views and VIEWS[self.view] > 1:
            got = f"{self.views} with the view {self.view}, already a mean over {VIEWS[self.view]} crops"
            fail("views", "0, or another view", got, "use --view whole or centre, or omit --views")
        if self.regions == "crops-36" and self.view in {"centre", "ten-crop"}:
            fail("view", "whole, mirrored, four-crop or six-crop with crops-36", self.view, "use --view mirrored")
        if self.views and self.regions == "crops-36":
            hint = "use --regions 36, or omit --views; --view mirrored is possible"
            fail("views", "0, or regions of a grid", f"{self.views} with crops-36", hint)
