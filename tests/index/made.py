"""Photos and models for tests of the index and the search."""

import numpy as np
from PIL import Image

from bcls.models import build
from bcls.models.config import MODELS
from bcls.models.folder import save_folder
from bcls.search.build import build_index
from bcls.search.index import IndexSettings
from tests.index.tiny import COLOURS, TinyConfig

NAMES = list(COLOURS)


def tiny_model(monkeypatch, folder, **settings):
    """Register the tiny model and save one."""
    monkeypatch.setitem(MODELS, "tiny", ("tests.index.tiny:TinyConfig", "tests.index.tiny:TinyModel"))
    save_folder(build(TinyConfig(**settings)), folder)
    return folder


def photo(path, colours, seed=0, side=32, **options):
    """A picture with up to four patches of colour and a little noise."""
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
    """Photos that a run added, updated, took out and left alone."""
    return report.added, report.updated, report.removed, report.unchanged
