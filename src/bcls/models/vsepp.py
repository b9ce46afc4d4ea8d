"""VSE++: a linear layer over image features or a backbone, a GRU over words, cosine similarity."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import bcls.models.base as base
from bcls._core.errors import fail
from bcls.data.vocabulary import Vocabulary
from bcls.models.config import VseppConfig
from bcls.models.layers import Padded, WordReader, unit, xavier_linear


class VseppModel(base.RetrievalModel):
    r"""Visual-semantic embedding: unit vectors for images and captions.

    .. math::
        v = \mathrm{unit}(W f + b), \qquad t = \mathrm{unit}(\mathrm{GRU}(w_1 .. w_n)_n), \qquad s = v \cdot t

    f are precomputed features, the mean over regions (or, with ``pooling="max"``, the maximum of
    :math:`W f_r + b` over regions r), or the unit vector of a backbone's mean feature over the image.

    Args:
        config: Sizes and options.
        vocabulary: Encodes strings; without one, ``config.words`` must be set.

    Raises:
        ValueError: ``config`` and ``vocabulary`` differ, or the backbone does not exist.

    Reference: Faghri et al., VSE++: Improving Visual-Semantic Embeddings with Hard Negatives, BMVC 2018.
    """

    config: VseppConfig
    groups: ClassVar = {"all": "", "backbone": "backbone."}

    def __init__(self, config: VseppConfig, vocabulary: Vocabulary | None = None) -> None:
        super().__init__()
        words = base.vocabulary_size(config.words, vocabulary)
        self.vocabulary = vocabulary
        self.backbone: Any = None
        features = config.features
        if config.backbone is not None:
            from bcls.features.backbones import load_backbone

            backbone = load_backbone(config.backbone)
            self.backbone = backbone.requires_grad_(config.finetune).train(config.finetune)
            features = int(backbone.channels)
            if backbone.packaged and not config.finetune:
                self.frozen = ("backbone.",)
        self.config = replace(config, words=words, features=features)
        self.fc = xavier_linear(features, config.width)
        self.drop_features = nn.Dropout(config.dropout_features)
        self.reader = WordReader(words, config.word_width, config.width, config.bidirectional, config.dropout_words)

    def prepare_images(self, images: base.ImageInputs) -> Padded:
        """Features, or pixels of images; vectors from :meth:`image_vectors_of` are accepted as well."""
        width = self.config.features
        if self.backbone is None:
            return base.feature_batch(images, width)
        batch = base.as_padded(images)
        if self.frozen_images and isinstance(batch, Padded) and batch.values.ndim == 2:
            return base.feature_batch(batch, width, axes=(2,))
        return base.pixel_batch(images, self.backbone.prepare, self.backbone.side)

    def prepare_texts(self, texts: base.TextInputs) -> Padded:
        """Token ids with lengths."""
        return base.caption_tokens(texts, self.vocabulary, self.reader.embed.num_embeddings)

    def image_codes(self, images: Padded) -> Padded:
        """``(N, D)`` unit vectors."""
        if self.backbone is not None:
            pooled = images.values if images.values.ndim == 2 else self._pooled_grid(images.values)
            return Padded(unit(self.fc(self.drop_features(unit(pooled)))))
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
        """Whether :meth:`image_vectors_of` can replace the backbone in training."""
        return self.backbone is not None and not self.config.finetune

    def image_vectors_of(self, images: base.ImageInputs) -> Padded:
        """Features of a frozen backbone as input of :meth:`image_codes`: computed once, used in every epoch.

        Returns:
            ``(N, d)`` float32 on the CPU, the means over the backbone's grid.

        Raises:
            ValueError: There is no backbone, or it is trained.
        """
        if not self.frozen_images:
            fail("images", "a frozen backbone", "none", "features of a trained backbone change with every step")
        vectors = self._encode(self.prepare_images, lambda batch: self._pooled_grid(batch.values), images)
        return Padded(vectors.cpu())

    def _pooled_grid(self, pixels: Tensor) -> Tensor:
        """``(N, d)`` float32: the mean over the backbone's grid of each image."""
        with torch.set_grad_enabled(self.config.finetune and torch.is_grad_enabled()):
            grid: Tensor = self.backbone(pixels)
        return grid.float().mean((2, 3))

    def text_codes(self, texts: Padded) -> Padded:
        """``(C, D)`` unit vectors."""
        return Padded(unit(self.reader.last(texts)))

    def train(self, mode: bool = True) -> "VseppModel":
        """Set the mode; a frozen backbone stays in eval mode, so that its batch norms do not change."""
        super().train(mode)
        if self.frozen_images:
            self.backbone.eval()
        return self
