"""What an extraction can be told."""

from dataclasses import dataclass


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
