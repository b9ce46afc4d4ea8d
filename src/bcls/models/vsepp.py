"""The layer that VSE++, SCAN and SGRAF start from.

VSE++: a linear layer over image features or a backbone, a GRU over words, cosine.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bcls._core.errors import fail
from bcls.data.vocabulary import Vocabulary
from bcls.models.base import ImageInputs, RetrievalModel, TextInputs, feature_batch, pixel_batch
from bcls.models.config import VseppConfig
from bcls.models.padded import Padded
from bcls.models.scoring import cosine, unit
from bcls.models.text import WordReader, caption_numbers, word_count


def xavier_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with Xavier's uniform weights and no bias to begin with.

    Example:
        >>> xavier_linear(3, 2).bias.tolist()
        [0.0, 0.0]
    """
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


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
        """Features as they are, or pictures as pixels; what :meth:`image_vectors_of` gave stays as it is."""
        width = self.config.features
        if self.backbone is not None and not (self.frozen_images and _is_vectors(images)):
            return pixel_batch(images, self.backbone.prepare, self.backbone.side)
        if self.backbone is not None:
            return feature_batch(images, width, shapes=f"vectors (N, {width}) of the backbone", dimensions=(2,))
        shapes = f"features (N, {width}) or (N, R, {width})"
        return feature_batch(images, width, shapes=shapes, dimensions=(2, 3))

    def prepare_texts(self, texts: TextInputs) -> Padded:
        """Token numbers with lengths."""
        return caption_numbers(texts, self.vocabulary, self.reader.embed.num_embeddings)

    def image_codes(self, images: Padded) -> Padded:
        """``(N, D)`` unit vectors."""
        if self.backbone is not None:
            seen = images.values if images.values.ndim == 2 else self._seen(images.values)
            return Padded(unit(self.fc(self.drop_features(unit(seen)))))
        values = self.drop_features(images.values)
        if values.ndim == 2:
            return Padded(unit(self.fc(values)))
        mask = images.mask[..., None]
        if self.config.pooling == "mean":
            pooled = (values * mask).sum(1) / mask.sum(1)
            return Padded(unit(self.fc(pooled)))
        return Padded(unit(self.fc(values).masked_fill(~mask, -torch.inf).amax(1)))

    @property
    def frozen_images(self) -> bool:
        """Whether :meth:`image_vectors_of` may stand in for the backbone in training."""
        return self.backbone is not None and not self.config.finetune

    def image_vectors_of(self, images: ImageInputs) -> Padded:
        """What a frozen backbone gives, for :meth:`image_codes`: made once, used in every epoch.

        Returns:
            ``(N, d)`` float32 on the CPU, the means over the backbone's grid.

        Raises:
            ValueError: There is no backbone, or it is trained.
        """
        if not self.frozen_images:
            fail("images", "a frozen backbone", "none", "its vectors would change with every step, or there is none")
        vectors = self._in_batches(self.prepare_images, lambda part: Padded(self._seen(part.values)), _values, images)
        return Padded(vectors.cpu())

    def _seen(self, pixels: Tensor) -> Tensor:
        """``(N, d)`` float32: the mean over the grid of each picture."""
        with torch.set_grad_enabled(self.config.finetune and torch.is_grad_enabled()):
            maps: Tensor = self.backbone(pixels)
        return maps.float().mean((2, 3))

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


def _is_vectors(images: Any) -> bool:
    values = images.values if isinstance(images, Padded) else images
    return isinstance(values, Tensor | np.ndarray) and values.ndim == 2


def _values(codes: Padded) -> Tensor:
    return codes.values


def _backbone(config: VseppConfig) -> Any:
    if config.backbone is None:
        return None
    from bcls.features.backbones import load_backbone

    backbone = load_backbone(config.backbone)
    return backbone.requires_grad_(config.finetune).train(config.finetune)
