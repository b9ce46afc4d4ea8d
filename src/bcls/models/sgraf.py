"""SGR, SAF, and SGRAF, the mean of the two: models that compare every word of a caption with every image region."""

import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

import bcls.models.base as base
from bcls._core.errors import fail
from bcls.data.vocabulary import Vocabulary
from bcls.models.config import SafConfig, SgrafConfig, SgrConfig
from bcls.models.cross_attention import FiltrationHead, ReasoningHead, SelfAttention, image_side
from bcls.models.dual_encoders import TransformerText, make_text
from bcls.models.layers import Padded, WordReader, joined, trimmed, unit, xavier_linear

#: Number of captions that are encoded at a time when a collection is scored.
_CAPTION_BATCH = 512


class CrossModel(base.RetrievalModel):
    r"""Similarity graph reasoning (``sgr``) or similarity attention filtration (``saf``).

    Codes are unit regions and unit words. The similarity vectors of a pair compare the whole image with the whole
    caption, and each word with the mixture of regions that it attends to; the head turns them into a score in (0, 1),
    which is not a cosine.

    :meth:`encode_images` and :meth:`encode_texts` return the vectors of whole images and captions (from
    self-attention). They serve a first, fast retrieval whose best results are reranked with :meth:`similarity`.

    Args:
        config: Sizes and options; its class determines the head.
        vocabulary: With a GRU, encodes strings; without one, ``config.words`` must be set.
        folder: Folder with the files of :meth:`files`: the text encoder is then made from these with random weights.

    Raises:
        ValueError: ``config`` and ``vocabulary`` differ.

    Reference: Diao et al., Similarity Reasoning and Filtration for Image-Text Matching, AAAI 2021.
    """

    config: SafConfig
    groups: ClassVar = {"all": "", "text encoder": "reader.encoder."}

    def __init__(self, config: SafConfig, vocabulary: Vocabulary | None = None, folder: Path | None = None) -> None:
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        if config.text == "gru":
            self.config = replace(config, words=base.vocabulary_size(config.words, vocabulary))
        self.dropout = nn.Dropout(config.dropout_features)
        self.fc = xavier_linear(config.features, config.width)
        self.reader = self._make_reader(folder)
        self.image_attention = SelfAttention(config.width, config.dropout, config.regions)
        self.text_attention = SelfAttention(config.width, config.dropout)
        self.head = ReasoningHead(config) if isinstance(config, SgrConfig) else FiltrationHead(config)

    def _make_reader(self, folder: Path | None) -> "WordReader | TokenReader":
        config = self.config
        if config.text != "gru":
            return TokenReader(make_text(config.text, folder), config.width, config.dropout)
        sizes = config.words or 0, config.word_width, config.width
        return WordReader(*sizes, bidirectional=True, dropout=config.dropout)

    def files(self) -> dict[str, bytes]:
        """Config and tokenizer of the text encoder as ``"encoder/..."``; none for a GRU or a packaged encoder."""
        if not isinstance(self.reader, TokenReader) or self.reader.encoder.packaged:
            return {}
        return {f"encoder/{name}": data for name, data in self.reader.encoder.files().items()}

    def prepare_images(self, images: base.ImageInputs) -> Padded:
        """Region features, checked."""
        return base.feature_batch(images, self.config.features, axes=(3,), regions=self.config.regions)

    def prepare_texts(self, texts: base.TextInputs) -> Padded:
        """Token ids with lengths."""
        if isinstance(self.reader, TokenReader):
            return self.reader.encoder.prepare(texts)
        return base.caption_tokens(texts, self.vocabulary, self.reader.embed.num_embeddings)

    def image_codes(self, images: Padded) -> Padded:
        """``(N, R, D)`` unit regions, zero for padding."""
        codes = unit(self.fc(self.dropout(images.values)))
        return Padded(codes if images.lengths is None else codes * images.mask[..., None], images.lengths)

    def text_codes(self, texts: Padded) -> Padded:
        """``(C, W, D)`` unit words, zero after a caption's last word."""
        return replace(texts, values=unit(self.reader.states(texts)))

    def image_vectors(self, codes: Padded) -> Tensor:
        """``(N, D)`` unit vectors, by self-attention over regions."""
        vectors: Tensor = self.image_attention(codes)
        return vectors

    def text_vectors(self, codes: Padded) -> Tensor:
        """``(C, D)`` unit vectors, by self-attention over words."""
        vectors: Tensor = self.text_attention(codes)
        return vectors

    def scores(self, images: Padded, texts: Padded) -> Tensor:
        """Scores in (0, 1) of all pairs, ``(N, C)``; in training the images must be the whole batch."""
        scores: Tensor = self.head(image_side(images, self.image_vectors(images)), texts, self.text_vectors(texts))
        return scores

    def similarity(self, images: base.ImageInputs, texts: base.TextInputs) -> Tensor:
        """Score every image against every caption, ``(N, C)`` float32 on the CPU, without gradient.

        The part that does not depend on captions is computed once. Captions are encoded in batches of similar length,
        so that the words of a large collection are never in memory together.
        """
        with base.eval_mode(self):
            batches = (self.prepare_images(part).to(self.device) for part in base.split_batches(images))
            codes = joined([self.image_codes(batch) for batch in batches])
            side = image_side(codes, self.image_vectors(codes))
            captions = joined([self.prepare_texts(part) for part in base.split_batches(texts)])
            scores = torch.zeros(len(codes), len(captions))
            # The longest first: memory that the allocator keeps from a batch is then enough for the next one.
            order = captions.full_lengths.argsort(descending=True, stable=True)
            for start in range(0, len(order), _CAPTION_BATCH):
                rows = order[start : start + _CAPTION_BATCH]
                words = self.text_codes(trimmed(captions.take(rows)).to(self.device))
                scores[:, rows] = self.head(side, words, self.text_vectors(words)).float().cpu()
            return scores


