"""A model small enough to train on two cores in seconds: a convolutional image tower and a linear text tower."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from bcls._core.errors import check_whole, fail
from bcls.labels.encoders import TextEncoder, load_text_encoder
from bcls.models.base import ImageInputs, RetrievalModel, TextInputs, pixel_batch
from bcls.models.padded import Padded

#: Length of MiniLM's vectors.
TEXT_WIDTH = 384
#: Cells along each side of the grid that the image tower ends in: where things are matters to captions.
_GRID = 4


@dataclass(frozen=True)
class ScenesConfig:
    """What :class:`ScenesModel` is made from."""

    name: str = "scenes"
    """The model's name."""
    side: int = 64
    """Side of the square pictures that it sees, in pixels; others are resized."""
    channels: int = 16
    """Channels of the first convolution; the second has twice, the third four times as many."""
    width: int = 128
    """Width of the vectors of both sides."""

    def __post_init__(self) -> None:
        for name, least in (("side", 8 * _GRID), ("channels", 1), ("width", 1)):
            check_whole(name, getattr(self, name), least=least)


class Reader:
    """Captions as vectors of MiniLM, which stays as it is.

    Args:
        known: Vectors of captions that need not be read again.
    """

    def __init__(self, known: Mapping[str, Tensor] | None = None) -> None:
        self._known = known or {}

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """``(C, 384)`` float32 unit rows, in the order of ``texts``."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        read = dict(zip(new, torch.from_numpy(_minilm().encode(new)), strict=True)) if new else {}
        rows = [self._known[text] if text in self._known else read[text] for text in texts]
        return torch.stack(rows) if rows else torch.zeros(0, TEXT_WIDTH)


@cache
def _minilm() -> TextEncoder:
    return load_text_encoder("minilm")


class ScenesModel(RetrievalModel):
    r"""Two towers into one space, learned from nothing but MiniLM's vectors of the captions.

    .. math:: v = \mathrm{unit}(W_V \, \mathrm{conv}(V) + b_V), \qquad t = \mathrm{unit}(W_T \, m(T) + b_T),
        \qquad s = v \cdot t

    Args:
        config: Sizes.
        reader: What turns captions into vectors m; models that are trained one after another share one.
    """

    config: ScenesConfig

    def __init__(self, config: ScenesConfig, reader: Reader | None = None) -> None:
        super().__init__()
        self.config = config
        self.read = reader if reader is not None else Reader()
        channels = config.channels
        self.image = nn.Sequential(
            *_stage(3, channels, 5),
            *_stage(channels, 2 * channels, 3),
            *_stage(2 * channels, 4 * channels, 3),
            nn.AdaptiveAvgPool2d(_GRID),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(4 * channels * _GRID**2, config.width),
        )
        self.text = nn.Sequential(nn.Dropout(0.1), nn.Linear(TEXT_WIDTH, config.width))

    def prepare_images(self, images: ImageInputs) -> Padded:
        """Pixels ``(N, 3, S, S)`` from 0 to 255."""
        given = torch.from_numpy(np.array(images)) if isinstance(images, np.ndarray) else images
        return pixel_batch(given, self._pixels, self.config.side)

    def prepare_texts(self, texts: TextInputs) -> Padded:
        """MiniLM's vectors ``(C, 384)``, read now or before.

        Raises:
            ValueError: Neither strings nor such vectors.
        """
        if isinstance(texts, Padded | Tensor):
            vectors = texts.values if isinstance(texts, Padded) else texts
            if vectors.ndim != 2 or vectors.shape[1] != TEXT_WIDTH or not vectors.is_floating_point():
                expected = f"strings, or MiniLM's vectors (C, {TEXT_WIDTH})"
                fail("texts", expected, f"{vectors.dtype} {tuple(vectors.shape)}", "give the captions themselves")
            return Padded(vectors)
        if isinstance(texts, str) or not all(isinstance(one, str) for one in texts):
            fail("texts", "a list of strings", type(texts).__name__, "this model has no token numbers")
        strings: Any = texts
        return Padded(self.read(strings))

    def image_codes(self, images: Padded) -> Padded:
        """``(N, D)`` unit vectors."""
        # Channels last is how convolutions are fastest.
        pixels = images.values.to(torch.float32, memory_format=torch.channels_last)
        return Padded(functional.normalize(self.image(pixels / 127.5 - 1), dim=1))

    def text_codes(self, texts: Padded) -> Padded:
        """``(C, D)`` unit vectors."""
        return Padded(functional.normalize(self.text(texts.values), dim=1))

    def scores(self, images: Padded, texts: Padded) -> Tensor:
        """Cosines, ``(N, C)``."""
        return images.values @ texts.values.T

    def _pixels(self, picture: Image.Image) -> Tensor:
        side = self.config.side
        small = picture.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1)


def _stage(inside: int, outside: int, kernel: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inside, outside, kernel, stride=2, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    ]
