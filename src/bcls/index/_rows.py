"""Vectors on the disk for the faiss engine: appended in segments, and the facts that searches are limited by."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bcls.index._database import Database, in_parts
from bcls.index.engine import Numbers, Row, Vectors
from bcls.index.where import Where

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
