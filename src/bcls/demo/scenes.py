"""The demo's data: drawn scenes, MiniLM's vectors of their captions, and both kinds of relevance."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bcls._progress import progress
from bcls.data.synthetic import SceneDataset, make_scenes, render_all, save, true_relevance
from bcls.demo.gallery import TestSplit
from bcls.demo.settings import DemoSettings
from bcls.labels import load_text_encoder, relevance

#: Side of the pictures that the model sees; large enough for a person to tell a cat from a dog.
SIDE = 64
#: Captions of each scene.
CAPTIONS = 5


@dataclass(frozen=True)
class DemoData:
    """Pictures and caption vectors of all splits, in the order train, validation, test."""

    pictures: Tensor  #: (N, 3, S, S) float32 in [-1, 1], channels last in memory
    vectors: Tensor  #: (N, 5, d) float32, unit rows: MiniLM's vectors of each image's captions
    validation: TestSplit
    test: TestSplit
    training: int  #: how many images are for training


def prepare(settings: DemoSettings) -> DemoData:
    """Draw the scenes, read their captions with MiniLM and label every pair of the validation and test splits."""
    scenes = make_scenes(settings.images, seed=0)
    workers = min(2, os.cpu_count() or 1)
    with progress("drawing scenes", settings.images) as step:
        pixels = render_all(scenes.scenes, size=SIDE, workers=workers)
        if settings.save_images:
            names = [
                name for name, size in zip(("train", "val", "test"), settings.sizes, strict=True) for _ in range(size)
            ]
            save(scenes, Path(settings.out) / "scenes", splits=names, size=SIDE, workers=workers)
        step(settings.images)
    encoder = load_text_encoder("minilm")
    with progress("reading captions", len(set(scenes.texts))) as step:
        vectors = encoder.encode(scenes.texts, progress=lambda done, _: step(done))
    train, validate, _ = settings.sizes
    return DemoData(
        pictures=(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous(
            memory_format=torch.channels_last
        ),
        vectors=torch.from_numpy(vectors).view(settings.images, CAPTIONS, -1),
        validation=_split(scenes, pixels, vectors, train, train + validate),
        test=_split(scenes, pixels, vectors, train + validate, settings.images),
        training=train,
    )


def _split(
    scenes: SceneDataset, pixels: npt.NDArray[np.uint8], vectors: npt.NDArray[np.float32], start: int, stop: int
) -> TestSplit:
    captions = slice(start * CAPTIONS, stop * CAPTIONS)
    image_of_caption = scenes.image_of_caption[captions] - start
    return TestSplit(
        pixels=pixels[start:stop],
        texts=scenes.texts[captions],
        image_of_caption=image_of_caption,
        pseudo=relevance(vectors[captions], vectors[captions], image_of_caption, image_of_caption),
        true=true_relevance(scenes.scenes[start:stop], scenes.captions[captions]),
    )
