"""How a model of the ``transformers`` library wants its pictures: size, colours, filter.

Vision models of the ``transformers`` library: ViT, DINOv2, ConvNeXt, ResNet, the eyes of CLIP and SigLIP.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor, nn

from bcls._core.errors import check_number, check_numbers, fail
from bcls._core.extras import require
from bcls._core.progress import no_bars
from bcls.data.text_files import read_json
from bcls.features.backbones import Backbone, hash_state

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_REMEDY = "copy the model's files again"


@dataclass(frozen=True)
class Processing:
    """Size and colours of a picture, the latter on the scale 0..255."""

    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: Image.Resampling


@dataclass(frozen=True)
class Colours:
    """What becomes of a value from 0 to 255: ``(value * factor - mean) / std``."""

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


def read_processing(path: Path | None, image_size: object) -> Processing:
    """Read ``preprocessor_config.json``.

    Args:
        path: The file, or a ``processor_config.json`` that holds the same one level deeper. Without one, the pictures
            have the side that the model's own config says, 224 where it says none, ImageNet's mean and deviation, and
            the bicubic filter.
        image_size: The side that the model's config says.

    Raises:
        ValueError: The file is damaged, pictures are not to be square, or are normalised in a way that is not known
            here.
    """
    where = str(path or "config.json")
    content = read_json(path) if path else {}
    settings = content.get("image_processor", content) if isinstance(content, dict) else content
    if not isinstance(settings, dict):
        fail(where, "settings by name", type(settings).__name__, _REMEDY)
    wanted = settings.get("size", image_size)
    if settings.get("do_center_crop", "crop_size" in settings):
        wanted = settings.get("crop_size") or wanted
    colours = read_colours(where, settings, _IMAGENET_MEAN, _IMAGENET_STD)
    return Processing(
        square_side(where, 224 if wanted is None else wanted),
        # The library works on pixels times the factor, we on pixels as they are.
        tuple(value / colours.factor for value in colours.mean),
        tuple(value / colours.factor for value in colours.std),
        read_filter(where, settings),
    )


def read_colours(where: str, settings: Mapping[str, Any], mean: Sequence[float], std: Sequence[float]) -> Colours:
    """What a processor does to the values of pixels.

    Args:
        where: The file, for messages.
        settings: The processor's.
        mean: Its mean of red, green and blue where it tells none.
        std: Its deviation where it tells none.

    Raises:
        ValueError: Values are normalised in a way that is not known here, or are no numbers.
    """
    if settings.get("rescale_offset"):
        fail(where, "values scaled by one factor", "rescale_offset", "this kind of model is not supported")
    factor = 1.0
    if settings.get("do_rescale", True):
        factor = check_number(f"{where}: rescale_factor", settings.get("rescale_factor", 1 / 255), _REMEDY, above=0)
    if not settings.get("do_normalize", True):
        return Colours(factor, (0.0,) * 3, (1.0,) * 3)
    mean = check_numbers(f"{where}: image_mean", settings.get("image_mean", mean), _REMEDY, count=3)
    std = check_numbers(f"{where}: image_std", settings.get("image_std", std), _REMEDY, count=3)
    for value in std:
        check_number(f"{where}: image_std", value, _REMEDY, above=0)
    return Colours(factor, tuple(mean), tuple(std))


def read_filter(where: str, settings: Mapping[str, Any]) -> Image.Resampling:
    """The filter that pictures are resized with; bicubic where none is told."""
    number = settings.get("resample", Image.Resampling.BICUBIC)
    try:
        return Image.Resampling(number)
    except ValueError:
        fail(f"{where}: resample", "the number of one of Pillow's filters", repr(number), _REMEDY)


def read_size(where: str, size: object) -> tuple[int, int | None]:
    """Height and width of a size as the library writes it; of ``shortest_edge`` that and ``None``.

    Args:
        where: The setting, for messages.
        size: A number for both, a pair, or a mapping with ``height`` and ``width`` or with ``shortest_edge``.

    Raises:
        ValueError: It is something else.
    """
    short = size.get("shortest_edge") if isinstance(size, Mapping) else None
    if _is_side(short):
        return short, None
    sides: object = size
    if isinstance(size, Mapping):
        sides = size.get("height"), size.get("width")
    elif isinstance(size, int):
        sides = size, size
    if not isinstance(sides, list | tuple) or len(sides) != 2 or not all(map(_is_side, sides)):
        fail(where, "a size in pixels", repr(size), _REMEDY)
    return sides[0], sides[1]


def square_side(where: str, size: object) -> int:
    """The side of a square; see :func:`read_size`."""
    height, width = read_size(where, size)
    if width not in (None, height):
        fail(where, "square pictures of a known side", repr(size), "use a model for square pictures")
    return height


def _is_side(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_FILES = ("preprocessor_config.json", "processor_config.json")


class VisionModel(Backbone):
    """A vision model by folder or hub name; weights are read from safetensors files alone, and no code of theirs runs.

    Convolutional models give their last feature map. Of transformers, the patch tokens of the last layer are laid out
    as a grid; class, distillation and register tokens are left out. Of a model with two towers, such as CLIP, the
    vision tower is used.

    Args:
        source: A folder, as a path, or a name on the hub, as a string.

    Raises:
        ValueError: There is no such model, it is not for square pictures, or its output is no grid.
        MissingExtraError: transformers is not installed.
    """

    def __init__(self, source: str | Path) -> None:
        name = str(source)
        library = require("transformers", "photos", f"the backbone {name!r}")
        options = {"trust_remote_code": False, "local_files_only": isinstance(source, Path)}
        with _quiet(library), _one_line(name):
            config = library.AutoConfig.from_pretrained(name, **options)
            model = library.AutoModel.from_pretrained(
                name, config=config, dtype=torch.float32, use_safetensors=True, **options
            )
            file = _processor_file(library, source)
        model = getattr(model, "vision_model", model)
        config = getattr(config, "vision_config", config)
        processing = read_processing(file, getattr(config, "image_size", None))
        side, patch = processing.side, getattr(config, "patch_size", None)
        super().__init__(
            name, hash_state(model.state_dict()), side, processing.mean, processing.std, processing.resample
        )
        self._cells_a_side = None if patch is None else side // square_side(f"{name}: patch_size", patch)
        self.network: nn.Module = model.to(memory_format=torch.channels_last)
        with _one_line(name):
            self._look()
            self._check_repeatable()
            self._set_unused_aside()

    def cells(self, inputs: Tensor) -> Tensor:
        """See :meth:`Backbone.cells`."""
        output = self.network(pixel_values=inputs)
        state: Tensor = output.last_hidden_state
        return state if state.ndim == 4 else tokens_to_grid(state, self._cells_a_side)

    def _check_repeatable(self) -> None:
        """Refuse models that leave out patches by chance, as masked autoencoders do."""
        pixels = torch.randint(0, 256, (1, 3, self.side, self.side), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            same = all(torch.equal(self(pixels), self(pixels)) for _ in range(2))
        if not same:
            fail("backbone", "one grid for one picture", "another each time", "use the model without its masking")

    def _set_unused_aside(self) -> None:
        """Make buffers of parameters that the grid does not depend on: a pooler, the last norm of CLIP, a mask token.

        They keep their names and values, but are not trained: a parameter without a gradient is an error where several
        processes wait for each other's.
        """
        with torch.enable_grad():
            grid = self(torch.zeros(1, 3, self.side, self.side, dtype=torch.uint8))
        used = _leaves(grid)
        for module in self.network.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if id(parameter) not in used:
                    delattr(module, name)
                    module.register_buffer(name, parameter.detach())


def _leaves(output: Tensor) -> set[int]:
    """Ids of the parameters that a tensor was computed from."""
    found, seen, waiting = set(), set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        waiting.extend(before for before, _ in node.next_functions)
    return found


def tokens_to_grid(tokens: Tensor, cells: int | None) -> Tensor:
    """Lay patch tokens out as a square grid.

    Args:
        tokens: ``(N, L, D)``, patches row by row, after any class, distillation and register tokens.
        cells: Patches along a side. Where it is unknown, or there are fewer tokens because the model has merged them,
            all tokens must make up a square.

    Returns:
        ``(N, D, h, h)``.

    Raises:
        ValueError: The tokens make up no square.

    Example:
        >>> tokens_to_grid(torch.arange(5.0).reshape(1, 5, 1), 2)
        tensor([[[[1., 2.],
                  [3., 4.]]]])
    """
    length = tokens.shape[1]
    side = cells if cells is not None and cells * cells <= length else math.isqrt(length)
    if side * side != length and side != cells:
        fail("backbone", "patch tokens that make up a square grid", f"{length} tokens", "use a model for square grids")
    patches = tokens[:, length - side * side :]
    # The number of pictures by its shape: `len` would fix it when the network is exported.
    return patches.transpose(1, 2).reshape(tokens.shape[0], -1, side, side)


def _processor_file(library: Any, source: str | Path) -> Path | None:
    for file in _FILES:
        if isinstance(source, Path):
            found = str(source / file) if (source / file).is_file() else None
        else:
            found = library.utils.cached_file(source, file, _raise_exceptions_for_missing_entries=False)
        if found is not None:
            return Path(found)
    return None


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Keep the library's bars and notes about unused weights off the terminal."""
    logging = library.utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with no_bars(logging):
            yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Turn what the library raises for a model that it cannot read or run into one line."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError) as error:
        if str(error).startswith("`backbone`"):
            raise
        reason = " ".join(str(error).split())[:300]
        remedy = "name a folder or hub model of transformers for square pictures, with weights as safetensors"
        raise ValueError(f"`backbone`: expected a vision model {name!r}, got {reason}; {remedy}") from error
