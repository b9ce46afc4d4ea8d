"""A CLIP model with 30,000 weights, and synthetic scenes: the other examples train it instead of a real checkpoint.

``tiny_clip(folder, texts)`` writes a folder with weights, tokenizer and image processor, as ``save_pretrained`` does.
Use ``"openai/clip-vit-base-patch32"``, or a folder of your own, instead.
"""

import json
import re
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

from bcls.data.synthetic import SceneDataset, make_scenes, render

SIDE = 32


def scenes(count: int) -> tuple[SceneDataset, list]:
    """Synthetic scenes with five captions each, and their PIL images."""
    data = make_scenes(count, seed=0)
    return data, [render(scene, size=SIDE) for scene in data.scenes]


def tokenizer(folder: Path, texts: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer with the words of ``texts`` as vocabulary, saved to ``folder``."""
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())})
    numbers = {word: number for number, word in enumerate(["<pad>", "<unk>", "<s>", "</s>", *words])}
    inner = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))  # noqa: S106 - not a password
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<s>", numbers["<s>"]), ("</s>", numbers["</s>"])]
    inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    saved = PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=32, **special)
    saved.save_pretrained(folder)
    return saved


def tiny_clip(folder: str | Path, texts: list[str], seed: int = 0) -> str:
    """Save a CLIP model with random weights for the words of ``texts``; returns the folder."""
    folder = Path(folder)
    words = tokenizer(folder, texts)
    common = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = common | {"vocab_size": len(words), "max_position_embeddings": 32}
    text |= {"bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id}
    vision = common | {"image_size": SIDE, "patch_size": 8}
    torch.manual_seed(seed)
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)).save_pretrained(folder)
    size = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    processor = {"image_processor_type": "CLIPImageProcessor", **size}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return str(folder)
