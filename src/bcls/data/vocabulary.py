"""Tokenization of captions, and vocabularies in the JSON format of SCAN, SGRAF and related projects.

The tokens follow the conventions of the Penn Treebank, with which the published vocabularies were built: punctuation is
a token of its own, except for commas and colons before a digit and periods inside a word; the period that ends a
sentence is separated, that of an abbreviation is not; opening double quotes become two backticks, closing ones two
apostrophes; ``don't`` becomes ``do n't``, ``dog's`` ``dog 's``, ``cannot`` ``can not``. NLTK's ``word_tokenize`` does
the same. Where its releases differ, this module follows those that built the published vocabularies: two periods are
not separated (``game..``), and neither is the quote of ``'stop``.

All rules apply to a chunk of text between two spaces, and depend only on whether a sentence ends there. The tokens of a
chunk are therefore cached, since captions repeat most of theirs.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_whole, fail
from bcls._core.files import write_whole
from bcls.data.text_files import read_json

_CLOSERS = "[\\])}>\"'»”’]"
#: A chunk of closing brackets and quotes; a double quote after a space is an opening one.
_ONLY_CLOSERS = re.compile(f"(?!\"|''){_CLOSERS}+")
#: A period that may end a sentence, with the closing brackets and quotes after it.
_PERIOD = re.compile(rf"(?<=[^.])\.({_CLOSERS}*) *$")
#: English abbreviations that keep their period; those with periods inside are recognized without a list.
_LISTED = (
    "adm ala ariz aug ave bros calif co col colo conn corp ct dec dr feb fla fri ft ga gen gov ill inc jan jr kan ky "
    "lt ltd maj mass messrs mg minn mr mrs ms nev nov oct okla ore prof rep reps sen sens sept st tenn tex tues va vs "
    "vt wash wed wis"
)
_ABBREVIATIONS = frozenset(_LISTED.split())
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*")
_INNER_PERIOD = re.compile(r"(?:[^\W\d_]+\.)+[^\W\d_]+")


def _compile(*rules: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern, re.IGNORECASE), replacement) for pattern, replacement in rules)


#: Patterns and replacements, in order. Chunks are padded with a space on both sides.
_OPENING = _compile(
    (r"[«“‘„]|`+", r" \g<0> "), (r"(?<=[ (\[{<])(?:\"|'')", " `` "), (r"(?<!\w)'(?!re|ve|ll|[mtsdn])(?=\w)", "' ")
)
_REST = _compile(
    # A comma or colon inside a number stays.
    (r"([:,])(\D)", r" \1 \2"),
    (r"\.\.\.", " ... "),
    (r"[;@#$%&?!*]", r" \g<0> "),
    (r"(?<=[^'])' ", " ' "),
    (r"[\[\](){}<>]|--", r" \g<0> "),
    # Closing quotes.
    (r"[»”’]", r" \g<0> "),
    (r"''|\"", " '' "),
    # Contractions.
    (r"(?<=[^' ])(?:'[smd]|') ", r" \g<0>"),
    (r"(?<=[^' ])(?:'ll|'re|'ve|n't) ", r" \g<0>"),
    (r"\b(can)(not)\b", r" \1 \2 "),
    (r"\b(gim|lem)(me)\b", r" \1 \2 "),
    (r"\b(gon|wan)(na)\b", r" \1 \2 "),
    (r"\b(got)(ta)\b", r" \1 \2 "),
    (r"\b(d)('ye)\b", r" \1 \2 "),
    (r"\b(more)('n)\b", r" \1 \2 "),
    (r"(?<= )('t)(is|was)\b", r" \1 \2 "),
)


def tokenize(text: str) -> list[str]:
    """Split a caption into words and punctuation. The case is kept; vocabularies need ``text.lower()``.

    Args:
        text: The caption.

    Returns:
        The tokens.

    Example:
        >>> tokenize("the dog's ball, it can't bounce.")
        ['the', 'dog', "'s", 'ball', ',', 'it', 'ca', "n't", 'bounce', '.']
        >>> tokenize('a sign says "no dogs". dr. smith reads it.')
        ['a', 'sign', 'says', '``', 'no', 'dogs', "''", '.', 'dr.', 'smith', 'reads', 'it', '.']
    """
    chunks = text.split()
    last = len(chunks) - 1
    while last > 0 and _ONLY_CLOSERS.fullmatch(chunks[last]):
        last -= 1
    tokens: list[str] = []
    for place, chunk in enumerate(chunks):
        tokens += _parts(chunk, place >= last)
    return tokens


@lru_cache(maxsize=1 << 16)
def _parts(chunk: str, is_last: bool) -> tuple[str, ...]:
    padded = f" {chunk} "
    for pattern, replacement in _OPENING:
        padded = pattern.sub(replacement, padded)
    if is_last or _ends_sentence(chunk):
        padded = _PERIOD.sub(r" . \1 ", padded)
    for pattern, replacement in _REST:
        padded = pattern.sub(replacement, padded)
    return tuple(padded.split())


def _ends_sentence(chunk: str) -> bool:
    """Return whether the period at the end of a chunk inside the text ends a sentence and no abbreviation."""
    match = _PERIOD.search(chunk)
    if match is None:
        return False
    word = chunk[: match.start()].lstrip("\"'`([{<").lower()
    # A single letter is an initial, and a period after a number does not end a sentence.
    is_short = (len(word) == 1 and word.isalpha()) or word.rpartition("-")[2] in _ABBREVIATIONS
    return not (is_short or _NUMBER.fullmatch(word) or _INNER_PERIOD.fullmatch(word))


PAD, START, END, UNKNOWN = range(4)
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
_SCHEMA = 'the format is {"word2idx": {"<pad>": 0, ...}, "idx2word": {"0": "<pad>", ...}, "idx": ...}'


@dataclass(frozen=True)
class Vocabulary:
    """The words that a recurrent model knows; the number of a word is its position.

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
            fail("words", "unique words", f"{twice!r} twice", "remove one of them")

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.words)}

    @classmethod
    def build(cls, captions: Iterable[str], *, threshold: int = 4) -> "Vocabulary":
        """Build a vocabulary from captions, with the words in the order of their first appearance.

        Args:
            captions: Texts of the training split. Words of other splits would leak information.
            threshold: Minimum number of occurrences of a word.

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
        """Read a vocabulary file, plain or gzip, such as the published ``f30k_precomp_vocab.json``.

        Raises:
            ValueError: The file has another format, or its numbers have gaps.
        """
        path = Path(path)
        content = read_json(path)
        numbers: Any = content.get("word2idx") if isinstance(content, dict) else None
        if not isinstance(numbers, dict) or not numbers:
            fail(str(path), '"word2idx" with words and numbers', "something else", _SCHEMA)
        words = sorted(numbers, key=lambda word: numbers[word] if isinstance(numbers[word], int) else -1)
        wrong = next((word for number, word in enumerate(words) if numbers[word] != number), None)
        if wrong is not None:
            got = f"{wrong[:60]!r} with {repr(numbers[wrong])[:60]}"
            fail(str(path), "the numbers 0, 1, 2 and so on", got, _SCHEMA)
        if tuple(words[:4]) != SPECIALS:
            fail(str(path), f"{', '.join(SPECIALS)} with the numbers 0 to 3", ", ".join(words[:4])[:200], _SCHEMA)
        return cls(tuple(words))

    def write(self, path: str | Path) -> None:
        """Write the vocabulary in the format of the published ones."""
        content = {
            "word2idx": self.numbers,
            "idx2word": {str(number): word for number, word in enumerate(self.words)},
            "idx": len(self.words),
        }
        write_whole(Path(path), json.dumps(content, ensure_ascii=False))

    def encode(self, caption: str) -> list[int]:
        """Return the numbers of the lower-case words between ``<start>`` and ``<end>``; unknown words as ``<unk>``."""
        numbers = self.numbers
        return [START, *(numbers.get(word, UNKNOWN) for word in tokenize(caption.lower())), END]

    def encode_all(self, captions: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the numbers of several captions, padded with ``<pad>``.

        Returns:
            ``(C, L)`` numbers, where L is the largest length, and ``(C,)`` lengths.
        """
        encoded = [self.encode(caption) for caption in captions]
        lengths = np.array([len(one) for one in encoded], dtype=np.int64)
        numbers = np.full((len(encoded), int(lengths.max(initial=0))), PAD, dtype=np.int64)
        for row, one in enumerate(encoded):
            numbers[row, : len(one)] = one
        return numbers, lengths

    def decode(self, numbers: Iterable[int]) -> str:
        """Return the words of a caption, without ``<pad>``, ``<start>`` and ``<end>``.

        Raises:
            ValueError: A number is not in the vocabulary.
        """
        words = []
        for number in numbers:
            if not 0 <= number < len(self.words):
                expected = f"numbers from 0 to {len(self.words) - 1}"
                fail("numbers", expected, number, "use the vocabulary that encoded them")
            if number not in {PAD, START, END}:
                words.append(self.words[number])
        return " ".join(words)
