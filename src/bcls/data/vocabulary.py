"""Words and their numbers, in the JSON format that SCAN, SGRAF and their followers share."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._checks import check_whole, fail
from bcls._files import write_whole
from bcls.data.text_files import read_json
from bcls.data.tokens import tokenize

PAD, START, END, UNKNOWN = range(4)
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
_SCHEMA = 'it should look like {"word2idx": {"<pad>": 0, ...}, "idx2word": {"0": "<pad>", ...}, "idx": ...}'


@dataclass(frozen=True)
class Vocabulary:
    """The words that a recurrent model knows; a word's number is its place.

    Attributes:
        words: The words. The first four are ``<pad>``, ``<start>``, ``<end>`` and ``<unk>``.

    Example:
        >>> vocabulary = Vocabulary.build(["A dog runs.", "A dog sleeps."], threshold=2)
        >>> vocabulary.words[4:]
        ('a', 'dog', '.')
        >>> vocabulary.encode("A dog barks.")
        [1, 4, 5, 3, 6, 2]
        >>> vocabulary.decode([1, 4, 5, 3, 6, 2, 0])
        'a dog <unk> .'
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[:4] != SPECIALS:
            fail("words", f"{', '.join(SPECIALS)} first", ", ".join(self.words[:4]), "see `Vocabulary.build`")
        if len(self.numbers) != len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            fail("words", "each word once", f"{twice!r} twice", "take one of them out")

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.words)}

    @classmethod
    def build(cls, captions: Iterable[str], *, threshold: int = 4) -> "Vocabulary":
        """Collect the words of captions, in the order of their first appearance.

        Args:
            captions: Texts of the training split. Words of other splits would tell a model about them.
            threshold: How often a word must appear.

        Raises:
            ValueError: ``threshold`` is below 1.
        """
        check_whole("threshold", threshold, least=1)
        counts: Counter[str] = Counter()
        for caption in captions:
            counts.update(tokenize(caption.lower()))
        words = (word for word, count in counts.items() if count >= threshold and word not in SPECIALS)
        return cls((*SPECIALS, *words))

    @classmethod
    def read(cls, path: str | Path) -> "Vocabulary":
        """Read a vocabulary file, plain or gzip, ours or a published one such as ``f30k_precomp_vocab.json``.

        Raises:
            ValueError: The file has another layout, or its numbers have gaps; the message says what is wrong.
        """
        path = Path(path)
        content = read_json(path)
        numbers: Any = content.get("word2idx") if isinstance(content, dict) else None
        if not isinstance(numbers, dict) or not numbers:
            fail(str(path), '"word2idx" with words and numbers', "something else", _SCHEMA)
        words = sorted(numbers, key=lambda word: numbers[word] if isinstance(numbers[word], int) else -1)
        wrong = next((word for number, word in enumerate(words) if numbers[word] != number), None)
        if wrong is not None:
            fail(
                str(path), "the numbers 0, 1, 2 and so on", f"{wrong[:60]!r} with {repr(numbers[wrong])[:60]}", _SCHEMA
            )
        if tuple(words[:4]) != SPECIALS:
            fail(str(path), f"{', '.join(SPECIALS)} with the numbers 0 to 3", ", ".join(words[:4])[:200], _SCHEMA)
        return cls(tuple(words))

    def write(self, path: str | Path) -> None:
        """Write the vocabulary, in the format that the published ones have."""
        content = {
            "word2idx": self.numbers,
            "idx2word": {str(number): word for number, word in enumerate(self.words)},
            "idx": len(self.words),
        }
        write_whole(Path(path), json.dumps(content, ensure_ascii=False))

    def encode(self, caption: str) -> list[int]:
        """Numbers of a caption's words in lower case, between ``<start>`` and ``<end>``; ``<unk>`` for other words."""
        numbers = self.numbers
        return [START, *(numbers.get(word, UNKNOWN) for word in tokenize(caption.lower())), END]

    def encode_all(self, captions: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Numbers of several captions, filled up with ``<pad>``.

        Returns:
            ``(C, L)`` numbers, where L is the length of the longest, and ``(C,)`` lengths.
        """
        encoded = [self.encode(caption) for caption in captions]
        lengths = np.array([len(one) for one in encoded], dtype=np.int64)
        numbers = np.full((len(encoded), int(lengths.max(initial=0))), PAD, dtype=np.int64)
        for row, one in enumerate(encoded):
            numbers[row, : len(one)] = one
        return numbers, lengths

    def decode(self, numbers: Iterable[int]) -> str:
        """The words of a caption, without ``<pad>``, ``<start>`` and ``<end>``.

        Raises:
            ValueError: A number is not in the vocabulary.
        """
        words = []
        for number in numbers:
            if not 0 <= number < len(self.words):
                fail(
                    "numbers",
                    f"numbers from 0 to {len(self.words) - 1}",
                    number,
                    "use the vocabulary that encoded them",
                )
            if number not in {PAD, START, END}:
                words.append(self.words[number])
        return " ".join(words)

    def unknown_share(self, captions: Iterable[str]) -> float:
        """Share of the captions' tokens that the vocabulary does not know."""
        tokens = [word for caption in captions for word in tokenize(caption.lower())]
        return sum(word not in self.numbers for word in tokens) / len(tokens) if tokens else 0.0
