"""What a transformers checkpoint does to a picture before its first layer, with Pillow alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bcls._checks import fail
from bcls.backbones.processor import read_colours, read_filter, read_size

#: Mean and deviation of red, green and blue where a checkpoint tells none.
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_SIGLIP = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop, scale and shift, as a checkpoint's ``preprocessor_config.json`` says."""

    height: int
    """Of the resized picture; with ``width`` 0, length of its shorter side."""
    width: int
    """Of the resized picture; 0 where the picture keeps its shape."""
    crop: tuple[int, int] | None
    """Height and width of the middle that is kept."""
    resample: Image.Resampling
    """The filter that it is resized with."""
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
        image = image.resize((width, height), resample=self.resample)
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
        ValueError: The pictures would not have that side, or a setting is damaged.
    """
    if not content.get("do_resize", True):
        fail(source, "preprocessing that resizes pictures", "do_resize: false", "this kind of model is not supported")
    clip = "CLIP" in str(content.get("image_processor_type", content.get("feature_extractor_type", "CLIP")))
    size = content.get("size", side)
    height, width = read_size(f"{source}: size", size)
    if clip and isinstance(size, int):  # CLIP's keeps a picture's shape where it is told one number
        width = None
    crop: tuple[int, int] | None = None
    if content.get("do_center_crop", clip):
        middle = read_size(f"{source}: crop_size", content.get("crop_size", side))
        crop = middle[0], middle[0] if middle[1] is None else middle[1]
    colours = read_colours(source, content, *(_CLIP if clip else _SIGLIP))
    found = Preprocessing(
        height=height,
        width=width or 0,
        crop=crop,
        resample=read_filter(source, content),
        scale=colours.factor,
        mean=colours.mean,
        std=colours.std,
    )
    result = found.crop if found.crop is not None else (found.height, found.width)
    if result != (side, side):
        got = f"{result[0]} x {result[1]}"
        fail(source, f"preprocessing to {side} x {side} pixels", got, "the checkpoint's two files do not fit together")
    return found
