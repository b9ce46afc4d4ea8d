"""Vector engine inside the index folder: faiss, exact for up to 200,000 vectors and an HNSW graph above."""

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail
from bcls._core.extras import cpu_count, require
from bcls.search.catalog import Database
from bcls.search.engine import Neighbors, Numbers, SearchFilter, VectorRow, Vectors, check_queries, top_k

#: Up to this many rows, search is exact.
EXACT = 200_000
#: Links of a vector in the HNSW graph, and candidates while it is built and searched.
LINKS, BUILD_WIDTH, SEARCH_WIDTH = 32, 128, 512
#: Up to this many rows that a search leaves out are found and dropped: faiss compares many queries at once by a matrix
#: product, seven times as fast, but only without a selector.
_FEW = 64
#: The rows are compacted when deleted ones are more than this share.
_DEAD_SHARE = 0.2
#: Rows per ``index.add``, so that the vectors are not copied all at once.
_BLOCK = 16_384
#: Rows per segment after compaction.
_SEGMENT = 4096
#: Footer of a faiss file, followed by the length before it: faiss reads past the end of a truncated file.
_FOOTER = b"bcls-end"
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
_Mask = npt.NDArray[np.bool_]


class FaissEngine:
    """Vectors in ``folder/rows.sqlite``, and a faiss file derived from them; see :class:`bcls.search.Engine`.

    Above ``exact`` rows the HNSW graph is searched, unless a filter leaves at most ``exact`` rows: these are compared
    one by one, so narrow filters lose no result.

    The table ``segments`` has the vectors in the order in which they were written, ``facts`` and ``words`` the fields
    that filters use. A row is alive while ``facts`` has its number and no later row has the same number. Rows are only
    appended, so faiss files of the first rows stay valid until a compaction rewrites the rows and increments the epoch.

    Args:
        folder: Where the files are.
        dimension: D.
        read_only: Search only.
        exact: Up to this many rows, search is exact.

    Raises:
        MissingExtraError: faiss is not installed.
        OSError: The files cannot be read or written.
    """

    def __init__(self, folder: Path, dimension: int, *, read_only: bool = False, exact: int = EXACT) -> None:
        self._faiss = require("faiss", "search", "an index of photos")
        self._folder, self._dimension, self._exact = folder, dimension, exact
        if not read_only:
            folder.mkdir(exist_ok=True)
        self._database = Database(folder / "rows.sqlite", _SCHEMA, read_only=read_only)
        self._lock = threading.Lock()
        self._cached_view: _View | None = None

    def add(self, rows: Sequence[VectorRow]) -> None:
        """Add rows, replacing rows with the same numbers."""
        for row in rows:
            if row.vector.shape != (self._dimension,) or not np.isfinite(row.vector).all():
                fail("rows", f"finite vectors of {self._dimension} numbers", row.vector.shape, "check the model")
        if not rows:
            return
        words = [(word, row.number) for row in rows for word in row.words]
        with self._writing() as sql:
            _append(sql, np.array([row.number for row in rows]), np.stack([row.vector for row in rows]))
            sql.executemany("DELETE FROM words WHERE number = ?", [(row.number,) for row in rows])
            facts = [(row.number, row.date, row.name) for row in rows]
            sql.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", facts)
            sql.executemany("INSERT INTO words VALUES (?, ?)", words)

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete rows."""
        if numbers:
            with self._writing() as sql:
                sql.executemany("DELETE FROM words WHERE number = ?", [(number,) for number in numbers])
                sql.executemany("DELETE FROM facts WHERE number = ?", [(number,) for number in numbers])

    def count(self) -> int:
        """Number of rows."""
        return int(self._database.integers("SELECT count(*) FROM facts")[0])

    def numbers(self) -> Numbers:
        """Numbers of all rows, sorted."""
        return self._database.integers("SELECT number FROM facts ORDER BY number")

    def vectors(self, numbers: Sequence[int]) -> Vectors:
        """Vectors of the given rows."""
        view = self._view()
        return view.vectors(view.rows_of(np.asarray(numbers, dtype=np.int64)))

    def search(self, queries: Vectors, k: int, filters: SearchFilter | None = None) -> Neighbors:
        """Find the nearest rows."""
        queries = check_queries(queries, k, self._dimension)
        view = self._view()
        mask, allowed = view.alive, len(view.order)
        if filters is not None and filters != SearchFilter():
            mask = mask & np.isin(view.written, self._matching(filters))
            allowed = int(mask.sum())
        # One by one: all rows that a narrow filter leaves, otherwise the rows after those of the faiss file.
        narrow = allowed <= self._exact < len(view.written)
        first = 0 if narrow else view.covered
        compared = first + np.flatnonzero(mask[first:])
        scores = queries @ view.vectors(compared).T
        rows = np.broadcast_to(compared, scores.shape)
        if not narrow and view.main is not None and allowed:
            found = self._search_main(view.main, queries, min(k, allowed), mask[: view.covered])
            scores, rows = np.hstack((scores, found[0])), np.hstack((rows, found[1]))
        return top_k(scores, np.where(rows < 0, -1, view.written[rows]), k)

    def finish(self) -> None:
        """Compact the rows if many were deleted, and write the file that searches map into memory."""
        view = self._view()
        if len(view.written) - len(view.order) > _DEAD_SHARE * len(view.written):
            self._compact()
            view = self._view()
        if len(view.tail):
            self._write_main(view)
            self._cached_view = None

    def close(self) -> None:
        """Close the files."""
        self._cached_view = None
        self._database.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that changes the rows."""
        with self._lock, self._database.transaction() as sql:
            self._cached_view = None
            yield sql

    def _compact(self) -> None:
        """Rewrite the rows without the deleted ones, and increment the epoch."""
        with self._writing() as sql:
            _, written, living = self._state()
            kept = np.flatnonzero(last_rows(written, living))
            vectors = self._vectors_from(0)
            sql.execute("DELETE FROM segments")
            for start in range(0, len(kept), _SEGMENT):
                part = kept[start : start + _SEGMENT]
                _append(sql, written[part], vectors[part])
            sql.execute("UPDATE epoch SET value = value + 1")

    def _state(self) -> tuple[int, Numbers, Numbers]:
        """The epoch, the numbers of all rows, and the numbers that are alive; part of a transaction."""
        epochs = self._database.integers("SELECT value FROM epoch")
        if len(epochs) != 1:
            raise ValueError("its epoch is missing")  # raised as an OSError with the path
        blobs = self._database.rows("SELECT numbers FROM segments ORDER BY id")
        written = np.concatenate([np.empty(0, np.int64), *(np.frombuffer(blob, "<i8") for (blob,) in blobs)])
        return int(epochs[0]), written, self.numbers()

    def _vectors_from(self, first: int) -> Vectors:
        """Vectors of all rows, without the ``first`` ones; part of a transaction."""
        sizes = self._database.rows("SELECT id, length(numbers) / 8 FROM segments ORDER BY id")
        found = np.empty((max(0, sum(size for _, size in sizes) - first), self._dimension), np.float32)
        end = -first
        for segment, size in sizes:
            start, end = max(0, end), end + size
            if end > 0:
                ((blob,),) = self._database.rows("SELECT vectors FROM segments WHERE id = ?", segment)
                found[start:end] = np.frombuffer(blob, "<f4").reshape(size, self._dimension)[start - end :]
        return found

    def _matching(self, filters: SearchFilter) -> Numbers:
        """Numbers of the rows that pass a filter."""
        conditions: list[tuple[str, object]] = [("date >= ?", filters.after), ("date < ?", filters.before)]
        # Not LIKE: % and _ occur in names.
        conditions.append(("instr(name, ?) = 1", filters.under or None))
        conditions += [("number IN (SELECT number FROM words WHERE word = ?)", word) for word in filters.words]
        used = [(condition, value) for condition, value in conditions if value is not None]
        # Only the constant conditions above are inserted; the values are parameters.
        query = f"SELECT number FROM facts WHERE {' AND '.join(condition for condition, _ in used)}"  # noqa: S608
        return self._database.integers(query, *(value for _, value in used))

    def _view(self) -> "_View":
        with self._lock:
            if self._cached_view is None:
                with self._database.transaction(write=False):
                    epoch, written, living = self._state()
                    main = self._read_main(epoch, len(written))
                    tail = self._vectors_from(main.ntotal if main is not None else 0)
                alive = last_rows(written, living)
                rows = np.flatnonzero(alive)
                self._cached_view = _View(epoch, main, tail, written, alive, rows[np.argsort(written[rows])])
            return self._cached_view

    def _read_main(self, epoch: int, rows: int, *, mapped: bool = True) -> Any:
        """The faiss index that covers most of the first ``rows`` of an epoch; ``None`` if there is none.

        Damaged or foreign files are ignored, since the rows are stored elsewhere.
        """
        best = None
        for path in self._folder.glob(f"vectors-{epoch}-*.faiss"):
            with suppress(RuntimeError):  # damaged
                if _is_complete(path):
                    index = self._faiss.read_index(str(path), self._faiss.IO_FLAG_MMAP_IFC if mapped else 0)
                    fits = index.d == self._dimension and path == self._path(epoch, index.ntotal)
                    if fits and index.ntotal <= rows and (best is None or index.ntotal > best.ntotal):
                        best = index
        return best

    def _write_main(self, view: "_View") -> None:
        """Write a faiss file atomically, then delete the older ones; processes that have one mapped keep it.

        On Windows a mapped file cannot be deleted; a later call does that.
        """
        final = self._path(view.epoch, len(view.written))
        temporary = self._folder / f".{final.name}.{os.getpid()}.tmp"
        try:
            try:
                self._faiss.write_index(self._build(view), str(temporary))
            except RuntimeError as error:
                raise OSError(28, f"faiss cannot write its file ({str(error).splitlines()[0]})", str(final)) from error
            with temporary.open("ab") as file:
                file.write(_FOOTER + file.tell().to_bytes(8, "little"))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(final)
        finally:
            temporary.unlink(missing_ok=True)
        for path in [*self._folder.glob("vectors-*.faiss"), *self._folder.glob(".vectors-*.tmp")]:
            if path != final:
                with suppress(OSError):
                    path.unlink()

    def _path(self, epoch: int, rows: int) -> Path:
        return self._folder / f"vectors-{epoch}-{rows}.faiss"

    def _build(self, view: "_View") -> Any:
        """A faiss index of all rows: flat, or a graph, extended from the existing one if there is one."""
        index = None
        if len(view.written) <= self._exact:
            index = self._faiss.IndexFlatIP(self._dimension)
        elif view.main is not None and hasattr(view.main, "hnsw"):
            index = self._read_main(view.epoch, len(view.written), mapped=False)
        if index is None:
            index = self._faiss.IndexHNSWFlat(self._dimension, LINKS, self._faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = BUILD_WIDTH
        for start in range(index.ntotal, len(view.written), _BLOCK):
            index.add(view.vectors(np.arange(start, min(start + _BLOCK, len(view.written)))))
        return index

    def _search_main(self, main: Any, queries: Vectors, k: int, mask: _Mask) -> tuple[Vectors, Numbers]:
        options: dict[str, Any] = {}
        left_out = int(np.count_nonzero(~mask))
        if left_out <= _FEW:
            k += left_out
        else:
            # The selector only points to the bits, which must outlive the call.
            bits = np.packbits(mask, bitorder="little")
            options["sel"] = self._faiss.IDSelectorBitmap(bits)
        if hasattr(main, "hnsw"):
            parameters = self._faiss.SearchParametersHNSW(efSearch=max(SEARCH_WIDTH, 2 * k), **options)
        else:
            parameters = self._faiss.SearchParameters(**options)
        # Threads divide the queries; more of them would only wait for each other while other queries are served.
        # faiss and torch may share one OpenMP library, so the setting is restored.
        threads = self._faiss.omp_get_max_threads()
        self._faiss.omp_set_num_threads(min(len(queries), cpu_count(), threads) or 1)
        try:
            scores, rows = main.search(queries, min(k, main.ntotal), params=parameters)
        finally:
            self._faiss.omp_set_num_threads(threads)
        return scores, np.where(mask[rows], rows, -1)


@dataclass(frozen=True)
class _View:
    """State that searches use: a faiss file mapped into memory, and the rows written after it.

    Attributes:
        epoch: Number of compactions so far.
        main: faiss index of the first rows, or ``None``.
        tail: ``(T, D)`` vectors of the other rows.
        written: Numbers of all rows, in the order in which they were written.
        alive: Which rows are neither deleted nor replaced.
        order: Rows that are alive, sorted by number.
    """

    epoch: int
    main: Any
    tail: Vectors
    written: Numbers
    alive: _Mask
    order: Numbers

    @property
    def covered(self) -> int:
        """Number of rows of the faiss index."""
        return len(self.written) - len(self.tail)

    def rows_of(self, numbers: Numbers) -> Numbers:
        """Rows with the given numbers."""
        known = self.written[self.order]
        places = np.searchsorted(known, numbers)
        missing = numbers[np.append(known, -1)[places] != numbers]
        if len(missing):
            fail("numbers", "rows of the index", int(missing[0]), "it was never added, or was deleted")
        return self.order[places]

    def vectors(self, rows: Numbers) -> Vectors:
        """Vectors of the given rows."""
        late = rows >= self.covered
        if late.all():
            return self.tail[rows - self.covered]
        vectors = np.empty((len(rows), self.tail.shape[1]), np.float32)
        vectors[late] = self.tail[rows[late] - self.covered]
        vectors[~late] = self.main.reconstruct_batch(rows[~late])
        return vectors


def _append(sql: sqlite3.Connection, numbers: Numbers, vectors: Vectors) -> None:
    """Write a segment."""
    blobs = numbers.astype("<i8").tobytes(), vectors.astype("<f4").tobytes()
    sql.execute("INSERT INTO segments (numbers, vectors) VALUES (?, ?)", blobs)


def last_rows(written: Numbers, living: Numbers) -> _Mask:
    """Which rows are alive: the last one of each living number.

    Example:
        >>> last_rows(np.array([4, 5, 4, 6]), np.array([4, 5])).tolist()
        [False, True, True, False]
    """
    mask = np.zeros(len(written), dtype=np.bool_)
    numbers, first = np.unique(written[::-1], return_index=True)
    mask[len(written) - 1 - first] = np.isin(numbers, living, assume_unique=True)
    return mask


def _is_complete(path: Path) -> bool:
    # An OSError: the writer has replaced the file since it was listed, or it is shorter than the footer.
    with suppress(OSError), path.open("rb") as file:
        length = file.seek(-len(_FOOTER) - 8, os.SEEK_END)
        return file.read() == _FOOTER + length.to_bytes(8, "little")
    return False
