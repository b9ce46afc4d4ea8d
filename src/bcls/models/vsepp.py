"""VSE++: a linear layer over image features or a backbone, a GRU over words, cosine."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bcls._padded import Padded
from bcls.data.vocabulary import Vocabulary
from bcls.models.base import ImageInputs, RetrievalModel, TextInputs
from bcls.models.config import VseppConfig
from bcls.models.images import feature_batch
from bcls.models.layers import xavier_linear
from bcls.models.pictures import pixel_batch
from bcls.models.words import WordReader, caption_numbers, word_count
from bcls.similarity import cosine, unit


class VseppModel(RetrievalModel):
    r"""Visual-semantic embedding: unit vectors for images and captions.

    .. math::
        v = \mathrm{unit}(W f + b), \qquad t = \mathrm{unit}(\mathrm{GRU}(w_1 .. w_n)_n), \qquad s = v \cdot t

    f are precomputed features, the mean of regions (or, with ``pooling="max"``, the largest entries of
    :math:`W f_r + b` over regions r), or the unit vector of a backbone's mean feature over the picture.

    Args:
        config: Sizes and options.
        vocabulary: What encodes strings; without one, ``config.words`` must be given.

    Raises:
        ValueError: ``config`` and ``vocabulary`` differ, or there is no such backbone.

    Reference: Faghri et al., VSE++: Improving Visual-Semantic Embeddings with Hard Negatives, BMVC 2018.
    """

    config: VseppConfig

    def __init__(self, config: VseppConfig, vocabulary: Vocabulary | None = None) -> None:
        super().__init__()
        words = word_count(config.words, vocabulary)
        self.vocabulary = vocabulary
        self.backbone = _backbone(config)
        features = config.features if self.backbone is None else int(self.backbone.channels)
        self.config = replace(config, words=words, features=features)
        if self.backbone is not None and self.backbone.packaged and not config.finetune:
            self.frozen = ("backbone.",)
        self.fc = xavier_linear(features, config.width)
        self.drop_features = nn.Dropout(config.dropout_features)
        self.reader = WordReader(
            words,
            config.word_width,
            config.width,
            bidirectional=config.bidirectional,
            dropout=config.dropout_words,
        )

    def prepare_images(self, images: ImageInputs) -> Padded:
        """Features as they are, or pictures as pixels."""
        width = self.config.features
        if self.backbone is not None:
            return pixel_batch(images, self.backbone.prepare, self.backbone.side)
        shapes = f"features (N, {width}) or (N, R, {width})"
        return feature_batch(images, width, shapes=shapes, dimensions=(2, 3))

    def prepare_texts(self, texts: TextInputs) -> Padded:
        """Token numbers with lengths."""
        return caption_numbers(texts, self.vocabulary, self.reader.embed.num_embeddings)

    def image_codes(self, images: Padded) -> Padded:
        """``(N, D)`` unit vectors."""
        if self.backbone is not None:
            with torch.set_grad_enabled(self.config.finetune and torch.is_grad_enabled()):
                maps = self.backbone(images.values)
            return Padded(unit(self.fc(self.drop_features(unit(maps.float().mean((2, 3)))))))
        values = self.drop_features(images.values)
        if values.ndim == 2:
            return Padded(unit(self.fc(values)))
        mask = images.mask[..., None]
        if self.config.pooling == "mean":
            pooled = (values * mask).sum(1) / mask.sum(1)
            return Padded(unit(self.fc(pooled)))
        return Padded(unit(self.fc(values).masked_fill(~mask, -torch.inf).amax(1)))

    def text_codes(self, texts: Padded) -> Padded:
        """``(C, D)`` unit vectors."""
        return Padded(unit(self.reader.last(texts)))

    def scores(self, images: Padded, texts: Padded) -> Tensor:
        """Cosines, ``(N, C)``."""
        return cosine(images.values, texts.values)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``backbone`` where it is trained, and ``all`` the rest."""
        own = {id(one) for one in self.backbone.parameters()} if self.backbone is not None else set()
        groups: dict[str, list[nn.Parameter]] = {"all": [], "backbone": []}
        for one in self.parameters():
            if one.requires_grad:
                groups["backbone" if id(one) in own else "all"].append(one)
        return {name: group for name, group in groups.items() if group}

    def train(self, mode: bool = True) -> "VseppModel":
        """Training mode; a backbone that is not trained stays in eval mode, with its batch norms at rest."""
        super().train(mode)
        if self.backbone is not None and not self.config.finetune:
            self.backbone.eval()
        return self


def _backbone(config: VseppConfig) -> Any:
    if config.backbone is None:
        return None
    from bcls.backbones import load_backbone

    backbone = load_backbone(config.backbone)
    return backbone.requires_grad_(config.finetune).train(config.finetune)
