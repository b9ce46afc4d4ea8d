"""Tiny vision models with random weights, saved as a hub would serve them."""

import json

import torch

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}


def save(folder, kind, processor=None, **changes):
    """Build a model from a config, save it as safetensors, return the folder and the model."""
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


def square(side, **more):
    """A processor config for square pictures."""
    return {"size": {"height": side, "width": side}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3, **more}
