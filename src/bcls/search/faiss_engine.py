"""Vectors on the disk for the faiss engine: appended in segments, and the facts that searches are limited by.

Files that faiss maps into memory: made from the rows, named after the rows they cover, safe to lose.

The engine inside the index folder: faiss, exact for up to 200,000 vectors and a graph (HNSW) above.
"""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail
from bcls._core.extras import require
from bcls.search.catalog import Database, in_parts
from bcls.search.engine import Found, Numbers, Row, Vectors, Where, check_queries, in_order

_SCHEMA = """
CREATE TABLE IF NOT EXISTS segments (id INTEGER PRIMARY KEY AUTOINCREMENT, numbers BLOB, vectors BLOB);
CREATE TABLE IF NOT EXISTS facts (number INTEGER PRIMARY KEY, date REAL, name TEXT);
CREATE TABLE IF NOT EXISTS words (word TEXT, number INTEGER, PRIMARY KEY (word, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS epoch (only INTEGER PRIMARY KEY CHECK (only = 0), value INTEGER);
CREATE INDEX IF NOT EXISTS facts_date ON facts (date);
CREATE INDEX IF NOT EXISTS facts_name ON facts (name);
CREATE INDEX IF NOT EXISTS words_number ON words (number);
INSERT OR IGNORE INTO epoch VALUES (0, 0)
"""
#: Rows of a segment after compaction.
_SEGMENT = 4096


class Rows:
    """Rows in the order in which they were written.

    A row lives while ``facts`` has its number and no later row has the same one. Rows are only ever appended; within
    an epoch, a prefix of them never changes, so that files made from it stay right. :meth:`compact` begins a new epoch.
    """

    def __init__(self, path: Path, dimension: int, *, read_only: bool = False) -> None:
        self._dimension = dimension
        self._database = Database(path, _SCHEMA, read_only=read_only)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows, in place of those with the same numbers."""
        numbers = [row.number for row in rows]
        vectors = np.stack([row.vector for row in rows]).astype("<f4")
        with self._database.change() as sql:
            sql.execute(
                "INSERT INTO segments (numbers, vectors) VALUES (?, ?)",
                (np.array(numbers, "<i8").tobytes(), vectors.tobytes()),
            )
            sql.executemany("DELETE FROM words WHERE number = ?", [(number,) for number in numbers])
            sql.executemany(
                "INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", [(row.number, row.date, row.name) for row in rows]
            )
            sql.executemany(
                "INSERT INTO words VALUES (?, ?)", [(word, row.number) for row in rows for word in row.words]
            )

    def remove(self, numbers: Sequence[int]) -> None:
        """Take rows out."""
        with self._database.change() as sql:
            sql.executemany("DELETE FROM words WHERE number = ?", [(number,) for number in numbers])
            sql.executemany("DELETE FROM facts WHERE number = ?", [(number,) for number in numbers])

    def count(self) -> int:
        """How many rows live."""
        with self._database.reading() as sql:
            return int(sql.execute("SELECT count(*) FROM facts").fetchone()[0])

    @contextmanager
    def moment(self) -> Iterator[None]:
        """Reads inside see the rows as they are at one moment, whatever another process writes meanwhile."""
        with self._database.moment():
            yield

    def living(self) -> Numbers:
        """Numbers of the rows that live, sorted."""
        with self._database.reading() as sql:
            return np.fromiter((number for (number,) in sql.execute("SELECT number FROM facts ORDER BY 1")), np.int64)

    def state(self) -> tuple[int, Numbers, Numbers]:
        """The epoch, numbers of all rows written in it, and numbers that live; all at one moment."""
        with self._database.moment() as sql:
            epoch = int(sql.execute("SELECT value FROM epoch").fetchone()[0])
            parts = [np.frombuffer(one, "<i8") for (one,) in sql.execute("SELECT numbers FROM segments ORDER BY id")]
            living = self.living()
        return epoch, np.concatenate([np.empty(0, np.int64), *parts]), living

    def vectors_from(self, first: int) -> Vectors:
        """Vectors of all rows from the ``first``-th on."""
        with self._database.moment() as sql:
            sizes = sql.execute("SELECT id, length(numbers) / 8 FROM segments ORDER BY id").fetchall()
            found = np.empty((max(0, sum(size for _, size in sizes) - first), self._dimension), np.float32)
            seen = 0
            for segment, size in sizes:
                if seen + size > first:
                    (blob,) = sql.execute("SELECT vectors FROM segments WHERE id = ?", (segment,)).fetchone()
                    vectors = np.frombuffer(blob, "<f4").reshape(size, self._dimension)[max(0, first - seen) :]
                    start = max(0, seen - first)
                    found[start : start + len(vectors)] = vectors
                seen += size
        return found

    def passing(self, where: Where) -> Numbers:
        """Numbers of the rows that ``where`` lets pass."""
        conditions, values = ["1"], list[object]()
        if where.after is not None:
            conditions.append("date >= ?")
            values.append(where.after)
        if where.before is not None:
            conditions.append("date < ?")
            values.append(where.before)
        if where.under:
            # Not LIKE, whose % and _ are letters of names.
            conditions.append("substr(name, 1, ?) = ?")
            values += [len(where.under), where.under]
        for word in where.words:
            conditions.append("number IN (SELECT number FROM words WHERE word = ?)")
            values.append(word)
        # The conditions are those above, the values go as parameters.
        query = f"SELECT number FROM facts WHERE {' AND '.join(conditions)}"  # noqa: S608
        with self._database.reading() as sql:
            return np.fromiter((number for (number,) in sql.execute(query, values)), np.int64)

    def compact(self) -> None:
        """Write the rows that live anew, without the others, and begin an epoch."""
        _, written, living = self.state()
        kept = np.flatnonzero(last_rows(written, living))
        with self._database.change() as sql:
            old = [segment for (segment,) in sql.execute("SELECT id FROM segments ORDER BY id")]
            vectors = self.vectors_from(0)
            for start in range(0, len(kept), _SEGMENT):
                part = kept[start : start + _SEGMENT]
                blobs = written[part].astype("<i8").tobytes(), vectors[part].tobytes()
                sql.execute("INSERT INTO segments (numbers, vectors) VALUES (?, ?)", blobs)
            for some in in_parts(old):
                sql.executemany("DELETE FROM segments WHERE id = ?", [(one,) for one in some])
            sql.execute("UPDATE epoch SET value = value + 1")


def last_rows(written: Numbers, living: Numbers) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Which rows count: the last one of each number that lives.

    Example:
        >>> last_rows(np.array([4, 5, 4, 6]), np.array([4, 5])).tolist()
        [False, True, True, False]
    """
    mask = np.zeros(len(written), dtype=np.bool_)
    numbers, first = np.unique(written[::-1], return_index=True)
    mask[len(written) - 1 - first] = np.isin(numbers, living, assume_unique=True)
    return mask


