"""The model of ``bcls demo``, which trains in seconds: a convolutional image tower and a linear text tower."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from bcls._core.errors import check_whole, fail
from bcls.features.image_processing import Resize
from bcls.labels.encoders import load_text_encoder
from bcls.models.base import ImageInputs, RetrievalModel, TextInputs, as_padded, check_strings, pixel_batch
from bcls.models.layers import Padded

#: Dimension of the embeddings of MiniLM.
TEXT_WIDTH = 384
#: Side of the grid that the image tower pools to, so that the positions of objects are kept.
_GRID = 4


@dataclass(frozen=True)
class ScenesConfig:
    """Configuration of :class:`ScenesModel`.

    Attributes:
        name: Name of the model.
        side: Side of the square input images in pixels; other images are resized.
        channels: Channels of the first convolution; the second has twice and the third four times as many.
        width: Dimension of the embeddings.
    """

    name: str = "scenes"
    side: int = 64
    channels: int = 16
    width: int = 128

    def __post_init__(self) -> None:
        for name, least in (("side", 8 * _GRID), ("channels", 1), ("width", 1)):
            check_whole(name, getattr(self, name), least=least)


_load_encoder = cache(load_text_encoder)


def minilm_vectors(texts: Sequence[str]) -> Tensor:
    """``(C, 384)`` float32 unit vectors of texts."""
    return torch.from_numpy(_load_encoder("minilm").encode(texts))


class ScenesModel(RetrievalModel):
    r"""Two towers with a common embedding space; the text tower reads embeddings of MiniLM.

    .. math:: v = \mathrm{unit}(W_V \, \mathrm{conv}(V) + b_V), \qquad t = \mathrm{unit}(W_T \, m(T) + b_T),
        \qquad s = v \cdot t

    Args:
        config: Sizes of the layers.
        embed: Encodes captions as vectors m, ``(C, 384)`` float32 unit rows.
    """

    config: ScenesConfig

    def __init__(self, config: ScenesConfig, embed: Callable[[Sequence[str]], Tensor] = minilm_vectors) -> None:
        super().__init__()
        self.config, self.embed = config, embed
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
        """Return pixels ``(N, 3, S, S)`` from 0 to 255."""
        return pixel_batch(as_padded(images), self._pixels, self.config.side)

    def prepare_texts(self, texts: TextInputs) -> Padded:
        """Return embeddings of MiniLM ``(C, 384)``, given or computed from strings.

        Raises:
            ValueError: The input is neither strings nor such embeddings.
        """
        if isinstance(texts, Padded | Tensor):
            vectors = texts.values if isinstance(texts, Padded) else texts
            if vectors.ndim != 2 or vectors.shape[1] != TEXT_WIDTH or not vectors.is_floating_point():
                expected = f"strings, or embeddings of MiniLM (C, {TEXT_WIDTH})"
                fail("texts", expected, f"{vectors.dtype} {tuple(vectors.shape)}", "pass the captions as strings")
            return Padded(vectors)
        check_strings(texts)
        strings: Any = texts
        return Padded(self.embed(strings))

    def image_codes(self, images: Padded) -> Padded:
        """Return ``(N, D)`` unit vectors."""
        # Convolutions are fastest with channels last.
        pixels = images.values.to(torch.float32, memory_format=torch.channels_last)
        return Padded(functional.normalize(self.image(pixels / 127.5 - 1), dim=1))

    def text_codes(self, texts: Padded) -> Padded:
        """Return ``(C, D)`` unit vectors."""
        return Padded(functional.normalize(self.text(texts.values), dim=1))

    def scores(self, images: Padded, texts: Padded) -> Tensor:
        """Return cosine similarities ``(N, C)``."""
        return images.values @ texts.values.T

    def _pixels(self, image: Image.Image) -> Tensor:
        side = self.config.side
        return torch.from_numpy(Resize(side, side).pixels(image))


def _stage(inside: int, outside: int, kernel: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inside, outside, kernel, stride=2, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    ]
