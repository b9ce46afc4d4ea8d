"""A tiny model that sees colors, photos of colored patches, and indexes of them, for the tests of search and web."""

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import normalize

from bcls._core.errors import fail
from bcls.models import build
from bcls.models.base import RetrievalModel
from bcls.models.config import MODELS
from bcls.models.folder import save_folder
from bcls.models.layers import Padded
from bcls.search.build import IndexSettings, build_index

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 200, 40),
    "blue": (30, 50, 220),
    "yellow": (230, 220, 30),
    "black": (10, 10, 10),
    "white": (245, 245, 245),
}


@dataclass(frozen=True)
class ColorConfig:
    regions: bool = False
    """Whether codes are patches, as in models with cross attention."""
    seed: int = 0


class ColorModel(RetrievalModel):
    vocabulary = None

    def __init__(self, config):
        super().__init__()
        self.config = config
        generator = torch.Generator().manual_seed(config.seed)
        turn = torch.linalg.qr(torch.randn(12, 12, generator=generator)).Q
        self.turn = nn.Parameter(turn if config.seed else torch.eye(12))

    def prepare_images(self, images):
        if isinstance(images, Padded):
            return images
        if isinstance(images, torch.Tensor):
            return Padded(images.float())
        if isinstance(images, np.ndarray):
            return Padded(torch.from_numpy(images).float())
        opened = [one if isinstance(one, Image.Image) else Image.open(one) for one in images]
        small = [np.asarray(one.convert("RGB").resize((2, 2), Image.Resampling.BOX)) for one in opened]
        return Padded(torch.from_numpy(np.stack(small).reshape(-1, 4, 3).astype(np.float32)) / 255 - 0.45)

    def prepare_texts(self, texts):
        if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
            fail("texts", "strings", texts, "pass strings")
        return Padded(torch.from_numpy(np.stack([self._colours(text) for text in texts])))

    def _colours(self, text):
        words = text.lower().replace(".", "").split()
        named = [np.array(COLOURS[word], np.float32) / 255 - 0.45 for word in words if word in COLOURS]
        noise = np.random.default_rng(zlib.crc32(text.encode())).normal(0, 0.01, (4, 3)).astype(np.float32)
        if not named:
            return noise
        return np.stack([named[min(place * len(named) // 4, len(named) - 1)] for place in range(4)]) + noise

    def _codes(self, values):
        turned = normalize(values.reshape(len(values), 12) @ self.turn, dim=1)
        return Padded(turned.reshape(-1, 4, 3) if self.config.regions else turned)

    def image_codes(self, images):
        return self._codes(images.values)

    def text_codes(self, texts):
        return self._codes(texts.values)

    def image_vectors(self, codes):
        return codes.values.reshape(len(codes), 12)

    text_vectors = image_vectors

    def scores(self, images, texts):
        if not self.config.regions:
            return images.values @ texts.values.T
        # Best patch for each patch: a different order than by the vectors.
        pairs = torch.einsum("npc,mqc->nmpq", normalize(images.values, dim=2), normalize(texts.values, dim=2))
        return pairs.amax(2).mean(2)

    def similarity(self, images, texts):
        with torch.inference_mode():
            return self.scores(
                self.image_codes(self.prepare_images(images)), self.text_codes(self.prepare_texts(texts))
            )


NAMES = list(COLOURS)


def tiny_model(monkeypatch, folder, **settings):
    """Register the tiny model and save one."""
    monkeypatch.setitem(MODELS, "colors", ("tests.search.factories:ColorConfig", "tests.search.factories:ColorModel"))
    save_folder(build(ColorConfig(**settings)), folder)
    return folder


def photo(path, colours, seed=0, side=32, **options):
    """An image with up to four color patches and a little noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(-6, 7, (side, side, 3))
    half = side // 2
    for place in range(4):
        rows, columns = divmod(place, 2)
        colour = COLOURS[colours[min(place * len(colours) // 4, len(colours) - 1)]]
        pixels[rows * half : (rows + 1) * half, columns * half : (columns + 1) * half] += np.array(colour)
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, **options)
    return path


def photos(folder, count=12):
    """A folder of photos, one or two colours each."""
    for number in range(count):
        first, second = NAMES[number % len(NAMES)], NAMES[(number // len(NAMES)) % len(NAMES)]
        photo(folder / f"{number % 3}" / f"{number:03}-{first}-{second}.png", [first, second], seed=number)
    return folder


def index(source, out, model, **settings):
    return build_index(source, IndexSettings(out=str(out), model=str(model), **settings))


def counts(report):
    """Numbers of photos that a run added, updated, removed and left unchanged."""
    return report.added, report.updated, report.removed, report.unchanged
