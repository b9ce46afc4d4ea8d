"""SQLite storage of an index: crash-safe database files, and the catalog of photos and captions."""

import errno
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bcls.search.engine import Numbers, SearchFilter, words_of

_SCHEMA = """
CREATE TABLE IF NOT EXISTS photos (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
    look TEXT NOT NULL, sha256 TEXT NOT NULL, date REAL NOT NULL, taken INTEGER NOT NULL,
    latitude REAL, longitude REAL);
CREATE TABLE IF NOT EXISTS captions (number INTEGER PRIMARY KEY AUTOINCREMENT, photo INTEGER NOT NULL,
    text TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS photos_sha256 ON photos (sha256);
CREATE INDEX IF NOT EXISTS photos_date ON photos (date, number);
CREATE INDEX IF NOT EXISTS captions_photo ON captions (photo)
"""
#: Photos that pass a filter: earliest date, latest date, prefix of the name, words as JSON.
_PASSES = """
FROM photos WHERE (?1 IS NULL OR date >= ?1) AND (?2 IS NULL OR date < ?2) AND substr(name, 1, length(?3)) = ?3
    AND (?4 = '[]' OR has_words((SELECT group_concat(text, ' ') FROM captions WHERE photo = photos.number), ?4))
"""


class Photo(NamedTuple):
    """A photo of the index."""

    #: Name below the photo folder, or in the archive.
    name: str
    #: Size and modification time of its files, to detect changes without reading them.
    stamp: str
    #: Hash of its contents.
    sha256: str
    #: When it was taken, else when the file was last modified, in seconds since 1970.
    date: float
    #: Whether the date comes from the camera (EXIF).
    from_camera: bool
    #: Degrees, from EXIF.
    latitude: float | None = None
    #: Degrees, from EXIF.
    longitude: float | None = None
    #: Number in the index, never reused; 0 for a photo that is not in the index yet.
    number: int = 0

    @property
    def location(self) -> tuple[float, float] | None:
        """Latitude and longitude, if both are known."""
        return None if self.latitude is None or self.longitude is None else (self.latitude, self.longitude)


class IndexedCaption(NamedTuple):
    """A caption: its number, the number and name of its photo, and its text."""

    number: int
    photo: int
    name: str
    text: str


