"""The two towers of a model as modules of their own, and as ONNX files."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bcls._extras import require
from bcls._padded import Padded
from bcls.export.gru import use_onnx_grus
from bcls.models.base import RetrievalModel

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
