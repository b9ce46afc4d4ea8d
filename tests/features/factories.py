"""Small datasets, tiny vision models and helpers for the tests of features."""

import hashlib
import json

import pytest
import torch

from bcls.data.dataset import open_dataset
from bcls.data.synthetic import make_scenes, save
from bcls.features.array_cache import ArrayCache
from bcls.features.extraction import extract

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}


def save_vision_model(folder, kind, processor=None, **changes):
    """Save a model with random weights as on the hub; return the folder and the model."""
    import transformers

    torch.manual_seed(0)
    small = {**SMALL, **changes}
    if kind == "clip":
        text = {**SMALL, "vocab_size": 50, "max_position_embeddings": 8, "projection_dim": 8}
        config = transformers.CLIPConfig(text_config=text, vision_config=small, projection_dim=8)
    elif kind == "siglip":
        text = {**SMALL, "vocab_size": 50, "max_position_embeddings": 8}
        config = transformers.SiglipConfig(text_config=text, vision_config=small)
    elif kind in {"resnet", "convnext"}:
        sizes = {"hidden_sizes": [8, 8, 16, 24], "depths": [1, 1, 1, 1], **changes}
        config = transformers.AutoConfig.for_model(kind, embedding_size=8, **sizes)
    else:
        config = transformers.AutoConfig.for_model(kind, **small)
    model = transformers.AutoModel.from_config(config).eval()
    model.save_pretrained(folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder, model


def square_processor(side, **more):
    """Settings of an image processor for square images."""
    return {"size": {"height": side, "width": side}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3, **more}


def tiny_backbone(folder):
    """A folder with a tiny vision transformer that has a grid of 4 x 4."""
    return str(save_vision_model(folder, "vit", square_processor(32))[0])


def draw_dataset(folder, images=20, splits=None):
    """A dataset folder with drawn scenes."""
    save(make_scenes(images, seed=3), folder, splits=splits or ["train"] * (images - 4) + ["test"] * 4, size=48)
    (folder / "manifest.json").write_text(json.dumps({"format": "bcls-dataset", "version": 1, "mine": "kept"}))
    return folder


def digests(folder):
    """Checksums of the files of an extraction, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != ".lock"
    }


def interrupted_extraction(folder, settings, monkeypatch, after=2):
    """Run an extraction that is interrupted after a few blocks."""
    write = ArrayCache.write

    def limited(self, number, values, zero=()):
        if len(self.done) == after:
            raise KeyboardInterrupt
        write(self, number, values, zero)

    with monkeypatch.context() as patch:
        patch.setattr(ArrayCache, "write", limited)
        with pytest.raises(KeyboardInterrupt):
            extract(open_dataset(folder), settings)
