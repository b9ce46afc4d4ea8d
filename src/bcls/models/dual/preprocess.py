"""What a transformers checkpoint does to a picture before its first layer, with Pillow alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bcls._checks import fail


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop, scale and shift, as a checkpoint's ``preprocessor_config.json`` says."""

    height: int
    """Of the resized picture; with ``width`` 0, length of its shorter side."""
    width: int
    """Of the resized picture; 0 where the picture keeps its shape."""
    crop: tuple[int, int] | None
    """Height and width of the middle that is kept."""
    resample: int
    """Pillow's number of the resampling filter."""
    scale: float
    """What values from 0 to 255 are multiplied by."""
    mean: tuple[float, ...]
    """What is subtracted from the scaled red, green and blue."""
    std: tuple[float, ...]
    """What they are divided by then."""

    def prepare(self, image: Image.Image) -> Tensor:
        """A picture resized and cropped, ``(3, H, W)`` uint8.

        Args:
            image: A picture of any mode and size.
        """
        image = image.convert("RGB")
        height, width = self.height, self.width
        if not width:
            short, long = sorted(image.size)
            other = int(self.height * long / short)
            height, width = (self.height, other) if image.height <= image.width else (other, self.height)
        image = image.resize((width, height), resample=Image.Resampling(self.resample))
        if self.crop is not None:
            top, left = (height - self.crop[0]) // 2, (width - self.crop[1]) // 2
            image = image.crop((left, top, left + self.crop[1], top + self.crop[0]))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixels from 0 to 255 on the scale of the first layer, ``(N, 3, H, W)`` float32."""
        mean, std = (torch.tensor(one, device=pixels.device)[:, None, None] for one in (self.mean, self.std))
        return (pixels.float() * self.scale - mean) / std


def read_preprocessing(source: str, content: Mapping[str, Any], side: int) -> Preprocessing:
    """Read the settings of a CLIP or SigLIP image processor.

    Args:
        source: The checkpoint, for messages.
        content: ``preprocessor_config.json``; what it leaves out is what its class has by default.
        side: Side of the pictures that the vision tower takes.

    Raises:
        ValueError: The pictures would not have that side.
    """
    clip = "CLIP" in str(content.get("image_processor_type", content.get("feature_extractor_type", "CLIP")))
    size = content.get("size", {"shortest_edge": side} if clip else {"height": side, "width": side})
    if isinstance(size, int):
        size = {"shortest_edge": size} if clip else {"height": size, "width": size}
    crop = content.get("crop_size", {"height": side, "width": side})
    crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
    mean = (0.48145466, 0.4578275, 0.40821073) if clip else (0.5, 0.5, 0.5)
    std = (0.26862954, 0.26130258, 0.27577711) if clip else (0.5, 0.5, 0.5)
    found = Preprocessing(
        height=size.get("shortest_edge", size.get("height", side)),
        width=0 if "shortest_edge" in size else size.get("width", side),
        crop=(crop["height"], crop["width"]) if content.get("do_center_crop", clip) else None,
        resample=content.get("resample", Image.Resampling.BICUBIC),
        scale=content.get("rescale_factor", 1 / 255),
        mean=tuple(content.get("image_mean", mean)),
        std=tuple(content.get("image_std", std)),
    )
    result = found.crop if found.crop is not None else (found.height, found.width)
    if result != (side, side):
        got = f"{result[0]} x {result[1]}"
        fail(source, f"preprocessing to {side} x {side} pixels", got, "the checkpoint's two files do not fit together")
    return found
