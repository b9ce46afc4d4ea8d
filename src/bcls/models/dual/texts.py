"""Text encoders: a GRU over a vocabulary, and transformers."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bcls._checks import fail
from bcls._padded import Padded, pad
from bcls.data.vocabulary import Vocabulary
from bcls.models.batches import trimmed
from bcls.models.dual.source import read_config, read_json_part, read_tokenizer, read_weights, transformers
from bcls.models.words import WordReader, caption_numbers, check_strings

#: Tokens at which captions are cut where an encoder has no limit, and what is no limit but a mark that there is none.
_USUAL_LENGTH, _NO_LENGTH = 512, 1_000_000


class GruText(nn.Module):
    """A GRU over the words of a vocabulary.

    Args:
        reader: Word vectors and the GRU.
        width: Width of a state, d.
        words: Number of words.
        vocabulary: What encodes strings; without one only token numbers are read.
        last: Whether the last state stands for the caption, ``(C, d)``; else all states are given, ``(C, W, d)``.
    """

    packaged = False

    def __init__(self, reader: WordReader, width: int, words: int, vocabulary: Vocabulary | None, last: bool) -> None:
        super().__init__()
        self.reader, self.width, self.words, self.vocabulary, self.last = reader, width, words, vocabulary, last

    def prepare(self, texts: Any) -> Padded:
        """Token numbers of captions, checked."""
        return caption_numbers(texts, self.vocabulary, self.words)

    def forward(self, texts: Padded) -> Padded:
        """See the class."""
        if self.last:
            return Padded(self.reader.last(texts))
        return Padded(self.reader.states(texts), texts.lengths)


class TransformerText(nn.Module):
    """A text model of transformers with its tokenizer; gives the last layer's words, ``(C, W, d)``.

    Args:
        model: The encoder.
        tokenizer: Its tokenizer.
        longest: Tokens at which captions are cut.
        packaged: Whether the weights come from an installed package.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, longest: int, *, packaged: bool) -> None:
        super().__init__()
        self.model, self.tokenizer, self.longest, self.packaged = model, tokenizer, longest, packaged
        config: Any = model.config
        self.width: int = config.hidden_size
        self.words: int = config.vocab_size

    def prepare(self, texts: Any) -> Padded:
        """Token numbers of captions, the special ones included."""
        return tokens(texts, self.tokenizer, self.words, self.longest)

    def forward(self, texts: Padded) -> Padded:
        """See the class."""
        mask = texts.mask
        # What stands behind a caption is hidden from the others, and must only be a number that exists.
        numbers = texts.values.masked_fill(~mask, 0)
        states: Tensor = self.model(input_ids=numbers, attention_mask=mask.long()).last_hidden_state
        return Padded(states, texts.lengths)

    def files(self) -> dict[str, bytes]:
        """What it takes to make the same encoder without weights: config and tokenizer, by file name."""
        about = {"max_seq_length": self.longest}
        found = config_and_tokenizer(self.model.config, self.tokenizer)
        return {**found, "sentence_bert_config.json": json.dumps(about).encode()}


def load_text(source: str | Path, *, packaged: bool = False, weights: bool = True) -> TransformerText:
    """Read a text model.

    Args:
        source: Folder or hub name.
        packaged: Whether it comes from an installed package.
        weights: Read them; without, they are drawn, for a state that is loaded later.

    Raises:
        ValueError: There is no such model, or it reads no text.
    """
    library = transformers()
    config = read_config("text", source)
    if not getattr(config, "vocab_size", None) or not getattr(config, "hidden_size", None):
        fail("text", "a model that reads text", f"{source}, a {config.model_type}", "CLIP has `image: clip`")
    kind = library.AutoModel
    model = read_weights("text", source, kind) if weights else kind.from_config(config)
    if getattr(config, "is_encoder_decoder", False):
        model = model.get_encoder()
    # The layer over the first token is for classifiers; without use it would stand in the way of training.
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    tokenizer = read_tokenizer("text", source)
    told = read_json_part(source, "sentence_bert_config.json").get("max_seq_length")
    limits = (told, tokenizer.model_max_length, getattr(config, "max_position_embeddings", None))
    # Where there is no limit, as in T5, tokenizers say a number that is no length.
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit <= _NO_LENGTH]
    return TransformerText(model.eval(), tokenizer, min(known, default=_USUAL_LENGTH), packaged=packaged)


def tokens(texts: Any, tokenizer: Any, words: int, longest: int) -> Padded:
    """Token numbers of captions, the special ones included, checked; strings are cut where they are too long.

    Args:
        texts: Strings, or token numbers with lengths.
        tokenizer: What encodes strings.
        words: How many tokens there are.
        longest: Tokens that a caption may have.

    Raises:
        ValueError: Something else, or token numbers that the encoder cannot read.
    """
    if is_text(texts):
        return _encode(tokenizer, texts, longest)
    numbers = trimmed(caption_numbers(texts, None, words))
    if numbers.values.shape[1] > longest:
        fail("texts", f"at most {longest} tokens a caption", numbers.values.shape[1], "cut them, or give strings")
    return numbers


def _encode(tokenizer: Any, texts: Sequence[str], longest: int) -> Padded:
    """Token numbers of texts, at least one each, ``(C, W)`` with lengths."""
    if not len(texts):
        return Padded(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    # An empty text can be no tokens at all where a tokenizer adds no marks.
    empty = [tokenizer.pad_token_id or 0]
    numbers = tokenizer([str(one) for one in texts], truncation=True, max_length=longest)["input_ids"]
    return pad([torch.tensor(one or empty, dtype=torch.int64) for one in numbers])


def is_text(texts: Any) -> bool:
    """Whether these are strings; a single string is refused.

    Raises:
        ValueError: It is one string, or a list with something else in it.
    """
    if isinstance(texts, Padded | Tensor) or (
        isinstance(texts, tuple) and any(isinstance(one, Tensor) for one in texts)
    ):
        return False
    check_strings(texts)
    return True


def config_and_tokenizer(config: Any, tokenizer: Any) -> dict[str, bytes]:
    """The files of a config and of a tokenizer, by name."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}
