"""The engine inside the index folder: faiss, exact for up to 200,000 vectors and a graph (HNSW) above."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._checks import fail
from bcls._extras import require
from bcls.index._faiss_files import read_newest, write_newest
from bcls.index._rows import Rows, last_rows
from bcls.index.engine import Found, Numbers, Row, Vectors, check_queries, in_order
from bcls.index.where import Where

#: Up to this many rows every one is compared with the query.
EXACT = 200_000
#: Neighbours of a vector in the graph, and how widely it is searched while it is built and used.
LINKS, BUILD_WIDTH, SEARCH_WIDTH = 32, 128, 512
#: Rows that no longer live are dropped from the files when they are more than this share.
_DEAD = 0.2
#: Rows that are handed to faiss at a time, so that no second copy of all is made.
_BLOCK = 16_384


@dataclass(frozen=True)
class _View:
    """What searches look at: a file mapped into memory, and rows that were written after it.

    Attributes:
        main: faiss index over the first rows, or ``None``.
        tail: ``(T, D)`` vectors of the rows after those.
        written: Numbers of all rows.
        counts: Which rows count.
        order: Rows that count, sorted by number.
    """

    epoch: int
    main: Any
    tail: Vectors
    written: Numbers
    counts: npt.NDArray[np.bool_]
    order: Numbers


class FaissEngine:
    """Vectors in ``place/rows.sqlite``, and files made from it for fast searches; see :class:`bcls.index.Engine`.

    Exact search compares a query with every row. The graph is used above ``exact`` rows; a filter that leaves no more
    than that many rows is searched exactly again, so that narrow filters lose nothing.

    Args:
        place: A folder.
        dimension: D.
        read_only: Search only.
        exact: Up to this many rows the search is exact.

    Raises:
        MissingExtraError: faiss is not installed.
        OSError: The files cannot be read or written.
    """

    def __init__(self, place: Path, dimension: int, *, read_only: bool = False, exact: int = EXACT) -> None:
        self._faiss = require("faiss", "index", "an index of photos")
        self._place, self._dimension, self._exact = place, dimension, exact
        if not read_only:
            place.mkdir(exist_ok=True)
        self._rows = Rows(place / "rows.sqlite", dimension, read_only=read_only)
        self._lock = threading.Lock()
        self._seen: _View | None = None

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows, in place of those with the same numbers."""
        for row in rows:
            if row.vector.shape != (self._dimension,) or not np.isfinite(row.vector).all():
                fail("rows", f"finite vectors of {self._dimension} numbers", row.vector.shape, "check the model")
        if rows:
            self._rows.append(rows)
            self._seen = None

    def delete(self, numbers: Sequence[int]) -> None:
        """Take rows out."""
        if numbers:
            self._rows.remove(numbers)
            self._seen = None

    def count(self) -> int:
        """How many rows there are."""
        return self._rows.count()

    def numbers(self) -> Numbers:
        """Numbers of all rows, sorted."""
        return self._rows.living()

    def vectors(self, numbers: Sequence[int]) -> Vectors:
        """Vectors of some rows."""
        view = self._view()
        wanted = np.asarray(numbers, dtype=np.int64)
        return _vectors_of(view, self._rows_of(view, wanted), self._dimension)

    def search(self, queries: Vectors, k: int, where: Where | None = None) -> Found:
        """Find the nearest rows."""
        queries = check_queries(queries, k, self._dimension)
        view = self._view()
        mask, allowed = view.counts, len(view.order)
        if where is not None and not where.is_open:
            mask = mask & np.isin(view.written, self._rows.passing(where))
            allowed = int(mask.sum())
        if not allowed:
            return in_order(np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64), k)
        k_found = min(k, allowed)
        if allowed <= self._exact and len(view.written) > self._exact:
            rows = np.flatnonzero(mask)
            scores = queries @ _vectors_of(view, rows, self._dimension).T
            return in_order(scores, np.broadcast_to(view.written[rows], scores.shape), k)
        found = [self._search_main(view, queries, k_found, mask), _search_tail(view, queries, mask)]
        scores, rows = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
        return in_order(scores, np.where(rows < 0, -1, view.written[rows]), k)

    def finish(self) -> None:
        """Write the file that searches map into memory, without dead rows where they are many."""
        view = self._view()
        if len(view.written) - len(view.order) > _DEAD * len(view.written):
            self._rows.compact()
            self._seen = None
            view = self._view()
        if len(view.tail):
            write_newest(self._faiss, self._place, view.epoch, len(view.written), self._index_of(view))
            self._seen = None

    def close(self) -> None:
        """Close the file."""
        self._seen = None
        self._rows.close()

    def _view(self) -> _View:
        with self._lock:
            if self._seen is None:
                with self._rows.moment():
                    epoch, written, living = self._rows.state()
                    main, covered = read_newest(self._faiss, self._place, epoch, len(written), self._dimension)
                    tail = self._rows.vectors_from(covered)
                counts = last_rows(written, living)
                rows = np.flatnonzero(counts)
                order = rows[np.argsort(written[rows])]
                self._seen = _View(epoch, main, tail, written, counts, order)
            return self._seen

    def _rows_of(self, view: _View, numbers: Numbers) -> Numbers:
        known = view.written[view.order]
        places = np.searchsorted(known, numbers)
        there = places < len(known)
        there[there] = known[places[there]] == numbers[there]
        if not there.all():
            fail("numbers", "rows of the index", int(numbers[~there][0]), "it was never added, or taken out")
        return view.order[places]

    def _index_of(self, view: _View) -> Any:
        """An index over all rows of the view: a flat one, or a graph that goes on from the one there is."""
        first = 0
        if len(view.written) <= self._exact:
            index = self._faiss.IndexFlatIP(self._dimension)
        elif view.main is not None and hasattr(view.main, "hnsw"):
            place, rows = self._place, len(view.written)
            index, first = read_newest(self._faiss, place, view.epoch, rows, self._dimension, mapped=False)
        else:
            index = self._faiss.IndexHNSWFlat(self._dimension, LINKS, self._faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = BUILD_WIDTH
        for start in range(first, len(view.written), _BLOCK):
            rows_now = np.arange(start, min(start + _BLOCK, len(view.written)))
            index.add(_vectors_of(view, rows_now, self._dimension))
        return index

    def _search_main(
        self, view: _View, queries: Vectors, k: int, mask: npt.NDArray[np.bool_]
    ) -> tuple[Vectors, Numbers]:
        if view.main is None:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        options: dict[str, Any] = {}
        covered = view.main.ntotal
        if not mask[:covered].all():
            # The bits must outlive the call, the selector only points to them.
            bits = np.packbits(mask[:covered], bitorder="little")
            options["sel"] = self._faiss.IDSelectorBitmap(bits)
        if hasattr(view.main, "hnsw"):
            parameters = self._faiss.SearchParametersHNSW(efSearch=max(SEARCH_WIDTH, 2 * k), **options)
        else:
            parameters = self._faiss.SearchParameters(**options)
        scores, rows = view.main.search(queries, min(k, covered), params=parameters)
        return scores, rows


def _search_tail(view: _View, queries: Vectors, mask: npt.NDArray[np.bool_]) -> tuple[Vectors, Numbers]:
    first = len(view.written) - len(view.tail)
    rows = first + np.flatnonzero(mask[first:])
    scores = queries @ view.tail[rows - first].T
    return scores, np.broadcast_to(rows, scores.shape)


def _vectors_of(view: _View, rows: Numbers, dimension: int) -> Vectors:
    first = len(view.written) - len(view.tail)
    vectors = np.empty((len(rows), dimension), np.float32)
    late = rows >= first
    vectors[late] = view.tail[rows[late] - first]
    if not late.all():
        vectors[~late] = view.main.reconstruct_batch(rows[~late])
    return vectors
