"""A small dataset with features, and small models, that the training tests share."""

import json
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from bcls.models.base import RetrievalModel
from bcls.models.layers import Padded, pad
from bcls.training.config import TrainConfig

WIDTH = 6
WORDS = ("a", "dog", "cat", "boat", "red", "blue", "runs", "sleeps", "on", "grass", "water", "small", "big", "man")


def captions_of(images=24, each=3, seed=0, splits=("train", "train", "train", "val")):
    draw = np.random.default_rng(seed)
    return [
        {
            "image_id": f"i{image}",
            "caption_id": f"i{image}#{turn}",
            "text": " ".join(draw.choice(WORDS[1:], draw.integers(2, 7))),
            "split": splits[image % len(splits)],
        }
        for image in range(images)
        for turn in range(each)
    ]


def make_data(folder, images=24, each=3, regions=0, rows=None):
    """A dataset folder with features named ``made``, vectors or regions, and no images."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = captions_of(images, each) if rows is None else rows
    (folder / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    draw = np.random.default_rng(1)
    files = {}
    for split in dict.fromkeys(row["split"] for row in rows):
        count = len({row["image_id"] for row in rows if row["split"] == split})
        shape = (count, regions, WIDTH) if regions else (count, WIDTH)
        np.save(folder / f"{split}.npy", draw.standard_normal(shape).astype(np.float32))
        files[split] = {"path": f"{split}.npy"}
    manifest = {"format": "bcls-dataset", "version": 1, "name": "made", "features": {"made": files}}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


@dataclass(frozen=True)
class TinyConfig:
    name: str = "tiny"
    width: int = 8
    dropout: float = 0.0


class TinyModel(RetrievalModel):
    """A linear layer for images and the mean of word vectors for captions, both onto the unit sphere."""

    def __init__(self, width=8, dropout=0.0):
        super().__init__()
        self.config = TinyConfig(width=width, dropout=dropout)
        self.image = nn.Linear(WIDTH, width)
        self.words = nn.Embedding(len(WORDS) + 1, width)
        self.dropout = nn.Dropout(dropout)

    def prepare_images(self, images):
        return images if isinstance(images, Padded) else Padded(torch.as_tensor(images))

    def prepare_texts(self, texts):
        if isinstance(texts, Padded):
            return texts
        return pad([torch.tensor([1 + WORDS.index(word) for word in text.split()]) for text in texts])

    def image_codes(self, images):
        values = images.values if images.values.ndim == 2 else images.values.mean(1)
        return Padded(functional.normalize(self.image(self.dropout(values)), dim=1))

    def text_codes(self, texts):
        words = self.dropout(self.words(texts.values)) * texts.mask[:, :, None]
        return Padded(functional.normalize(words.sum(1) / texts.lengths[:, None], dim=1))

    def scores(self, images, texts):
        return images.values @ texts.values.T


class WordModel(TinyModel):
    """Scores from words and regions, with weights that are used after the codes have been gathered."""

    def __init__(self, width=8):
        super().__init__(width)
        self.mix = nn.Linear(width, 1)

    def image_codes(self, images):
        return Padded(functional.normalize(self.image(images.values), dim=2))

    def text_codes(self, texts):
        return Padded(functional.normalize(self.words(texts.values), dim=2), texts.lengths)

    def scores(self, images, texts):
        best = torch.einsum("nrd,cwd->ncrw", images.values, texts.values).amax(2)
        weights = torch.sigmoid(self.mix(texts.values))[:, :, 0] * texts.mask
        return (best * weights).sum(2) / weights.sum(1)

    def similarity(self, images, texts):
        with torch.inference_mode():
            return self.scores(self.image_codes(images), self.text_codes(self.prepare_texts(texts)))


def settings(data, out, **changes):
    """Settings of a short run on the CPU, without labels."""
    plain = {
        "data": str(data),
        "out": str(out),
        "features": "made",
        "labels": "none",
        "loss": {"name": "triplet-sn"},
        "epochs": 2,
        "batch": 8,
        "lr": 1e-2,
        "drops": [1],
        "device": "cpu",
        "log_every": 3,
        "save_every": 4,
    }
    return TrainConfig(**{**plain, **changes})


def add_views(folder, views, *, counts=False, marked=True):
    """Give every image of a dataset of :func:`tests.training.factories.make_data` random views behind its own row.

    Args:
        folder: The dataset.
        views: Rows of an image, its own included.
        counts: Regions are padded, differently in each row.
        marked: Whether the manifest says that the rows are views; else they are passed over.
    """
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    draw = np.random.default_rng(7)
    for split, file in manifest["features"]["made"].items():
        whole = np.load(folder / file["path"])
        rows = draw.standard_normal((len(whole), views, *whole.shape[1:])).astype(np.float32)
        rows[:, 0] = whole
        file |= {"path": f"{split}-views.npy", "every": views}
        np.save(folder / file["path"], rows.reshape(-1, *whole.shape[1:]))
        if marked:
            file["views"] = views
        if counts:
            file["counts"] = f"{split}-counts.npy"
            np.save(folder / file["counts"], draw.integers(1, whole.shape[1] + 1, len(whole) * views))
    path.write_text(json.dumps(manifest))
    return folder
