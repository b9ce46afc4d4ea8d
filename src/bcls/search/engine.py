"""Search filters, query terms, and the interface of vector engines."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail
from bcls.data.text_files import is_unicode

Vectors = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
#: Names of the engines.
ENGINES = ("faiss", "milvus")
#: Terms of a query with operators.
MAX_TERMS = 8
#: Neighbors of a photo that are compared, and photos per search, to find near-duplicates.
_NEIGHBORS, _BLOCK = 16, 256
_DATE_FORMATS = ("%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")


class IndexUnavailableError(ValueError):
    """The index or its vector engine cannot be read now; the query itself is valid."""


@dataclass(frozen=True)
class SearchFilter:
    """Conditions that a result must meet. All of them apply; the default accepts every row.

    Attributes:
        after: Earliest date in seconds since 1970, inclusive.
        before: Latest date in seconds since 1970, exclusive.
        under: Prefix of the name below the photo folder, such as ``"2024/summer/"``.
        words: Words that the captions must contain, all of them, as :func:`words_of` returns them.

    Example:
        >>> SearchFilter(under="2024/", words=("dog",)) == parse_filter(under="2024/", words="Dog")
        True
    """

    after: float | None = None
    before: float | None = None
    under: str = ""
    words: tuple[str, ...] = ()


def parse_filter(after: str = "", before: str = "", under: str = "", words: str = "") -> SearchFilter:
    """Parse a filter from text, as users type it.

    Args:
        after: Earliest date, inclusive: ``2024``, ``2024-05``, ``2024-05-17`` or ``2024-05-17T18:30``, in UTC.
        before: Latest date, exclusive, in the same format.
        under: Prefix of the name.
        words: Words in any order.

    Raises:
        ValueError: A date is invalid, no date lies between the two, ``under`` is not valid Unicode, or ``words``
            contains no word.

    Example:
        >>> parse_filter(after="1970-01-02", words="Dog, beach")
        SearchFilter(after=86400.0, before=None, under='', words=('beach', 'dog'))
    """
    start, end = _seconds("after", after), _seconds("before", before)
    if start is not None and end is not None and start >= end:
        fail("before", f"a date later than {after}", repr(before), "`after` is inclusive, `before` is exclusive")
    if not is_unicode(under):
        fail("under", "a prefix that is valid Unicode text", ascii(under), "names in the index are valid Unicode")
    found = words_of([words])
    if words and not found:
        fail("words", "at least one word of letters or digits", repr(words), "omit it to search all photos")
    return SearchFilter(start, end, under, found)


def parse_query(query: str) -> list[tuple[float, str]]:
    """Terms of a query with their weights.

    The operators ``+`` and ``-`` stand between spaces, or at the beginning; a hyphen inside a word is none. The minus
    sign U+2212 and the en dash are read as ``-``. In a query with an operator, a term may begin with a weight: a number
    with a decimal point. A query without operators is one term.

    Args:
        query: The query on one line.

    Returns:
        Weights, negative after ``-``, and texts.

    Raises:
        ValueError: A term has no words, or there are more than 8 terms.

    Example:
        >>> parse_query("dog + 0.5 beach - person")
        [(1.0, 'dog'), (0.5, 'beach'), (-1.0, 'person')]
        >>> parse_query("a black-and-white photo of 2.5 people")
        [(1.0, 'a black-and-white photo of 2.5 people')]
    """
    every = ["-" if word in {"\N{MINUS SIGN}", "\N{EN DASH}"} else word for word in query.split()]
    if not {"+", "-"}.intersection(every):
        return [(1.0, query)]
    terms: list[tuple[str, list[str]]] = []
    for word in every:
        if word in {"+", "-"}:
            terms.append((word, []))
        elif terms:
            terms[-1][1].append(word)
        else:
            terms.append(("+", [word]))
    if len(terms) > MAX_TERMS:
        fail("text", f"at most {MAX_TERMS} terms", len(terms), "use fewer operators")
    found = []
    for sign, words in terms:
        weight = words.pop(0) if words and re.fullmatch(r"\d{0,3}\.\d{1,6}", words[0]) else "1"
        if not words:
            fail("text", "words between the operators + and -", repr(query[:50]), "for example: dog + beach - person")
        found.append((float(sign + weight), " ".join(words)))
    return found


def words_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Distinct words of some texts: runs of letters and digits, casefolded and sorted; full-width letters become plain.

    Example:
        >>> words_of(["A dog!", "the DOG's ball"])
        ('a', 'ball', 'dog', 's', 'the')
    """
    plain = (unicodedata.normalize("NFKC", text).casefold() for text in texts)
    return tuple(sorted({word[:200] for text in plain for word in re.findall(r"\w+", text)}))


