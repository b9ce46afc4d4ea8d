"""Train the heads of the photo model on frozen features; used by ``photo_model.py``."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from bcls._core.files import write_whole
from bcls.data.dataset import Dataset
from bcls.evaluation.recall import recalls
from bcls.labels.cache import cached_embeddings
from bcls.losses import from_name
from bcls.models.config import DualConfig
from bcls.models.dual import DualModel
from bcls.models.layers import unit

#: Loss and text encoders of the continuous labels, as in configs/flickr8k/recommended.yaml.
LABELS = "minilm+wordllama"
LOSS = {"triplet-sn.lse": "mean", "kendall.normalize": "active", "weights": [1, 5]}
#: Layers of MiniLM that the heads read: word embeddings and the last one.
LAYERS = (0, 6)
#: Width of a head, epochs, and the norm that the features of each layer are scaled to.
WIDTH, EPOCHS, NORM = 384, 12, 5.27


@dataclass(frozen=True)
class HeadSettings:
    """Settings of one head.

    Attributes:
        seed: Of weights and order.
        batch: Pairs per step.
        lr: Learning rate.
        last: Scale of the text features of the last layer.
        dropout: Of the image features.
        ema: Decay of the moving average of the weights, which is kept; 0 for none.
    """

    seed: int
    batch: int = 128
    lr: float = 2e-3
    last: float = 1.0
    dropout: float = 0.7
    ema: float = 0.0


class Flickr:
    """Features of all photos and captions of Flickr8k, by row.

    Args:
        data: The dataset, five captions an image.
        images: ``(N, d)`` features of the photos.
        texts: ``(C, 768)`` features of the captions, both layers.
    """

    def __init__(self, data: Dataset, images: Tensor, texts: Tensor) -> None:
        self.data, self.images, self.texts = data, images, texts
        self.owner = np.asarray(data.image_of_caption)
        self.captions = np.arange(len(self.owner)).reshape(-1, 5)
        if (self.owner[self.captions] != np.arange(len(images))[:, None]).any():
            raise ValueError("expected five captions for each image, in order")
        row = {one: number for number, one in enumerate(data.image_ids)}
        self.rows = {
            name: np.array([row[one] for one in data.split(name).image_ids]) for name in ("train", "val", "test")
        }
        self.sentences = unit(texts[:, -384:])
        self.label_vectors = unit(torch.from_numpy(np.asarray(cached_embeddings(data, LABELS), np.float32)))

    def captions_of(self, split: str) -> "np.ndarray[Any, Any]":
        """Rows of the captions of a split."""
        return self.captions[self.rows[split]].reshape(-1)

    def rsum(self, images: Tensor, texts: Tensor, split: str = "val") -> dict[str, float]:
        """Recalls of vectors of all photos and captions on a split."""
        rows = self.rows[split]
        scores = (images[rows] @ texts[self.captions_of(split)].T).numpy()
        return recalls(scores, np.repeat(np.arange(len(rows)), 5))


def trained_heads(flickr: Flickr, settings: Sequence[HeadSettings], out: Path) -> list[DualModel]:
    """Train a head for each of the settings, unless it is in ``out`` already."""
    models = []
    for number, one in enumerate(settings):
        path = out / f"head-{number}.safetensors"
        if not path.exists():
            state, rsum = _train(flickr, one)
            write_whole(path, save(state))
            write_whole(path.with_suffix(".json"), json.dumps({**vars(one), "rsum": rsum}) + "\n")
        model = DualModel(
            DualConfig(image="features", features=flickr.images.shape[1], width=WIDTH, text_layers=LAYERS)
        )
        model.load_trained_state(model.trained_state() | load_file(path))
        models.append(model.eval())
    return models


def layer_scales(texts: Tensor, last: float) -> Tensor:
    """Factor of each text feature."""
    norms = texts.view(len(texts), len(LAYERS), -1).norm(dim=2).mean(0)
    return (torch.tensor([1.0, last]) * NORM / norms).repeat_interleave(texts.shape[1] // len(LAYERS))


def _train(flickr: Flickr, settings: HeadSettings) -> tuple[dict[str, Tensor], float]:
    """Train a head; returns the best of the last three epochs, for unscaled features, and its RSUM."""
    torch.manual_seed(settings.seed)
    order = np.random.default_rng(settings.seed)
    scale = layer_scales(flickr.texts, settings.last)
    texts = flickr.texts * scale
    config = DualConfig(
        image="features",
        features=flickr.images.shape[1],
        width=WIDTH,
        text_layers=LAYERS,
        dropout_images=settings.dropout,
    )
    model = DualModel(config)
    heads = nn.ModuleList([model.image.head, model.text.head])
    optimizer = torch.optim.Adam(heads.parameters(), lr=settings.lr)
    loss = from_name("triplet-sn+kendall", **LOSS)
    captions = flickr.captions_of("train")
    steps = len(captions) // settings.batch
    best, kept = -1.0, {}
    average = {name: value.detach().clone() for name, value in heads.named_parameters()}
    for epoch in range(EPOCHS):
        heads.train()
        shuffled = order.permutation(captions)
        for step in range(steps):
            _set_rate(optimizer, settings.lr, epoch * steps + step + 1, steps, EPOCHS * steps)
            chosen = shuffled[step * settings.batch : (step + 1) * settings.batch]
            owners = flickr.owner[chosen]
            similarity = unit(heads[0](flickr.images[owners])) @ unit(heads[1](texts[chosen])).T
            value = loss(similarity, _labels(flickr, chosen, owners), image_ids=torch.from_numpy(owners))
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(heads.parameters(), 2.0)
            optimizer.step()
            done = epoch * steps + step
            decay = min(settings.ema, (1 + done) / (10 + done))
            for name, parameter in heads.named_parameters():
                average[name].lerp_(parameter.detach(), 1 - decay)
        if epoch < EPOCHS - 3:
            continue
        current = {name: value.clone() for name, value in heads.state_dict().items()}
        heads.load_state_dict(current | average)
        heads.eval()
        with torch.no_grad():
            rsum = flickr.rsum(unit(heads[0](flickr.images)), unit(heads[1](texts)))["rsum"]
        if rsum > best:
            best, kept = rsum, {name: value.clone() for name, value in model.trained_state().items()}
        heads.load_state_dict(current)
    for name in ("text.head.linear.weight", "text.head.mlp.0.weight"):
        kept[name] = kept[name] * scale
    return kept, best


def _labels(flickr: Flickr, captions: "np.ndarray[Any, Any]", owners: "np.ndarray[Any, Any]") -> Tensor:
    """Largest cosine of a caption with the captions of an image; 1 for its own."""
    references = flickr.label_vectors[flickr.captions[owners].reshape(-1)]
    labels = (references @ flickr.label_vectors[captions].T).view(len(owners), 5, -1).amax(1)
    labels[torch.from_numpy(owners[:, None] == owners[None])] = 1.0
    return labels.clamp(-1, 1)


def _set_rate(optimizer: torch.optim.Optimizer, rate: float, step: int, warmup: int, total: int) -> None:
    """Linear warm-up over the first epoch, then a cosine."""
    share = step / warmup if step < warmup else 0.5 * (1 + np.cos(np.pi * (step - warmup) / (total - warmup)))
    for group in optimizer.param_groups:
        group["lr"] = rate * share
