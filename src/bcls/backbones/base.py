"""What every backbone is: pixels in, a grid of features out."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from PIL import Image
from torch import Tensor, nn

from bcls._checks import fail
from bcls.backbones.views import View, crops

#: Pictures that a processor looks at together.
_FEW = 8


class Backbone(nn.Module, ABC):
    """A pretrained network that sees pictures; made by :func:`bcls.backbones.load_backbone`, in eval mode.

    The global vector of a picture is the mean over its grid, ``grid.mean((2, 3))``. For convolutional networks that is
    their own pooled feature; for transformers it is the mean of the patch tokens, not the class token, so that the
    vector and the regions of one picture lie in one space.

    Args:
        name: What :func:`bcls.backbones.load_backbone` was asked for.
        weights: Hash of the weights.
        side: Side of the square pictures that it sees, in pixels.
        mean: Mean of the three colours, on the scale 0..255.
        std: What they are divided by after the mean is taken off, on the same scale.
        resample: Filter that pictures are resized with.
        packaged: Whether the weights lie in an installed package.

    Attributes:
        channels: Width D of a grid cell.
        grid: Height and width of the grid, in cells.
    """

    channels: int
    grid: tuple[int, int]

    def __init__(
        self,
        name: str,
        weights: str,
        side: int,
        mean: Sequence[float],
        std: Sequence[float],
        resample: Image.Resampling = Image.Resampling.BICUBIC,
        packaged: bool = False,
    ) -> None:
        super().__init__()
        self.name, self.weights, self.side = name, weights, side
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        self.resample, self.packaged = Image.Resampling(resample), packaged
        # One multiplication and one addition a pixel. They belong to the architecture, so checkpoints leave them out.
        scale = 1 / torch.tensor(self.std)
        self.register_buffer("_scale", scale[:, None, None], persistent=False)
        self.register_buffer("_shift", (-torch.tensor(self.mean) * scale)[:, None, None], persistent=False)

    @abstractmethod
    def cells(self, inputs: Tensor) -> Tensor:
        """Normalised pixels ``(N, 3, side, side)`` to a grid ``(N, D, h, w)``."""

    def prepare(self, image: Image.Image) -> Tensor:
        """The whole picture, stretched to the square: ``(3, side, side)`` uint8 on the CPU."""
        return self.views(image, "whole")[0]

    def views(self, image: Image.Image, view: View) -> Tensor:
        """One crop or more of a picture, ``(V, 3, side, side)``, uint8 or float32; see :func:`bcls.backbones.crops`."""
        return crops(image, self.side, view, self.resample)

    def forward(self, pixels: Tensor) -> Tensor:
        """The grid of each picture.

        Args:
            pixels: ``(N, 3, side, side)``, uint8 or floats on the same scale 0..255, on the module's device.

        Returns:
            ``(N, D, h, w)``, in the precision of the weights.

        Raises:
            ValueError: ``pixels`` have another shape.
        """
        if pixels.ndim != 4 or pixels.shape[1:] != (3, self.side, self.side):
            expected = f"shape (N, 3, {self.side}, {self.side}), as `prepare` makes it"
            fail("pixels", expected, tuple(pixels.shape), "stack prepared pictures")
        scale, shift = self.get_buffer("_scale"), self.get_buffer("_shift")
        # Channels last is how convolutions are fastest, on processors and on GPUs.
        inputs = pixels.to(scale.dtype, memory_format=torch.channels_last)
        whole = inputs.device.type != "cpu" or torch.is_grad_enabled()
        # An exported network takes any number of pictures, so while it is traced their number must not be looked at.
        if whole or torch.compiler.is_compiling() or len(inputs) <= _FEW:
            return self.cells(inputs * scale + shift)
        # On a processor few pictures at a time are faster: their layers fit into memory that is at hand.
        return torch.cat([self.cells(part * scale + shift) for part in torch.split(inputs, _FEW)])

    def _look(self) -> None:
        """See one black picture, to learn the size of the grid."""
        self.eval()
        with torch.inference_mode():
            grid = self(torch.zeros(1, 3, self.side, self.side, dtype=torch.uint8))
        self.channels, self.grid = grid.shape[1], (grid.shape[2], grid.shape[3])


def hash_state(state: Mapping[str, Tensor]) -> str:
    """The sha256 of named tensors, whatever file they came from, in hexadecimal.

    Example:
        >>> hash_state({"a": torch.zeros(2)}) == hash_state({"a": torch.zeros(3)})
        False
    """
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
