"""SGR and SAF: regions, words, and a score from their cross-attention."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bcls._checks import fail
from bcls._padded import Padded
from bcls.data.vocabulary import Vocabulary
from bcls.models.base import ENCODE_BATCH, ImageInputs, RetrievalModel, TextInputs, judging, parts
from bcls.models.batches import joined, trimmed
from bcls.models.config import DETECTOR_REGIONS, SafConfig
from bcls.models.heads import head_of
from bcls.models.images import feature_batch
from bcls.models.layers import xavier_linear
from bcls.models.self_attention import SelfAttention
from bcls.models.words import WordReader, caption_numbers, word_count
from bcls.similarity import image_side, unit


class CrossModel(RetrievalModel):
    r"""Similarity graph reasoning (``sgr``) or similarity attention filtration (``saf``).

    Codes are unit regions and unit words. A pair's similarity vectors compare the whole image with the whole caption,
    and each word with the mixture of regions that it attends to (:func:`bcls.similarity.similarity_nodes`); the head
    turns them into a score in (0, 1), which is no cosine.

    :meth:`encode_images` and :meth:`encode_texts` give the vectors of whole images and captions (from self-attention):
    good enough for a first, fast retrieval whose best hits :meth:`similarity` then ranks anew.

    Args:
        config: Sizes and options; its class says which head.
        vocabulary: What encodes strings; without one, ``config.words`` must be given.

    Raises:
        ValueError: ``config`` and ``vocabulary`` differ.

    Reference: Diao et al., Similarity Reasoning and Filtration for Image-Text Matching, AAAI 2021.
    """

    config: SafConfig

    def __init__(self, config: SafConfig, vocabulary: Vocabulary | None = None) -> None:
        super().__init__()
        words = word_count(config.words, vocabulary)
        self.config = replace(config, words=words)
        self.vocabulary = vocabulary
        self.fc = xavier_linear(config.features, config.width)
        self.reader = WordReader(words, config.word_width, config.width, bidirectional=True, dropout=config.dropout)
        self.image_attention = SelfAttention(config.width, config.dropout, config.regions)
        self.text_attention = SelfAttention(config.width, config.dropout)
        self.head = head_of(config)

    def prepare_images(self, images: ImageInputs) -> Padded:
        """Regions as they are, checked."""
        width, regions = self.config.features, self.config.regions
        exact = regions == DETECTOR_REGIONS
        shapes = f"regions (N, {regions if exact else 'R'}, {width})"
        batch = feature_batch(images, width, shapes=shapes, dimensions=(3,))
        if exact and len(batch) and batch.values.shape[1] > regions:
            got = tuple(batch.values.shape)
            fail(
                "images", f"at most {regions} regions", got, "this model has a norm for each region; set `regions` anew"
            )
        return batch

    def prepare_texts(self, texts: TextInputs) -> Padded:
        """Token numbers with lengths."""
        return caption_numbers(texts, self.vocabulary, self.reader.embed.num_embeddings)

    def image_codes(self, images: Padded) -> Padded:
        """``(N, R, D)`` unit regions, zero where there is none."""
        codes = unit(self.fc(images.values))
        return Padded(codes if images.lengths is None else codes * images.mask[..., None], images.lengths)

    def text_codes(self, texts: Padded) -> Padded:
        """``(C, W, D)`` unit words, zero behind a caption's last word."""
        return Padded(unit(self.reader.states(texts)), texts.lengths)

    def image_vectors(self, codes: Padded) -> Tensor:
        """``(N, D)`` unit vectors, by self-attention over regions."""
        vectors: Tensor = self.image_attention(codes)
        return vectors

    def text_vectors(self, codes: Padded) -> Tensor:
        """``(C, D)`` unit vectors, by self-attention over words."""
        vectors: Tensor = self.text_attention(codes)
        return vectors

    def scores(self, images: Padded, texts: Padded) -> Tensor:
        """Scores in (0, 1) of all pairs, ``(N, C)``; in training the images must be all of the batch."""
        side = image_side(images, self.image_vectors(images))
        scores: Tensor = self.head(side, texts, self.text_vectors(texts))
        return scores

    def similarity(self, images: ImageInputs, texts: TextInputs) -> Tensor:
        """Score every image against every caption, ``(N, C)`` float32 on the CPU, without gradient.

        What does not depend on captions is worked out once. Captions are encoded in parts of like length, so that
        a large collection of them is never in memory as words.
        """
        with judging(self):
            codes = joined(
                [self.image_codes(self.prepare_images(part).to(self.device)) for part in parts(images, ENCODE_BATCH)]
            )
            side = image_side(codes, self.image_vectors(codes))
            captions = joined([self.prepare_texts(part) for part in parts(texts, ENCODE_BATCH)])
            return self.all_scores(side, captions)

    def all_scores(self, side: Any, captions: Padded) -> Tensor:
        """Scores of prepared images with captions that are still token numbers; ``(N, C)`` float32 on the CPU."""
        scores = torch.zeros(len(side.regions), len(captions))
        lengths = captions.lengths if captions.lengths is not None else torch.zeros(len(captions))
        order = lengths.argsort(stable=True)
        for start in range(0, len(order), _CAPTIONS):
            rows = order[start : start + _CAPTIONS]
            some = trimmed(captions.take(rows)).to(self.device)
            words = self.text_codes(some)
            scores[:, rows] = self.head(side, words, self.text_vectors(words)).float().cpu()
        return scores


#: Captions that are encoded at a time when a collection is scored.
_CAPTIONS = 512
