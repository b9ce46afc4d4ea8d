"""SGRAF: the mean of an SGR and a SAF."""

from dataclasses import asdict, replace

import torch
from torch import Tensor

from bcls._checks import fail
from bcls._padded import Padded
from bcls.data.vocabulary import Vocabulary
from bcls.models.base import ImageInputs, RetrievalModel, TextInputs
from bcls.models.config import SafConfig, SgrafConfig, SgrConfig
from bcls.models.cross import CrossModel
from bcls.similarity import unit


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
