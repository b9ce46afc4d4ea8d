"""The demo's data: drawn scenes as a dataset folder, MiniLM's vectors of their captions, both kinds of relevance."""

import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.nn import functional

from bcls._progress import progress
from bcls.data import Caption, Dataset, ImageRecord, open_dataset
from bcls.data.manifest import FeatureFile
from bcls.data.synthetic import SceneDataset, make_scenes, render_all, true_relevance
from bcls.data.write import Content, write_dataset
from bcls.demo.gallery import JudgedSplit
from bcls.demo.settings import DemoSettings
from bcls.demo.towers import Reader
from bcls.labels import cached_embeddings, relevance

#: Side of the pictures that the model sees; large enough for a person to tell a cat from a dog.
SIDE = 64
#: Name of the pictures as an array, which every run reads in place of files.
PIXELS = "pixels"
#: Text encoder of the labels, and of the captions that the model sees.
ENCODER = "minilm"
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class DemoData:
    """What every run of the demo works with.

    Attributes:
        dataset: Pictures and captions of all splits.
        reader: Knows the vectors of all captions.
        validation: The validation split, with both kinds of relevance.
        test: The same of the test split.
    """

    dataset: Dataset
    reader: Reader
    validation: JudgedSplit
    test: JudgedSplit


def prepare(settings: DemoSettings, folder: Path) -> DemoData:
    """Draw the scenes into a dataset folder, read their captions with MiniLM and label the pairs that are judged.

    Args:
        settings: How many.
        folder: Where to; new or empty.
    """
    scenes = make_scenes(settings.images, seed=0)
    with progress("drawing scenes", settings.images) as step:
        pixels = render_all(scenes.scenes, size=SIDE, workers=min(2, os.cpu_count() or 1))
        step(settings.images)
    write(folder, scenes, pixels, settings.sizes)
    dataset = open_dataset(folder)
    # Kept as float16, so their lengths are a little off 1.
    kept = torch.from_numpy(np.array(cached_embeddings(dataset, ENCODER), dtype=np.float32))
    vectors = functional.normalize(kept, dim=1)
    train, validate, _ = settings.sizes
    return DemoData(
        dataset=dataset,
        reader=Reader(dict(zip(dataset.texts, vectors, strict=True))),
        validation=_split(scenes, pixels, vectors.numpy(), train, train + validate),
        test=_split(scenes, pixels, vectors.numpy(), train + validate, settings.images),
    )


def write(folder: Path, scenes: SceneDataset, pixels: npt.NDArray[np.uint8], sizes: tuple[int, int, int]) -> None:
    """Write scenes as a dataset folder: captions, PNG files in a zip, and the same pictures as features.

    Args:
        folder: Where to; new or empty.
        scenes: Scenes and captions, in the order of the splits.
        pixels: ``(N, S, S, 3)`` pictures of the scenes.
        sizes: Images to train on, to validate and to test.
    """
    splits = np.repeat(SPLITS, sizes).tolist()
    ids = [f"{number:05d}" for number in range(len(splits))]
    images = tuple(ImageRecord(one, split, f"{one}.png") for one, split in zip(ids, splits, strict=True))
    taken = [0] * len(ids)
    captions = []
    for caption in scenes.captions:
        one = ids[caption.image]
        captions.append(Caption(f"{one}-{taken[caption.image]}", one, caption.text, splits[caption.image]))
        taken[caption.image] += 1
    with tempfile.TemporaryDirectory(prefix="bcls-demo-") as beside:
        files = {}
        for split, part in zip(SPLITS, np.split(pixels, np.cumsum(sizes)[:-1]), strict=True):
            files[split] = FeatureFile(str(Path(beside) / f"{split}.npy"))
            np.save(files[split].path, part.transpose(0, 3, 1, 2))
        pictures = zip((f"{one}.png" for one in ids), _png(pixels), strict=True)
        content = Content("scenes", images, tuple(captions), features={PIXELS: files}, pictures=pictures)
        write_dataset(folder, content, copy=True)


def _png(pixels: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    for picture in pixels:
        encoded = io.BytesIO()
        Image.fromarray(picture).save(encoded, format="PNG")
        yield encoded.getvalue()


def _split(
    scenes: SceneDataset, pixels: npt.NDArray[np.uint8], vectors: npt.NDArray[np.float32], start: int, stop: int
) -> JudgedSplit:
    own = (scenes.image_of_caption >= start) & (scenes.image_of_caption < stop)
    chosen = [scenes.captions[place] for place in np.flatnonzero(own)]
    image_of_caption = scenes.image_of_caption[own] - start
    return JudgedSplit(
        pixels=pixels[start:stop],
        texts=[caption.text for caption in chosen],
        image_of_caption=image_of_caption,
        pseudo=relevance(vectors[own], vectors[own], image_of_caption, image_of_caption),
        true=true_relevance(scenes.scenes[start:stop], chosen),
    )
