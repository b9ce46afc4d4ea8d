"""What the two towers of a model take.

GRUs as the one operator that ONNX has for them.

The two towers of a model as modules of their own, and as ONNX files.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from bcls._core.errors import fail
from bcls._core.extras import require
from bcls.models.base import RetrievalModel
from bcls.models.config import DualConfig, VseppConfig
from bcls.models.padded import Padded

#: Captions for the check where none are given.
TEXTS = (
    "A brown dog runs along the beach.",
    "Two people are eating lunch at a small table outside a restaurant while a child looks at them.",
    "a red car",
    "Snow.",
)


@dataclass(frozen=True)
class TowerInputs:
    """Inputs of both towers: examples to export with, and the check's inputs."""

    images: Padded
    """Pixels ``(N, 3, S, S)`` uint8, vectors ``(N, d)``, or regions ``(N, R, d)`` with lengths."""
    texts: Padded
    """Token numbers ``(C, W)`` with lengths."""

    @property
    def sees_pixels(self) -> bool:
        """Whether images are pixels."""
        return self.images.values.ndim == 4


def tower_inputs(model: RetrievalModel, *, images: Any = None, texts: Any = None, regions: bool = False) -> TowerInputs:
    """Prepare inputs for a model with two towers.

    Args:
        model: The model.
        images: Pictures or features for the check; some are made up where there are none.
        texts: Captions for the check; a few English ones where there are none.
        regions: Whether images are regions; only for models that take features.

    Raises:
        ValueError: The model has no two towers, or takes no regions.
    """
    config = model.config
    if not isinstance(config, DualConfig | VseppConfig):
        got = f"{type(model).__name__}, which compares every word with every region"
        fail("model", "a model with one vector an image and one a caption", got, "export a vsepp or dual model")
    pixels = config.backbone is not None if isinstance(config, VseppConfig) else config.image != "features"
    if pixels and regions:
        fail("regions", "a model that takes features", "one that sees pictures", "leave --regions out")
    if images is None:
        images = _pictures() if pixels else _features(config.features or 0, regions)
    prepared = model.prepare_images(images)
    if prepared.values.ndim == 3 and prepared.lengths is None:
        rows, count = prepared.values.shape[:2]
        prepared = Padded(prepared.values, torch.full((rows,), count))
    readable = getattr(model, "reads_strings", model.vocabulary is not None)
    if texts is None:
        texts = list(TEXTS) if readable else _numbers(int(getattr(config, "words", 0) or 0))
    return TowerInputs(prepared, model.prepare_texts(texts))


def _pictures() -> list[Image.Image]:
    draw = np.random.default_rng(0)
    sizes = ((320, 240), (200, 300), (224, 224))
    coarse = (draw.integers(0, 256, (6, 8, 3), dtype=np.uint8) for _ in sizes)
    return [
        Image.fromarray(one).resize(size, Image.Resampling.BICUBIC) for one, size in zip(coarse, sizes, strict=True)
    ]


def _features(width: int, regions: bool) -> Padded:
    draw = torch.Generator().manual_seed(0)
    if regions:
        return Padded(torch.randn(3, 5, width, generator=draw), torch.tensor([5, 2, 3]))
    return Padded(torch.randn(3, width, generator=draw))


def _numbers(words: int) -> Padded:
    draw = torch.Generator().manual_seed(0)
    return Padded(torch.randint(0, words, (4, 9), generator=draw), torch.tensor([9, 1, 4, 6]))


