"""Captions as token numbers, and the GRU that reads them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bcls._core.errors import fail
from bcls.data.vocabulary import Vocabulary
from bcls.models.padded import Padded

#: Half the width of the uniform distribution that word vectors start from, as in VSE++ and SCAN.
_WORD_SPREAD = 0.1


def caption_numbers(texts: Any, vocabulary: Vocabulary | None, words: int) -> Padded:
    """Token numbers of captions, checked.

    Args:
        texts: Strings, ``(token numbers (C, W), lengths (C,))``, or that as :class:`Padded`.
        vocabulary: What encodes strings; without one they are refused.
        words: How many words there are.

    Raises:
        ValueError: A string without a vocabulary, a number that is no word, an empty caption, or a wrong length.
    """
    if isinstance(texts, tuple) and len(texts) == 2 and isinstance(texts[0], Tensor):
        texts = Padded(*texts)
    if not isinstance(texts, Padded):
        check_strings(texts)
        if vocabulary is None:
            fail(
                "texts",
                "token numbers with lengths",
                "strings",
                "build the model with its `vocabulary` to read strings",
            )
        if not len(texts):
            return Padded(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        return Padded(*(torch.from_numpy(part) for part in vocabulary.encode_all(list(texts))))
    values, lengths = texts.values, texts.lengths
    shape = tuple(lengths.shape) if isinstance(lengths, Tensor) else lengths
    if values.ndim != 2 or values.is_floating_point() or lengths is None or shape != values.shape[:1]:
        got = f"{values.dtype} {tuple(values.shape)} with lengths {shape}"
        fail("texts", "whole numbers (C, W) with lengths (C,)", got, "see `Vocabulary.encode_all`")
    if len(values) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= values.shape[1]:
        wrong = int(lengths.min()) if int(lengths.min()) < 1 else int(lengths.max())
        fail("texts", f"lengths from 1 to {values.shape[1]}", wrong, "a caption has at least one word")
    if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < words:
        wrong = int(values.min()) if int(values.min()) < 0 else int(values.max())
        fail("texts", f"token numbers from 0 to {words - 1}", wrong, "encode with the vocabulary of this model")
    return Padded(values.long(), lengths.long())


def check_strings(texts: Any) -> None:
    """Refuse what is no collection of strings, also a single string.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(texts, str) or not isinstance(texts, Iterable) or not all(isinstance(one, str) for one in texts):
        fail("texts", "a list of strings, or (token numbers, lengths)", type(texts).__name__, "put one string in []")


def word_count(words: int | None, vocabulary: object) -> int:
    """How many words a model has, from its config and its vocabulary, which must agree.

    Raises:
        ValueError: Neither says it, they differ, or the vocabulary is something else.
    """
    if vocabulary is None:
        return words if words is not None else fail("words", "a number", None, "give it, or a `vocabulary`")
    if not isinstance(vocabulary, Vocabulary):
        got = type(vocabulary).__name__
        fail("vocabulary", "a bcls.data.Vocabulary", got, "make one with `Vocabulary.build(captions)`")
    if words is not None and words != len(vocabulary):
        fail("words", f"{len(vocabulary)}, the size of `vocabulary`", words, "use the vocabulary of this model")
    return len(vocabulary)


class WordReader(nn.Module):
    """Word vectors and a GRU of one layer over them, in one direction or both.

    Captions may come in any order. Nothing is packed: a state never depends on what comes after it, so the padding
    behind a caption changes none of its states, and the GRU that reads backwards gets each caption turned round within
    its own length. So lengths may stay on the GPU, and the reader can be exported.

    Args:
        words: Number of words.
        word_width: Width of a word's vector.
        width: Width of a state.
        bidirectional: Read backwards as well.
        dropout: Share of the word vectors' entries that are dropped in training.

    Example:
        >>> reader = WordReader(words=9, word_width=4, width=6, bidirectional=True)
        >>> captions = Padded(torch.tensor([[1, 5, 2], [1, 2, 0]]), torch.tensor([3, 2]))
        >>> reader.last(captions).shape, reader.states(captions).shape
        (torch.Size([2, 6]), torch.Size([2, 3, 6]))
    """

    def __init__(
        self, words: int, word_width: int, width: int, *, bidirectional: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, word_width)
        nn.init.uniform_(self.embed.weight, -_WORD_SPREAD, _WORD_SPREAD)
        self.dropout = nn.Dropout(dropout)
        self.ahead = nn.GRU(word_width, width, batch_first=True)
        self.back = nn.GRU(word_width, width, batch_first=True) if bidirectional else None

    def states(self, captions: Padded) -> Tensor:
        """``(C, W, D)``: a state for each word, the mean of the directions; zero behind a caption's last word."""
        vectors = self.dropout(self.embed(captions.values))
        states = _read(self.ahead, vectors)
        if self.back is not None:
            turned = _turned(captions)
            backwards = _read(self.back, _in_order(vectors, turned))
            states = (states + _in_order(backwards, turned)) / 2
        return states * captions.mask[..., None]

    def last(self, captions: Padded) -> Tensor:
        """``(C, D)``: the state after a whole caption, the mean of both directions' last states."""
        vectors = self.dropout(self.embed(captions.values))
        state = _last(_read(self.ahead, vectors), captions)
        if self.back is None:
            return state
        return (state + _last(_read(self.back, _in_order(vectors, _turned(captions))), captions)) / 2


def _read(gru: nn.GRU, vectors: Tensor) -> Tensor:
    states: Tensor = gru(vectors)[0]
    return states


def _last(states: Tensor, captions: Padded) -> Tensor:
    return states[torch.arange(states.shape[0], device=states.device), _lengths(captions) - 1]


def _lengths(captions: Padded) -> Tensor:
    if captions.lengths is None:
        return torch.full((len(captions),), captions.values.shape[1], device=captions.values.device)
    return captions.lengths


def _turned(captions: Padded) -> Tensor:
    """``(C, W)``: where each place's word stands in the caption read backwards; padding stays where it is."""
    places = torch.arange(captions.values.shape[1], device=captions.values.device)
    backwards = _lengths(captions)[:, None] - 1 - places
    return torch.where(backwards >= 0, backwards, places)


def _in_order(vectors: Tensor, places: Tensor) -> Tensor:
    return vectors.gather(1, places[..., None].expand(-1, -1, vectors.shape[2]))
