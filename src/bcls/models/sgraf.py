"""Self-attention over regions and over words: one vector for a whole image and for a whole caption.

The two heads of SGRAF as modules: they hold the layers, :mod:`bcls.models.scoring` does the work.

SGR and SAF: regions, words, and a score from their cross-attention.

SGRAF: the mean of an SGR and a SAF.
"""

from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from bcls._core.errors import fail
from bcls.data.vocabulary import Vocabulary
from bcls.models.all_pairs import BlockScores, all_pairs
from bcls.models.base import ENCODE_BATCH, ImageInputs, RetrievalModel, TextInputs, feature_batch, judging, parts
from bcls.models.config import DETECTOR_REGIONS, SafConfig, SgrafConfig, SgrConfig
from bcls.models.cross_attention import (
    FiltrationWeights,
    ImageSide,
    NodeWeights,
    ReasoningWeights,
    Step,
    filtered_scores,
    image_side,
    masked_batch_norm,
    reasoned_scores,
    reasoning_step,
    running,
)
from bcls.models.padded import Padded, joined, trimmed
from bcls.models.scoring import unit, wide
from bcls.models.text import WordReader, caption_numbers, word_count
from bcls.models.vsepp import xavier_linear


class SelfAttention(nn.Module):
    r"""One vector from several, weighted by how they agree with their mean.

    .. math::
        \bar x = \mathrm{mean}_r x_r, \quad
        a = \mathrm{softmax}_r(w \cdot (g(x_r) \odot h(\bar x)) + b), \quad
        \mathrm{unit}(\textstyle\sum_r a_r x_r)

    with g and h one layer each: linear, tanh, dropout, and for images a batch norm before the tanh.

    Args:
        width: D.
        dropout: Share dropped in training.
        regions: For images: their number of regions. The authors' batch norm of g has one mean and variance for each
            of 36 regions; with any other number it has one for each of the D channels. ``None`` for captions, which
            have no batch norm.
    """

    def __init__(self, width: int, dropout: float, regions: int | None = None) -> None:
        super().__init__()
        self.local = xavier_linear(width, width)
        self.whole = xavier_linear(width, width)
        self.common = xavier_linear(width, 1)
        self.dropout = nn.Dropout(dropout)
        self.per_region = regions == DETECTOR_REGIONS
        self.local_norm: nn.BatchNorm1d | None = None
        self.whole_norm: nn.BatchNorm1d | None = None
        if regions is not None:
            self.local_norm = nn.BatchNorm1d(DETECTOR_REGIONS if self.per_region else width)
            self.whole_norm = nn.BatchNorm1d(width)

    def forward(self, items: Padded) -> Tensor:
        """``(N, D)`` unit vectors from ``(N, L, D)``."""
        values, mask = items.values, items.mask
        mean = (values * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        local, whole = self.local(values), self.whole(mean)
        if self.local_norm is not None and self.whole_norm is not None:
            some = None if items.lengths is None else mask
            local = masked_batch_norm(local, some, self.local_norm, axis=1 if self.per_region else 2)
            # One image has no variance to divide by; the running one is all there is.
            whole = masked_batch_norm(whole[:, None], None, self.whole_norm, axis=2)[:, 0]
        agreed = self.dropout(local.tanh()) * self.dropout(whole.tanh())[:, None]
        logits = self.common(agreed)[..., 0].to(wide(values.dtype)).masked_fill(~mask, -torch.inf)
        return unit((logits.softmax(1).to(values.dtype)[:, None] @ values)[:, 0])


class Head(nn.Module):
    """What both heads share: the layers of the similarity vectors, and the last one.

    Attributes:
        block: What scores a block; may be replaced by its compiled form, as in
            ``head.block = torch.compile(head.block, dynamic=True)``.
    """

    block: BlockScores

    def __init__(self, config: SafConfig) -> None:
        super().__init__()
        self.local = xavier_linear(config.width, config.similarity_width)
        self.whole = xavier_linear(config.width, config.similarity_width)
        self.score = xavier_linear(config.similarity_width, 1)
        self.smooth = config.smooth

    def _nodes(self) -> NodeWeights:
        return NodeWeights(self.local.weight, self.local.bias, self.whole.weight, self.whole.bias, self.smooth)


class ReasoningStep(nn.Module):
    """Query, key and output layer of one step of graph reasoning."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = xavier_linear(width, width)
        self.key = xavier_linear(width, width)
        self.out = xavier_linear(width, width)

    def forward(self) -> Step:
        """The layers as :func:`bcls.models.scoring.reasoned_scores` takes them."""
        return reasoning_step(self.query, self.key, self.out)


class ReasoningHead(Head):
    """Similarity graph reasoning, see :func:`bcls.models.scoring.reasoned_scores`."""

    def __init__(self, config: SgrConfig) -> None:
        super().__init__(config)
        self.steps = nn.ModuleList(ReasoningStep(config.similarity_width) for _ in range(config.steps))
        self.block = reasoned_scores

    def forward(self, images: ImageSide, captions: Padded, vectors: Tensor) -> Tensor:
        """``(N, C)`` scores of N images with C captions, given as words with lengths and as ``(C, D)`` vectors."""
        steps = tuple(step() for step in self.steps)
        weights = ReasoningWeights(self._nodes(), steps, self.score.weight, self.score.bias)
        return all_pairs(self.block, images, captions, vectors, weights)[0]


class FiltrationHead(Head):
    """Similarity attention filtration, see :func:`bcls.models.scoring.filtered_scores`.

    In training, mean and variance of the batch norm are those of one caption with all images, and the running ones are
    updated once for each caption, in the batch's order: the same numbers as the authors' loop over captions gives.
    """

    def __init__(self, config: SafConfig) -> None:
        super().__init__(config)
        self.filter = xavier_linear(config.similarity_width, 1)
        self.norm = nn.BatchNorm1d(1)
        self.block = filtered_scores

    def forward(self, images: ImageSide, captions: Padded, vectors: Tensor) -> Tensor:
        """``(N, C)`` scores of N images with C captions, given as words with lengths and as ``(C, D)`` vectors."""
        norm = self.norm
        moments = (None, None) if self.training else (norm.running_mean, norm.running_var)
        weights = FiltrationWeights(
            self._nodes(),
            self.filter.weight,
            self.filter.bias,
            norm.weight,
            norm.bias,
            *moments,
            norm.eps,
            self.score.weight,
            self.score.bias,
        )
        scores, *own = all_pairs(self.block, images, captions, vectors, weights, whole_images=self.training)
        if own:
            self._remember(own[0][0], own[1][0])
        return scores

    @torch.no_grad()
    def _remember(self, means: Tensor, variances: Tensor) -> None:
        for buffer, values in ((self.norm.running_mean, means), (self.norm.running_var, variances)):
            if buffer is not None:
                buffer.copy_(running(buffer, values.to(buffer.dtype), self.norm.momentum or 0.1))
        if self.norm.num_batches_tracked is not None:
            self.norm.num_batches_tracked.add_(len(means))


def head_of(config: SafConfig) -> ReasoningHead | FiltrationHead:
    """The head that a config is for."""
    return ReasoningHead(config) if isinstance(config, SgrConfig) else FiltrationHead(config)


class CrossModel(RetrievalModel):
    r"""Similarity graph reasoning (``sgr``) or similarity attention filtration (``saf``).

    Codes are unit regions and unit words. A pair's similarity vectors compare the whole image with the whole caption,
    and each word with the mixture of regions that it attends to (:func:`similarity_nodes`); the head
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


class SgrafModel(RetrievalModel):
    """An SGR and a SAF, each with its own encoders; a pair's score is the mean of their scores.

    Codes are those of the SGR and of the SAF side by side along the last axis, ``(N, R, 2 D)``, so they pad and gather
    like any others. The vectors of :meth:`encode_images` and :meth:`encode_texts` are side by side too, divided by
    the square root of 2: their dot products are the means of the two models' cosines.

    The two can be trained as one, or apart and put together with :meth:`of`, as the authors do.

    Args:
        config: Sizes, the same for both.
        vocabulary: What encodes strings; without one, ``config.words`` must be given.

    Raises:
        ValueError: ``config`` and ``vocabulary`` differ.
    """

    config: SgrafConfig

    def __init__(self, config: SgrafConfig, vocabulary: Vocabulary | None = None) -> None:
        super().__init__()
        plain = {key: value for key, value in asdict(config).items() if key != "name"}
        self.sgr = CrossModel(SgrConfig(**plain), vocabulary)
        plain.pop("steps")
        self.saf = CrossModel(SafConfig(**plain), vocabulary)
        self.config = replace(config, words=self.sgr.config.words)
        self.vocabulary = vocabulary

    @classmethod
    def of(cls, sgr: CrossModel, saf: CrossModel) -> "SgrafModel":
        """Put two trained models together; their weights are copied.

        Raises:
            ValueError: They are not an SGR and a SAF, or differ in a size or in their vocabulary.
        """
        if not isinstance(sgr.config, SgrConfig) or isinstance(saf.config, SgrConfig):
            fail(
                "sgr",
                "an SGR, and a SAF as `saf`",
                f"{sgr.config.name} and {saf.config.name}",
                "give them in this order",
            )
        for key, value in asdict(saf.config).items():
            if key != "name" and getattr(sgr.config, key) != value:
                fail(
                    "saf", f"`{key}` {getattr(sgr.config, key)}, as `sgr`", value, "put models of equal sizes together"
                )
        if sgr.vocabulary != saf.vocabulary:
            fail("saf", "the vocabulary of `sgr`", "another one", "give both models the same")
        plain = {key: value for key, value in asdict(sgr.config).items() if key != "name"}
        model = cls(SgrafConfig(**plain), sgr.vocabulary)
        model.sgr.load_trained_state(sgr.trained_state())
        model.saf.load_trained_state(saf.trained_state())
        return model.train(sgr.training)

    def prepare_images(self, images: ImageInputs) -> Padded:
        """Regions as they are, checked."""
        return self.sgr.prepare_images(images)

    def prepare_texts(self, texts: TextInputs) -> Padded:
        """Token numbers with lengths."""
        return self.sgr.prepare_texts(texts)

    def image_codes(self, images: Padded) -> Padded:
        """``(N, R, 2 D)`` regions."""
        return _beside(self.sgr.image_codes(images), self.saf.image_codes(images))

    def text_codes(self, texts: Padded) -> Padded:
        """``(C, W, 2 D)`` words."""
        return _beside(self.sgr.text_codes(texts), self.saf.text_codes(texts))

    def image_vectors(self, codes: Padded) -> Tensor:
        """``(N, 2 D)`` unit vectors."""
        first, second = _apart(codes)
        return unit(torch.cat([self.sgr.image_vectors(first), self.saf.image_vectors(second)], 1))

    def text_vectors(self, codes: Padded) -> Tensor:
        """``(C, 2 D)`` unit vectors."""
        first, second = _apart(codes)
        return unit(torch.cat([self.sgr.text_vectors(first), self.saf.text_vectors(second)], 1))

    def scores(self, images: Padded, texts: Padded) -> Tensor:
        """The mean of both models' scores, ``(N, C)``."""
        first, second = zip(_apart(images), _apart(texts), strict=True)
        return (self.sgr.scores(*first) + self.saf.scores(*second)) / 2

    def similarity(self, images: ImageInputs, texts: TextInputs) -> Tensor:
        """Score every image against every caption, ``(N, C)`` float32 on the CPU, without gradient."""
        return (self.sgr.similarity(images, texts) + self.saf.similarity(images, texts)) / 2


def _beside(first: Padded, second: Padded) -> Padded:
    return Padded(torch.cat([first.values, second.values], -1), first.lengths)


def _apart(codes: Padded) -> tuple[Padded, Padded]:
    first, second = codes.values.chunk(2, -1)
    return Padded(first, codes.lengths), Padded(second, codes.lengths)