class OnnxGru(nn.Module):
    """A :class:`torch.nn.GRU` of one layer and direction, batch first, as ONNX's operator ``GRU``.

    The exporter unrolls torch's own layer over the length of the example, so that other lengths would be wrong. This
    one can only be exported, not run: torch does not know the operator.

    Args:
        gru: The layer.

    Raises:
        ValueError: It has more layers or directions.
    """

    def __init__(self, gru: nn.GRU) -> None:
        super().__init__()
        if gru.num_layers != 1 or gru.bidirectional or not gru.batch_first or not gru.bias:
            fail("model", "GRUs of one layer and direction, batch first, with bias", repr(gru), "export another model")
        self.states = gru.hidden_size
        weight, recurrent = gru.get_parameter("weight_ih_l0"), gru.get_parameter("weight_hh_l0")
        bias = (_reordered(gru.get_parameter("bias_ih_l0")), _reordered(gru.get_parameter("bias_hh_l0")))
        self.register_buffer("weight", _reordered(weight)[None])
        self.register_buffer("recurrent", _reordered(recurrent)[None])
        self.register_buffer("bias", torch.cat(bias)[None])

    def forward(self, vectors: Tensor) -> tuple[Tensor, None]:
        """States ``(C, W, D)`` of ``(C, W, d)`` vectors; the last state, torch's second result, is left out."""
        rows, length = vectors.shape[:2]
        states = torch.onnx.ops.symbolic(
            "GRU",
            (vectors.transpose(0, 1), *(self.get_buffer(name) for name in ("weight", "recurrent", "bias"))),
            attrs={"hidden_size": self.states, "linear_before_reset": 1},
            dtype=vectors.dtype,
            shape=(length, 1, rows, self.states),
        )
        return states[:, 0].transpose(0, 1), None


def use_onnx_grus(model: nn.Module) -> None:
    """Put :class:`OnnxGru` in the place of every GRU of a model."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.GRU):
                setattr(module, name, OnnxGru(child))


def _reordered(gates: Tensor) -> Tensor:
    # torch: reset, update, new; ONNX: update, reset, hidden.
    reset, update, new = gates.detach().chunk(3)
    return torch.cat((update, reset, new))


#: ONNX files are limited to 2 GB; the weights of a larger model lie in a file beside it.
_MOST_BYTES = 1_800_000_000


class ImageTower(nn.Module):
    """Images to unit vectors ``(N, D)``."""

    def __init__(self, model: RetrievalModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """See the class."""
        return self.model.image_vectors(self.model.image_codes(Padded(images, lengths)))


class TextTower(nn.Module):
    """Token numbers ``(C, W)`` and lengths ``(C,)`` to unit vectors ``(C, D)``."""

    def __init__(self, model: RetrievalModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, numbers: Tensor, lengths: Tensor) -> Tensor:
        """See the class."""
        return self.model.text_vectors(self.model.text_codes(Padded(numbers, lengths)))


def write_tower(path: Path, model: RetrievalModel, tower: type[nn.Module], inputs: Padded, name: str) -> None:
    """Write a tower as an ONNX file whose number of items, and length where there is one, are free.

    Args:
        path: The file.
        model: The model; a copy of it is exported.
        tower: :class:`ImageTower` or :class:`TextTower`.
        inputs: An example, of two items or more.
        name: Name of the first input; the second is ``lengths``, the output ``vectors``.

    Raises:
        MissingExtraError: The exporter's packages are not installed.
    """
    require("onnxscript", "onnx", "exporting a model to ONNX")
    module = tower(deepcopy(model).cpu().eval().requires_grad_(False)).eval()
    use_onnx_grus(module)
    free = torch.export.Dim.DYNAMIC
    first = {0: free, 1: free} if inputs.lengths is not None else {0: free}
    arguments = (inputs.values,) if inputs.lengths is None else (inputs.values, inputs.lengths)
    size = sum(one.nbytes for one in (*module.parameters(), *module.buffers()))
    with _quiet(), torch.no_grad():
        # In two steps: the exporter by itself would try other ways of tracing, which take longer and fix sizes.
        shapes = (first, {0: free})[: len(arguments)]
        program = torch.export.export(module, arguments, dynamic_shapes=shapes, strict=False)
        torch.onnx.export(
            program,
            (),
            str(path),
            input_names=[name, "lengths"][: len(arguments)],
            output_names=["vectors"],
            verbose=False,
            external_data=size > _MOST_BYTES,
        )


def run_tower(path: Path, inputs: Padded, name: str) -> Tensor:
    """What onnxruntime makes of an exported tower, on the CPU."""
    runtime: Any = require("onnxruntime", "onnx", "checking an exported model")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {name: inputs.values.numpy()}
    if inputs.lengths is not None:
        given["lengths"] = inputs.lengths.numpy()
    return torch.from_numpy(session.run(["vectors"], given)[0])


@contextmanager
def _quiet() -> Iterator[None]:
    # The exporter tells much about itself that a user can do nothing about.
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "torch._guards")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
