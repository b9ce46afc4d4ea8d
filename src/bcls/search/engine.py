"""What a search is limited to: dates, a part of the folder, words of the captions.

What holds the vectors and finds the nearest: one small interface, two engines behind it.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_choice, fail
from bcls.data.text_files import is_unicode

_FORMATS = ("%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True)
class Where:
    """Limits of a search; all of them hold at once, and the empty one lets everything pass."""

    after: float | None = None
    """Earliest date, in seconds since 1970, included."""
    before: float | None = None
    """Latest date, in seconds since 1970, left out."""
    under: str = ""
    """Beginning of the name below the folder of photos, such as ``"2024/summer/"``."""
    words: tuple[str, ...] = ()
    """Words that the captions must have, all of them, as :func:`words_of` gives them."""

    @property
    def is_open(self) -> bool:
        """Whether everything passes."""
        return self == Where()


def where(after: str = "", before: str = "", under: str = "", words: str = "") -> Where:
    """Read limits as a person writes them.

    Args:
        after: First date, ``2024``, ``2024-05``, ``2024-05-17`` or ``2024-05-17T18:30``; dates are taken as UTC.
        before: First date that is too late, written in the same way.
        under: Beginning of the name.
        words: Words in any order.

    Raises:
        ValueError: A date is not one, the dates leave nothing between them, ``under`` is no text, or there is no word
            in ``words``.

    Example:
        >>> where(after="1970-01-02", words="Dog, beach").words
        ('beach', 'dog')
    """
    start, end = _seconds("after", after), _seconds("before", before)
    if start is not None and end is not None and start >= end:
        fail("before", f"a date later than {after}", repr(before), "the first date counts, the last one does not")
    if not is_unicode(under):
        fail("under", "a beginning of names that is text", ascii(under), "photos in the index have names that are")
    found = words_of([words])
    if words and not found:
        fail("words", "at least one word of letters or digits", repr(words), "leave it out to search all photos")
    return Where(start, end, under, found)


def words_of(texts: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Different words of some texts: letters and digits in small letters, sorted.

    Example:
        >>> words_of(["A dog!", "the DOG's ball"])
        ('a', 'ball', 'dog', 's', 'the')
    """
    return tuple(sorted({word[:200] for text in texts for word in re.findall(r"\w+", text.casefold())}))


def _seconds(argument: str, text: str) -> float | None:
    if not text:
        return None
    for form in _FORMATS:
        with suppress(ValueError):
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
    return fail(
        argument, "a date such as 2024, 2024-05 or 2024-05-17", repr(text), "write year, month, day in that order"
    )


Vectors = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]

ENGINES = ("faiss", "milvus")


class IndexUnavailableError(ValueError):
    """An index, or what holds its vectors, cannot be read now; nothing is wrong with the query."""


class Row(NamedTuple):
    """A vector and what searches are limited by."""

    number: int
    vector: npt.NDArray[Any]
    date: float
    name: str
    words: tuple[str, ...]


class Found(NamedTuple):
    """The nearest of each query, best first: ``(Q, k)`` dot products and numbers; -1 where there are no more."""

    scores: Vectors
    numbers: Numbers


class Engine(Protocol):
    """Holds unit vectors of D numbers, each with a number of its own. Threads may search at once, one may write."""

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows, in place of those with the same numbers; they are on the disk when this returns."""
        ...

    def delete(self, numbers: Sequence[int]) -> None:
        """Take rows out; numbers that are not there are passed over."""
        ...

    def search(self, queries: Vectors, k: int, where: Where | None = None) -> Found:
        """Find the ``k`` nearest rows of each of ``(Q, D)`` queries among those that ``where`` lets pass.

        Equal scores come in the order of their numbers.
        """
        ...

    def count(self) -> int:
        """How many rows there are."""
        ...

    def numbers(self) -> Numbers:
        """Numbers of all rows, sorted."""
        ...

    def vectors(self, numbers: Sequence[int]) -> Vectors:
        """``(n, D)`` vectors of some rows, in the order of ``numbers``.

        Raises:
            ValueError: A number is not there.
        """
        ...

    def finish(self) -> None:
        """Make searches fast after many changes; nothing is lost where this never runs."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def open_engine(
    name: str, place: Path, uri: str, collection: str, dimension: int, *, read_only: bool = False
) -> Engine:
    """Open an engine, or make an empty one.

    Args:
        name: ``"faiss"`` or ``"milvus"``.
        place: Folder for the files of faiss.
        uri: File or address for Milvus.
        collection: Name of the collection in Milvus.
        dimension: D.
        read_only: Search only; it must be there already.

    Raises:
        ValueError: There is no such engine, or it cannot be reached.
        MissingExtraError: Its package is not installed.
    """
    check_choice("engine", name, ENGINES)
    if name == "milvus":
        from bcls.search.milvus_engine import MilvusEngine

        return MilvusEngine(uri, collection, dimension, read_only=read_only)
    from bcls.search.faiss_engine import FaissEngine

    return FaissEngine(place, dimension, read_only=read_only)


def check_queries(queries: Vectors, k: int, dimension: int) -> Vectors:
    """Check that queries are finite rows of the right width, as contiguous float32."""
    rows = np.ascontiguousarray(queries, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[1] != dimension:
        fail("queries", f"shape (Q, {dimension})", rows.shape, "encode them with the model of the index")
    if not np.isfinite(rows).all():
        fail("queries", "finite numbers", "NaN or infinity", "check what the model gives for this query")
    if k < 1:
        fail("k", "a whole number from 1 up", k, "ask for one result or more")
    return rows


def in_order(scores: Vectors, numbers: Numbers, k: int) -> Found:
    """The best ``k`` of each row of candidates, equal scores in the order of numbers, padded with -1.

    Example:
        >>> in_order(np.float32([[0.5, 0.9, 0.5]]), np.array([[7, 8, 3]]), 4).numbers
        array([[ 8,  3,  7, -1]])
    """
    scores = np.where(numbers < 0, -np.inf, scores).astype(np.float32)
    order = np.lexsort((numbers, -scores), axis=1)[:, :k]
    best, which = np.take_along_axis(scores, order, 1), np.take_along_axis(numbers, order, 1)
    short = k - best.shape[1]
    if short > 0:
        best = np.pad(best, ((0, 0), (0, short)), constant_values=-np.inf)
        which = np.pad(which, ((0, 0), (0, short)), constant_values=-1)
    return Found(best, which.astype(np.int64))