class Catalog:
    """Photos and captions of an index, in ``catalog.sqlite``.

    Entries are inserted before their vectors and deleted after them. So every vector has an entry at any time, even
    after a kill, and the next run finds entries without a vector and embeds them.

    Args:
        path: The database file.
        read_only: Do not write; the file must exist.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._database = Database(path, _SCHEMA, read_only=read_only)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def count(self, table: str = "photos") -> int:
        """Number of ``"photos"`` or ``"captions"``."""
        return int(self._database.integers(f"SELECT count(*) FROM {table}")[0])  # noqa: S608 - one of two names

    def numbers(self, table: str = "photos") -> Numbers:
        """Numbers of all ``"photos"`` or ``"captions"``, sorted."""
        return self._database.integers(f"SELECT number FROM {table} ORDER BY number")  # noqa: S608 - one of two names

    def stamps(self) -> dict[str, tuple[int, str]]:
        """Number and stamp of every photo, by name."""
        rows = self._database.rows("SELECT name, number, look FROM photos")
        return {name: (number, stamp) for name, number, stamp in rows}

    def photos(self, numbers: Sequence[int]) -> dict[int, Photo]:
        """Photos by number; unknown numbers are left out."""
        query = (
            "SELECT name, look, sha256, date, taken, latitude, longitude, number FROM photos "
            "WHERE number IN (SELECT value FROM json_each(?))"
        )
        found = [Photo(*row) for row in self._database.rows(query, _as_json(numbers))]
        return {photo.number: photo._replace(from_camera=bool(photo.from_camera)) for photo in found}

    def by_date(self, filters: SearchFilter, start: int, count: int) -> tuple[list[int], int]:
        """Numbers of photos that pass a filter, newest first, from position ``start`` on, and how many pass in all."""
        values = (filters.after, filters.before, filters.under, json.dumps(filters.words))
        numbers = f"SELECT number {_PASSES} ORDER BY date DESC, number DESC LIMIT ?5 OFFSET ?6"
        with self._database.transaction(write=False):
            found = self._database.integers(numbers, *values, count, start).tolist()
            return found, int(self._database.integers(f"SELECT count(*) {_PASSES}", *values)[0])

    def number_of(self, name: str) -> int | None:
        """Number of the photo with this name, or ``None``."""
        return self._number("SELECT number FROM photos WHERE name = ?", name)

    def number_with_hash(self, sha256: str, name: str) -> int | None:
        """Number of a photo with these contents, or ``None``; of several, the one with this name is preferred."""
        return self._number("SELECT number FROM photos WHERE sha256 = ? ORDER BY name != ? LIMIT 1", sha256, name)

    def captions(self, numbers: Sequence[int]) -> dict[int, IndexedCaption]:
        """Captions by number; unknown numbers are left out."""
        return self._captions("captions.number", numbers)

    def captions_of(self, photos: Sequence[int]) -> dict[int, IndexedCaption]:
        """All captions of the given photos, by caption number, sorted."""
        return self._captions("photo", photos)

    def put(self, photos: Iterable[tuple[Photo, Sequence[str]]], replaces: Sequence[int]) -> list[int]:
        """Insert photos with their captions and delete the replaced ones in one transaction; returns new numbers."""
        numbers = []
        insert = "INSERT INTO photos (name, look, sha256, date, taken, latitude, longitude) VALUES (?,?,?,?,?,?,?)"
        with self._database.transaction() as sql:
            self.remove(replaces)
            for photo, captions in photos:
                number = int(sql.execute(insert, photo[:7]).lastrowid or 0)
                numbers.append(number)
                sql.executemany("INSERT INTO captions (photo, text) VALUES (?, ?)", [(number, one) for one in captions])
        return numbers

    def touch(self, photos: Iterable[Photo]) -> None:
        """Update stamp and date of photos whose contents did not change."""
        values = [(photo.stamp, photo.date, photo.number) for photo in photos]
        with self._database.transaction() as sql:
            sql.executemany("UPDATE photos SET look = ?, date = ? WHERE number = ?", values)

    def remove(self, numbers: Sequence[int]) -> None:
        """Delete photos with their captions."""
        values = [(int(number),) for number in numbers]
        with self._database.transaction() as sql:
            sql.executemany("DELETE FROM captions WHERE photo = ?", values)
            sql.executemany("DELETE FROM photos WHERE number = ?", values)

    def _number(self, query: str, *values: str) -> int | None:
        found = self._database.integers(query, *values)
        return int(found[0]) if len(found) else None

    def _captions(self, column: str, numbers: Sequence[int]) -> dict[int, IndexedCaption]:
        # The column is one of ours.
        query = (
            "SELECT captions.number, photo, name, text FROM captions JOIN photos ON photos.number = photo "  # noqa: S608
            f"WHERE {column} IN (SELECT value FROM json_each(?)) ORDER BY captions.number"
        )
        found = [IndexedCaption(*row) for row in self._database.rows(query, _as_json(numbers))]
        return {caption.number: caption for caption in found}


def _has_words(text: str | None, words: str) -> bool:
    """Whether a text has all words of a JSON list; a function of SQL."""
    return set(words_of([text or ""])).issuperset(json.loads(words))


def _as_json(numbers: Iterable[int]) -> str:
    """Numbers as one SQL parameter; ``IN (?, ?, ...)`` takes a limited number of values."""
    return json.dumps([int(number) for number in numbers])


class Database:
    """A SQLite file with one connection that threads share.

    A transaction is on disk when :meth:`transaction` ends, or has no effect: rollback journal, full synchronization.
    Readers need no write access, unless a writer was killed during a transaction.

    Args:
        path: The file.
        schema: SQL statements that create its tables.
        read_only: Do not write; the file must exist.

    Raises:
        OSError: The file cannot be opened or is damaged, or the disk is full or read-only.
    """

    def __init__(self, path: Path, schema: str, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.RLock()
        with self._os_errors():
            if read_only and not path.exists():
                raise FileNotFoundError(2, "no such file; build the index again", str(path))
            # A reader may have to roll back the transaction of a killed writer, which needs write access.
            writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
            mode = "rwc" if not read_only else "rw" if writable else "ro"
            address = f"{path.resolve().as_uri()}?mode={mode}"
            self._connection = sqlite3.connect(address, 60, 0, None, check_same_thread=False, uri=True)
            setup = "query_only = ON" if read_only else f"synchronous = FULL; BEGIN IMMEDIATE; {schema}; COMMIT"
            self._connection.executescript(f"PRAGMA {setup}")
            self._connection.create_function("has_words", 2, _has_words, deterministic=True)

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Result rows of a query."""
        with self._lock, self._os_errors():
            return self._connection.execute(query, values).fetchall()

    def integers(self, query: str, *values: object) -> Numbers:
        """First column of a query's result."""
        with self._lock, self._os_errors():
            return np.fromiter((row[0] for row in self._connection.execute(query, values)), np.int64)

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """The connection inside a transaction, which is rolled back after an exception.

        All reads inside see the file in the same state. A transaction inside another one is part of it.

        Args:
            write: Whether the transaction may write, so that it waits for other writers first.
        """
        with self._lock, self._os_errors():
            if self._connection.in_transaction:
                yield self._connection
                return
            self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            with self._connection:
                yield self._connection

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _os_errors(self) -> Iterator[None]:
        """Raise SQLite's errors, and those of values with an unexpected type, as an OSError with the path."""
        try:
            yield
        except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
            text = str(error)[:200]
            codes = {"full": errno.ENOSPC, "readonly": errno.EROFS, "read-only": errno.EROFS}
            code = next((code for word, code in codes.items() if word in text), errno.EIO)
            raise OSError(code, f"the index cannot be read or written ({text})", str(self.path)) from error
