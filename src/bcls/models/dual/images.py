"""Image encoders: a backbone that sees pixels, and none for features that were made before."""

from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from bcls._checks import fail
from bcls._padded import Padded
from bcls.backbones.base import Backbone
from bcls.backbones.views import zoomed
from bcls.models.pictures import pixel_batch


class PixelImages(nn.Module):
    """A backbone; gives the cells of its grid, ``(N, h * w, d)``: of several crops their mean, cell by cell.

    Args:
        backbone: See :func:`bcls.backbones.load_backbone`.
        view: ``"whole"``, or one of the views that :func:`bcls.backbones.views.zoomed` makes of the whole picture.
    """

    def __init__(self, backbone: Backbone, view: str = "whole") -> None:
        super().__init__()
        self.backbone, self.view = backbone, view
        self.width, self.packaged = backbone.channels, backbone.packaged

    def prepare(self, images: Any) -> Padded:
        """Pictures as the backbone wants them, ``(N, 3, S, S)`` uint8."""
        return pixel_batch(images, self.backbone.prepare, self.backbone.side)

    def forward(self, images: Padded) -> Padded:
        """See the class."""
        if self.view == "whole":
            grid = self.backbone(images.values)
        else:
            # One after the other: an exported network takes any number of pictures, and memory stays that of one crop.
            crops = zoomed(images.values, self.view).unbind(1)
            grid = torch.stack([self.backbone(crop) for crop in crops]).mean(0)
        return Padded(grid.flatten(2).transpose(1, 2))


class FeatureImages(nn.Module):
    """No encoder: images come as features, vectors ``(N, d)`` or regions ``(N, R, d)``, which pass by it.

    Args:
        width: Their width, d.
    """

    packaged = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def prepare(self, images: Any) -> NoReturn:
        """Refuse what is no features."""
        values = images.values if isinstance(images, Padded) else images
        got = f"a tensor {tuple(values.shape)}" if isinstance(values, Tensor | np.ndarray) else "pictures"
        remedy = "make features first, or name a backbone as `image` in the config"
        fail("images", f"features (N, {self.width}) or (N, R, {self.width})", got, remedy)

    forward = prepare


def values_of(items: Any) -> Tensor | None:
    """The numbers of inputs that are numbers already: arrays, tensors, with lengths or without; ``None`` for others."""
    if isinstance(items, tuple) and len(items) == 2 and isinstance(items[0], Tensor):
        return items[0]
    values = items.values if isinstance(items, Padded) else items
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return torch.from_numpy(np.ascontiguousarray(values))
    return values if isinstance(values, Tensor) else None