class TokenReader(nn.Module):
    """The token states of a transformer and a linear layer, in place of :class:`bcls.models.layers.WordReader`.

    The first and last token, ``[CLS]`` and ``[SEP]``, are words, as ``<start>`` and ``<end>`` are for the GRU.

    Args:
        encoder: The transformer.
        width: Width of the states.
        dropout: Dropout on the states of the transformer; inside it has a dropout of its own.
    """

    def __init__(self, encoder: TransformerText, width: int, dropout: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)
        self.fc = xavier_linear(self.encoder.width, width)

    def states(self, captions: Padded) -> Tensor:
        """``(C, W, D)``: one state for each token; zero after a caption's last token."""
        if not len(captions):  # transformers cannot encode an empty batch
            return self.fc.weight.new_zeros(*captions.values.shape, self.fc.out_features)
        states: Tensor = self.fc(self.dropout(self.encoder(captions).values))
        return states * captions.mask[..., None]


class SgrafModel(base.RetrievalModel):
    """An SGR and a SAF model, each with its own encoders; the score of a pair is the mean of their scores.

    Codes are those of the SGR and of the SAF concatenated along the last axis, ``(N, R, 2 D)``. The vectors of
    :meth:`encode_images` and :meth:`encode_texts` are concatenated too and divided by the square root of 2: their dot
    products are the means of the two models' cosines.

    The two can be trained as one, or separately and combined with :meth:`of`, as the authors do.

    Args:
        config: Sizes, the same for both.
        vocabulary: Encodes strings; without one, ``config.words`` must be set.
        folder: As in :class:`CrossModel`.

    Raises:
        ValueError: ``config`` and ``vocabulary`` differ.
    """

    config: SgrafConfig

    def __init__(self, config: SgrafConfig, vocabulary: Vocabulary | None = None, folder: Path | None = None) -> None:
        super().__init__()
        plain = {key: value for key, value in asdict(config).items() if key != "name"}
        self.sgr = CrossModel(SgrConfig(**plain), vocabulary, folder)
        plain.pop("steps")
        self.saf = CrossModel(SafConfig(**plain), vocabulary, folder)
        self.config = replace(config, words=self.sgr.config.words)
        self.vocabulary = vocabulary

    @classmethod
    def of(cls, sgr: CrossModel, saf: CrossModel) -> "SgrafModel":
        """Combine two trained models; their weights are copied.

        Raises:
            ValueError: They are not an SGR and a SAF, or differ in a size or in their vocabulary.
        """
        if not isinstance(sgr.config, SgrConfig) or isinstance(saf.config, SgrConfig):
            got = f"{sgr.config.name} and {saf.config.name}"
            fail("sgr", "an SGR, and a SAF as `saf`", got, "pass them in this order")
        for key, value in asdict(saf.config).items():
            if key != "name" and getattr(sgr.config, key) != value:
                fail("saf", f"`{key}` {getattr(sgr.config, key)}, as `sgr`", value, "combine models of equal sizes")
        if sgr.vocabulary != saf.vocabulary:
            fail("saf", "the vocabulary of `sgr`", "another one", "use the same vocabulary for both models")
        plain = {key: value for key, value in asdict(sgr.config).items() if key != "name"}
        with tempfile.TemporaryDirectory() as folder:  # a text encoder may come from a folder that is gone
            for name, content in sgr.files().items():
                path = Path(folder, name)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
            model = cls(SgrafConfig(**plain), sgr.vocabulary, Path(folder))
        model.sgr.load_trained_state(sgr.trained_state())
        model.saf.load_trained_state(saf.trained_state())
        return model.train(sgr.training)

    def files(self) -> dict[str, bytes]:
        """Config and tokenizer of the text encoders; both models have the same."""
        return self.sgr.files()

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The groups of both models."""
        saf = self.saf.parameter_groups()
        return {group: parameters + saf[group] for group, parameters in self.sgr.parameter_groups().items()}

    def prepare_images(self, images: base.ImageInputs) -> Padded:
        """Region features, checked."""
        return self.sgr.prepare_images(images)

    def prepare_texts(self, texts: base.TextInputs) -> Padded:
        """Token ids with lengths."""
        return self.sgr.prepare_texts(texts)

    def image_codes(self, images: Padded) -> Padded:
        """``(N, R, 2 D)`` regions."""
        return _concatenate(self.sgr.image_codes(images), self.saf.image_codes(images))

    def text_codes(self, texts: Padded) -> Padded:
        """``(C, W, 2 D)`` words."""
        return _concatenate(self.sgr.text_codes(texts), self.saf.text_codes(texts))

    def image_vectors(self, codes: Padded) -> Tensor:
        """``(N, 2 D)`` unit vectors."""
        first, second = _split(codes)
        return unit(torch.cat([self.sgr.image_vectors(first), self.saf.image_vectors(second)], 1))

    def text_vectors(self, codes: Padded) -> Tensor:
        """``(C, 2 D)`` unit vectors."""
        first, second = _split(codes)
        return unit(torch.cat([self.sgr.text_vectors(first), self.saf.text_vectors(second)], 1))

    def scores(self, images: Padded, texts: Padded) -> Tensor:
        """The mean of both models' scores, ``(N, C)``."""
        first, second = zip(_split(images), _split(texts), strict=True)
        return (self.sgr.scores(*first) + self.saf.scores(*second)) / 2

    def similarity(self, images: base.ImageInputs, texts: base.TextInputs) -> Tensor:
        """Score every image against every caption, ``(N, C)`` float32 on the CPU, without gradient."""
        return (self.sgr.similarity(images, texts) + self.saf.similarity(images, texts)) / 2


def _concatenate(first: Padded, second: Padded) -> Padded:
    return replace(first, values=torch.cat([first.values, second.values], -1))


def _split(codes: Padded) -> tuple[Padded, Padded]:
    first, second = codes.values.chunk(2, -1)
    return replace(codes, values=first), replace(codes, values=second)