def _seconds(argument: str, text: str) -> float | None:
    if not text:
        return None
    for form in _DATE_FORMATS:
        with suppress(ValueError):
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
    hint = "write year, month, day in this order"
    return fail(argument, "a date such as 2024, 2024-05 or 2024-05-17", repr(text), hint)


class VectorRow(NamedTuple):
    """A vector with its number and the fields that filters use."""

    number: int
    vector: npt.NDArray[Any]
    date: float
    name: str
    words: tuple[str, ...]


class Neighbors(NamedTuple):
    """Nearest rows of each query, best first: ``(Q, k)`` dot products and numbers, padded with -inf and -1."""

    scores: Vectors
    numbers: Numbers


class Engine(Protocol):
    """Stores unit vectors of length D under unique numbers.

    Any number of threads may search at the same time, one may write.
    """

    def add(self, rows: Sequence[VectorRow]) -> None:
        """Add rows, replacing rows with the same numbers; they are on disk when this returns."""

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete rows; unknown numbers are ignored."""

    def search(self, queries: Vectors, k: int, filters: SearchFilter | None = None) -> Neighbors:
        """Find the ``k`` nearest rows of each of ``(Q, D)`` queries among those that pass the filter.

        Rows with equal scores are sorted by number.
        """

    def count(self) -> int:
        """Number of rows."""

    def numbers(self) -> Numbers:
        """Numbers of all rows, sorted."""

    def vectors(self, numbers: Sequence[int]) -> Vectors:
        """``(n, D)`` vectors of the given rows, in that order.

        Raises:
            ValueError: A number is unknown.
        """

    def finish(self) -> None:
        """Optimize for search after many changes; skipping this loses no data."""

    def close(self) -> None:
        """Close files and connections."""


def near_duplicates(photos: Engine, threshold: float) -> list[list[int]]:
    """Numbers of photos, in groups that similarities of at least ``threshold`` connect, the largest group first."""
    numbers = photos.numbers()
    parents = list(range(len(numbers)))  # union-find over positions in `numbers`

    def root(position: int) -> int:
        while parents[position] != position:
            parents[position] = position = parents[parents[position]]
        return position

    for start in range(0, len(numbers), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(numbers)))
        found = photos.search(photos.vectors(numbers[rows].tolist()), _NEIGHBORS)
        row, column = np.nonzero((found.scores >= threshold) & (found.numbers >= 0))
        others = np.searchsorted(numbers, found.numbers[row, column])
        for first, second in zip(rows[row].tolist(), others.tolist(), strict=True):
            parents[root(first)] = root(second)
    groups: dict[int, list[int]] = {}
    for position, number in enumerate(numbers.tolist()):
        groups.setdefault(root(position), []).append(number)
    return sorted((group for group in groups.values() if len(group) > 1), key=len, reverse=True)


def check_queries(queries: Vectors, k: int, dimension: int) -> Vectors:
    """Check that queries are finite rows of the given width; returns them as contiguous float32."""
    rows = np.ascontiguousarray(queries, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[1] != dimension:
        fail("queries", f"shape (Q, {dimension})", rows.shape, "encode them with the model of the index")
    if not np.isfinite(rows).all():
        fail("queries", "finite numbers", "NaN or infinity", "check the output of the model for this query")
    if k < 1:
        fail("k", "a positive integer", k, "request at least one result")
    return rows


def top_k(scores: Vectors, numbers: Numbers, k: int) -> Neighbors:
    """The best ``k`` candidates of each row, ties sorted by number, padded with -inf and -1.

    Example:
        >>> top_k(np.float32([[0.5, 0.9, 0.5]]), np.array([[7, 8, 3]]), 4).numbers
        array([[ 8,  3,  7, -1]])
    """
    scores = np.where(numbers < 0, -np.inf, scores).astype(np.float32)
    order = np.lexsort((numbers, -scores), axis=1)[:, :k]
    shape, count = (len(scores), k), order.shape[1]
    best = Neighbors(np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64))
    best.scores[:, :count] = np.take_along_axis(scores, order, 1)
    best.numbers[:, :count] = np.take_along_axis(numbers, order, 1)
    return best
