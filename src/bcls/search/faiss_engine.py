"""Vector engine inside the index folder: faiss, exact for up to 200,000 vectors and an HNSW graph above."""

import os
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
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
#: The rows are compacted when deleted ones are more than this share.
_DEAD_SHARE = 0.2
#: Rows per ``index.add``, so that the vectors are not copied all at once.
_BLOCK = 16_384
#: Rows per segment after compaction.
_SEGMENT = 4096
_FILE_NAME = re.compile(r"vectors-(\d+)-(\d+)\.faiss")
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
        self._store = VectorStore(folder / "rows.sqlite", dimension, read_only=read_only)
        self._lock = threading.Lock()
        self._cached_view: _View | None = None

    def add(self, rows: Sequence[VectorRow]) -> None:
        """Add rows, replacing rows with the same numbers."""
        for row in rows:
            if row.vector.shape != (self._dimension,) or not np.isfinite(row.vector).all():
                fail("rows", f"finite vectors of {self._dimension} numbers", row.vector.shape, "check the model")
        if rows:
            with self._lock:
                self._store.append(rows)
                self._cached_view = None

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete rows."""
        if numbers:
            with self._lock:
                self._store.remove(numbers)
                self._cached_view = None

    def count(self) -> int:
        """Number of rows."""
        return self._store.count()

    def numbers(self) -> Numbers:
        """Numbers of all rows, sorted."""
        return self._store.living()

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
            mask = mask & np.isin(view.written, self._store.matching(filters))
            allowed = int(mask.sum())
        # One by one: all rows that a narrow filter leaves, otherwise the rows after those of the faiss file.
        narrow = allowed <= self._exact < len(view.written)
        first = 0 if narrow else len(view.written) - len(view.tail)
        compared = first + np.flatnonzero(mask[first:])
        scores = queries @ view.vectors(compared).T
        rows = np.broadcast_to(compared, scores.shape)
        if not narrow and view.main is not None and allowed:
            found = self._search_main(view.main, queries, min(k, allowed), mask[: view.main.ntotal])
            scores, rows = np.hstack((scores, found[0])), np.hstack((rows, found[1]))
        return top_k(scores, np.where(rows < 0, -1, view.written[rows]), k)

    def finish(self) -> None:
        """Compact the rows if many were deleted, and write the file that searches map into memory."""
        view = self._view()
        if len(view.written) - len(view.order) > _DEAD_SHARE * len(view.written):
            with self._lock:
                self._store.compact()
                self._cached_view = None
            view = self._view()
        if len(view.tail):
            write_newest(self._faiss, self._folder, view.epoch, len(view.written), self._build(view))
            self._cached_view = None

    def close(self) -> None:
        """Close the files."""
        self._cached_view = None
        self._store.close()

    def _view(self) -> "_View":
        with self._lock:
            if self._cached_view is None:
                with self._store.transaction(write=False):
                    epoch, written, living = self._store.state()
                    main, covered = read_newest(self._faiss, self._folder, epoch, len(written), self._dimension)
                    tail = self._store.vectors_from(covered)
                alive = last_rows(written, living)
                rows = np.flatnonzero(alive)
                order = rows[np.argsort(written[rows])]
                self._cached_view = _View(epoch, main, tail, written, alive, order)
            return self._cached_view

    def _build(self, view: "_View") -> Any:
        """A faiss index of all rows: flat, or a graph, extended from the existing one if there is one."""
        first = 0
        if len(view.written) <= self._exact:
            index = self._faiss.IndexFlatIP(self._dimension)
        elif view.main is not None and hasattr(view.main, "hnsw"):
            rows = len(view.written)
            index, first = read_newest(self._faiss, self._folder, view.epoch, rows, self._dimension, mapped=False)
        else:
            index = self._faiss.IndexHNSWFlat(self._dimension, LINKS, self._faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = BUILD_WIDTH
        for start in range(first, len(view.written), _BLOCK):
            index.add(view.vectors(np.arange(start, min(start + _BLOCK, len(view.written)))))
        return index

    def _search_main(self, main: Any, queries: Vectors, k: int, mask: _Mask) -> tuple[Vectors, Numbers]:
        options: dict[str, Any] = {}
        if not mask.all():
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
        return scores, rows


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

    def rows_of(self, numbers: Numbers) -> Numbers:
        """Rows with the given numbers."""
        known = self.written[self.order]
        places = np.searchsorted(known, numbers)
        found = places < len(known)
        found[found] = known[places[found]] == numbers[found]
        if not found.all():
            fail("numbers", "rows of the index", int(numbers[~found][0]), "it was never added, or was deleted")
        return self.order[places]

    def vectors(self, rows: Numbers) -> Vectors:
        """Vectors of the given rows."""
        first = len(self.written) - len(self.tail)
        late = rows >= first
        if late.all():
            return self.tail[rows - first]
        vectors = np.empty((len(rows), self.tail.shape[1]), np.float32)
        vectors[late] = self.tail[rows[late] - first]
        vectors[~late] = self.main.reconstruct_batch(rows[~late])
        return vectors


class VectorStore:
    """Vectors in a SQLite file, in the order in which they were written, with the fields that filters use.

    A row is alive while the table ``facts`` has its number and no later row has the same number. Rows are only
    appended, so files derived from the first rows stay valid; :meth:`compact` rewrites the rows and increments the
    epoch.

    Args:
        path: The database file.
        dimension: D.
        read_only: Do not write; the file must exist.
    """

    def __init__(self, path: Path, dimension: int, *, read_only: bool = False) -> None:
        self._dimension = dimension
        self._database = Database(path, _SCHEMA, read_only=read_only)
        self.transaction, self.close = self._database.transaction, self._database.close

    def append(self, rows: Sequence[VectorRow]) -> None:
        """Add rows, replacing rows with the same numbers."""
        numbers = np.array([row.number for row in rows], "<i8")
        vectors = np.stack([row.vector for row in rows]).astype("<f4")
        facts = [(row.number, row.date, row.name) for row in rows]
        words = [(word, row.number) for row in rows for word in row.words]
        with self.transaction() as sql:
            blobs = numbers.tobytes(), vectors.tobytes()
            sql.execute("INSERT INTO segments (numbers, vectors) VALUES (?, ?)", blobs)
            sql.executemany("DELETE FROM words WHERE number = ?", [(row.number,) for row in rows])
            sql.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", facts)
            sql.executemany("INSERT INTO words VALUES (?, ?)", words)

    def remove(self, numbers: Sequence[int]) -> None:
        """Delete rows."""
        with self.transaction() as sql:
            sql.executemany("DELETE FROM words WHERE number = ?", [(number,) for number in numbers])
            sql.executemany("DELETE FROM facts WHERE number = ?", [(number,) for number in numbers])

    def count(self) -> int:
        """Number of rows that are alive."""
        return int(self._database.integers("SELECT count(*) FROM facts")[0])

    def living(self) -> Numbers:
        """Numbers of the rows that are alive, sorted."""
        return self._database.integers("SELECT number FROM facts ORDER BY number")

    def state(self) -> tuple[int, Numbers, Numbers]:
        """The epoch, the numbers of all rows, and the numbers that are alive, from one snapshot."""
        with self.transaction(write=False):
            epochs = self._database.integers("SELECT value FROM epoch")
            if len(epochs) != 1:
                raise ValueError("its epoch is missing")  # raised as an OSError with the path
            epoch = int(epochs[0])
            blobs = self._database.rows("SELECT numbers FROM segments ORDER BY id")
            written = np.concatenate([np.empty(0, np.int64), *(np.frombuffer(blob, "<i8") for (blob,) in blobs)])
            return epoch, written, self.living()

    def vectors_from(self, first: int) -> Vectors:
        """Vectors of all rows, without the ``first`` ones."""
        with self.transaction(write=False):
            sizes = self._database.rows("SELECT id, length(numbers) / 8 FROM segments ORDER BY id")
            found = np.empty((max(0, sum(size for _, size in sizes) - first), self._dimension), np.float32)
            filled = end = 0
            for segment, size in sizes:
                end += size
                if end > first:
                    ((blob,),) = self._database.rows("SELECT vectors FROM segments WHERE id = ?", segment)
                    vectors = np.frombuffer(blob, "<f4").reshape(size, self._dimension)[max(0, size - end + first) :]
                    found[filled : filled + len(vectors)] = vectors
                    filled += len(vectors)
        return found

    def matching(self, filters: SearchFilter) -> Numbers:
        """Numbers of the rows that pass a filter."""
        conditions: list[tuple[str, object]] = [("date >= ?", filters.after), ("date < ?", filters.before)]
        # Not LIKE: % and _ occur in names.
        conditions.append(("instr(name, ?) = 1", filters.under or None))
        conditions += [("number IN (SELECT number FROM words WHERE word = ?)", word) for word in filters.words]
        used = [(condition, value) for condition, value in conditions if value is not None]
        # Only the constant conditions above are inserted; the values are parameters.
        query = f"SELECT number FROM facts WHERE {' AND '.join(condition for condition, _ in used)}"  # noqa: S608
        return self._database.integers(query, *(value for _, value in used))

    def compact(self) -> None:
        """Rewrite the rows without the deleted ones, and increment the epoch."""
        with self.transaction() as sql:
            _, written, living = self.state()
            kept = np.flatnonzero(last_rows(written, living))
            vectors = self.vectors_from(0)
            sql.execute("DELETE FROM segments")
            for start in range(0, len(kept), _SEGMENT):
                part = kept[start : start + _SEGMENT]
                blobs = written[part].astype("<i8").tobytes(), vectors[part].tobytes()
                sql.execute("INSERT INTO segments (numbers, vectors) VALUES (?, ?)", blobs)
            sql.execute("UPDATE epoch SET value = value + 1")


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


def read_newest(faiss: Any, folder: Path, epoch: int, rows: int, width: int, *, mapped: bool = True) -> tuple[Any, int]:
    """The faiss file that covers most rows of an epoch, and how many; ``(None, 0)`` if there is none.

    Damaged or foreign files are ignored, since the rows are stored elsewhere.
    """
    found = [match for path in folder.glob("vectors-*.faiss") if (match := _FILE_NAME.fullmatch(path.name))]
    sizes = {int(match[2]) for match in found if int(match[1]) == epoch and int(match[2]) <= rows}
    for size in sorted(sizes, reverse=True):
        path = _path(folder, epoch, size)
        if not _is_complete(path):
            continue
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
        except RuntimeError:
            continue
        if index.ntotal == size and index.d == width:
            return index, size
    return None, 0


def write_newest(faiss: Any, folder: Path, epoch: int, rows: int, index: Any) -> None:
    """Write a faiss file atomically, then delete the older ones; processes that have one mapped keep it.

    On Windows a mapped file cannot be deleted; a later call does that.
    """
    final = _path(folder, epoch, rows)
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    try:
        try:
            faiss.write_index(index, str(temporary))
        except RuntimeError as error:
            raise OSError(28, f"faiss cannot write its file ({str(error).splitlines()[0]})", str(final)) from error
        with temporary.open("ab") as file:
            file.write(_FOOTER + file.tell().to_bytes(8, "little"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    for path in [*folder.glob("vectors-*.faiss"), *folder.glob(".vectors-*.tmp")]:
        if path != final:
            with suppress(OSError):
                path.unlink()


def _is_complete(path: Path) -> bool:
    # An OSError: the writer has replaced the file since it was listed, or it is shorter than the footer.
    with suppress(OSError), path.open("rb") as file:
        length = file.seek(-len(_FOOTER) - 8, os.SEEK_END)
        return file.read() == _FOOTER + length.to_bytes(8, "little")
    return False


def _path(folder: Path, epoch: int, rows: int) -> Path:
    return folder / f"vectors-{epoch}-{rows}.faiss"
