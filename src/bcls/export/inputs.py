"""What the two towers of a model take."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from bcls._checks import fail
from bcls._padded import Padded
from bcls.models.base import RetrievalModel
from bcls.models.config import VseppConfig
from bcls.models.dual.config import DualConfig

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
