"""The encoders that a config names."""

import copy
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from bcls._weights import minilm_folder
from bcls.backbones import load_backbone
from bcls.data.vocabulary import Vocabulary
from bcls.models.dual.config import DualConfig
from bcls.models.dual.images import FeatureImages, PixelImages
from bcls.models.dual.texts import GruText, load_text
from bcls.models.dual.towers import load_towers
from bcls.models.words import WordReader, word_count


@dataclass(frozen=True)
class Encoders:
    """Both encoders of a model, pretrained where they can be."""

    image: nn.Module
    text: nn.Module
    logit_scale: Tensor | None = None
    logit_bias: Tensor | None = None


def make_encoders(config: DualConfig, vocabulary: Vocabulary | None, folder: Path | None) -> Encoders:
    """Make the encoders.

    Args:
        config: What to make.
        vocabulary: With ``text: gru``.
        folder: Where the files of :meth:`DualModel.files` lie; then their weights are drawn.
    """
    kept = folder / "encoder" if folder is not None and (folder / "encoder").is_dir() else None
    if config.image == "clip":
        towers = load_towers(kept if kept is not None else str(config.model), weights=kept is None)
        return Encoders(towers.image, towers.text, towers.logit_scale, towers.logit_bias)
    image: nn.Module
    if config.image == "features":
        image = FeatureImages(config.features or 0)
    else:
        image = PixelImages(load_backbone(config.image), config.image_view)
    if config.text == "gru":
        words = word_count(config.words, vocabulary)
        reader = WordReader(
            words, config.word_width, config.states, bidirectional=config.bidirectional, dropout=config.dropout_words
        )
        return Encoders(image, GruText(reader, config.states, words, vocabulary, config.text_pooling == "last"))
    if config.text == "minilm":
        return Encoders(image, _minilm(frozen=not config.tune_text))
    return Encoders(image, load_text(kept if kept is not None else config.text, weights=kept is None))


#: A frozen encoder that some model in this process has: copying it is faster than reading it again for each of a sweep.
_IN_USE: WeakValueDictionary[str, nn.Module] = WeakValueDictionary()


def _minilm(*, frozen: bool) -> nn.Module:
    found = _IN_USE.get("minilm") if frozen else None
    if found is not None and all(one.dtype == torch.float32 for one in found.parameters()):
        # A copy, on the CPU as a new one is: the other model may be moved, and this one must not go with it.
        return copy.deepcopy(found).to("cpu")
    made = load_text(minilm_folder(), packaged=True)
    if frozen:
        _IN_USE["minilm"] = made
    return made