_NAME = re.compile(r"vectors-(\d+)-(\d+)\.faiss")
#: Follows what faiss wrote, with its length: faiss reads past the end of a file that was cut short.
_END = b"bcls-end"


def read_newest(
    faiss: Any, place: Path, epoch: int, rows: int, dimension: int, *, mapped: bool = True
) -> tuple[Any, int]:
    """The index that covers most of the rows of an epoch, and how many; ``(None, 0)`` where there is none.

    A file that is damaged or belongs to something else is passed over: the rows themselves are still there.
    """
    there = [match for path in place.glob("vectors-*.faiss") if (match := _NAME.fullmatch(path.name))]
    sizes = sorted((int(match[2]) for match in there if int(match[1]) == epoch and int(match[2]) <= rows), reverse=True)
    for size in sizes:
        if not _is_whole(_path(place, epoch, size)):
            continue
        try:
            index = faiss.read_index(str(_path(place, epoch, size)), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
        except RuntimeError:
            continue
        if index.ntotal == size and index.d == dimension:
            return index, size
    return None, 0


def write_newest(faiss: Any, place: Path, epoch: int, rows: int, index: Any) -> None:
    """Write an index whole, then drop the older files; whoever has one mapped keeps it."""
    final = _path(place, epoch, rows)
    temporary = place / f".{final.name}.{os.getpid()}.tmp"
    try:
        try:
            faiss.write_index(index, str(temporary))
        except RuntimeError as error:
            raise OSError(28, f"faiss cannot write its file ({str(error).splitlines()[0]})", str(final)) from error
        with temporary.open("ab") as file:
            file.write(_END + file.tell().to_bytes(8, "little"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    for path in [*place.glob("vectors-*.faiss"), *place.glob(".vectors-*.tmp")]:
        if path != final:
            path.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    try:
        file = path.open("rb")
    except FileNotFoundError:  # the writer has put a newer one in its place since it was listed
        return False
    with file:
        length = file.seek(0, os.SEEK_END) - len(_END) - 8
        if length < 0:
            return False
        file.seek(length)
        return file.read() == _END + length.to_bytes(8, "little")


def _path(place: Path, epoch: int, rows: int) -> Path:
    return place / f"vectors-{epoch}-{rows}.faiss"


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
    """Vectors in ``place/rows.sqlite``, and files made from it for fast searches; see :class:`bcls.search.Engine`.

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
