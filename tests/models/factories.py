"""Factories of small models, inputs and transformers checkpoints for the tests of models."""

import json

import numpy as np
import torch
from PIL import Image

from bcls.data.vocabulary import Vocabulary
from bcls.models import build
from bcls.models.layers import Padded

VOCABULARY = Vocabulary.build(["a dog runs on the beach .", "two people eat lunch in a park ."], threshold=1)
CAPTIONS = ["a dog runs", "two people eat lunch in a park .", "the beach"]

#: The smallest sizes at which every part still does something.
SMALL = {"features": 5, "width": 6, "word_width": 4}
CROSS = {**SMALL, "similarity_width": 3, "dropout": 0.0}


def model(name, *, seed=0, vocabulary=VOCABULARY, **settings):
    torch.manual_seed(seed)
    built = build({"name": name, **(SMALL if name == "vsepp" else CROSS), **settings}, vocabulary=vocabulary)
    for parameter in built.parameters():
        if parameter.ndim < 2:
            torch.nn.init.normal_(parameter, std=0.3)  # biases that start at zero would hide a mistake
    for buffer_name, buffer in built.named_buffers():
        if buffer_name.endswith("running_mean"):
            buffer.normal_(std=0.2)
        elif buffer_name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    return built


def regions(count=4, number=36, *, width=5, seed=1, lengths=None):
    values = torch.randn(count, number, width, generator=torch.Generator().manual_seed(seed))
    return Padded(values, None if lengths is None else torch.tensor(lengths))


def codes(count, longest, lengths, *, width=6, seed=2, dtype=torch.float64):
    """Unit rows that need a gradient, zero behind the lengths."""
    values = torch.randn(count, longest, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    lengths = torch.tensor(lengths)
    values = torch.nn.functional.normalize(values, dim=-1) * (torch.arange(longest) < lengths[:, None])[..., None]
    return Padded(values.requires_grad_(), lengths)


WORDS = ["a", "dog", "runs", "on", "the", "beach", "two", "people", "eat", "lunch", "red", "car"]
TEXTS = ["a dog runs", "two people eat lunch on the beach", "a red car", ""]


def tokenizer(folder, *, start, end, pad, unknown="[UNK]"):
    """A tokenizer of whole words, with marks at both ends, saved to a folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    marks = list(dict.fromkeys((pad, start, end, unknown)))
    numbers = {word: number for number, word in enumerate([*marks, *WORDS])}
    inner = Tokenizer(models.WordLevel(numbers, unk_token=unknown))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", special_tokens=[(start, numbers[start]), (end, numbers[end])]
    )
    saved = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=pad, unk_token=unknown, bos_token=start, eos_token=end, model_max_length=20
    )
    saved.save_pretrained(folder)
    return numbers


def clip(folder, seed=0):
    """A CLIP of 32 x 32 pixels; the folder."""
    from transformers import CLIPConfig, CLIPModel

    numbers = tokenizer(folder, start="<s>", end="</s>", pad="</s>")
    common = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**common, "vocab_size": len(numbers), "max_position_embeddings": 12, "bos_token_id": numbers["<s>"]}
    text |= {"eos_token_id": numbers["</s>"], "pad_token_id": numbers["</s>"]}
    vision = {**common, "image_size": 32, "patch_size": 8}
    torch.manual_seed(seed)
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=10)).save_pretrained(folder)
    content = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "crop_size": 32}
    (folder / "preprocessor_config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def siglip(folder, seed=0):
    """A SigLIP of 32 x 32 pixels; the folder."""
    from transformers import SiglipConfig, SiglipModel

    numbers = tokenizer(folder, start="<s>", end="</s>", pad="<pad>")
    common = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**common, "vocab_size": len(numbers), "max_position_embeddings": 12, "projection_size": 16}
    vision = {**common, "image_size": 32, "patch_size": 8}
    torch.manual_seed(seed)
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
    with torch.no_grad():
        model.logit_scale.fill_(2.0)
        model.logit_bias.fill_(-3.0)
    model.save_pretrained(folder)
    content = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def bert(folder, seed=0, width=16):
    """A BERT of two layers; the folder."""
    from transformers import BertConfig, BertModel

    numbers = tokenizer(folder, start="[CLS]", end="[SEP]", pad="[PAD]")
    common = {
        "hidden_size": width,
        "intermediate_size": 3 * width // 2,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    torch.manual_seed(seed)
    BertModel(BertConfig(vocab_size=len(numbers), max_position_embeddings=20, **common)).save_pretrained(folder)
    return folder


def vit(folder, seed=0):
    """A ViT of 32 x 32 pixels, width 16; the folder."""
    from transformers import ViTConfig, ViTModel

    common = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(seed)
    ViTModel(ViTConfig(image_size=32, patch_size=8, **common)).save_pretrained(folder)
    return folder


def image(width=50, height=40, seed=0):
    """An image of random pixels."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)
