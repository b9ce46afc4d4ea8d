"""SQLite files that survive a kill, with errors that name the file and what to do.

What a camera noted in a photo: when and where.

What is in an index: photos and captions, each with a number that is never used again.
"""

import errno
import io
import math
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image

from bcls.data.images import FORMATS
from bcls.search.engine import Numbers


class Database:
    """A SQLite file; one connection that threads take in turns.

    A change is on the disk when :meth:`change` ends, or was never made: SQLite's rollback journal with full
    synchronisation. Readers change nothing and need no write access, unless a writer was killed in the middle.

    Args:
        path: The file.
        schema: SQL that makes its tables.
        read_only: Never write; the file must be there.

    Raises:
        OSError: The file cannot be opened, is damaged, or the disk is full or read-only.
    """

    def __init__(self, path: Path, schema: str, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.RLock()
        with self._told():
            if read_only and not path.exists():
                raise FileNotFoundError(2, "no such file; make the index again", str(path))
            # A reader may have to take back what a killed writer left half done, so it writes where it is allowed to.
            allowed = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
            mode = "rwc" if not read_only else "rw" if allowed else "ro"
            address = f"{path.resolve().as_uri()}?mode={mode}"
            self._connection = sqlite3.connect(address, uri=True, timeout=60, check_same_thread=False)
            self._connection.isolation_level = None
            if read_only:
                self._connection.execute("PRAGMA query_only = ON")
            else:
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.executescript(f"BEGIN IMMEDIATE; {schema}; COMMIT")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone."""
        with self._lock, self._told():
            try:
                yield self._connection
            except (TypeError, ValueError, OverflowError) as error:  # values that nobody wrote there
                raise sqlite3.DatabaseError(f"damaged: {str(error)[:200]}") from error

    @contextmanager
    def moment(self) -> Iterator[sqlite3.Connection]:
        """The connection, for reads that all see the file as it is at the first of them."""
        with self.reading() as sql:
            if sql.in_transaction:  # what is around this decides
                yield sql
                return
            sql.execute("BEGIN")
            try:
                yield sql
            finally:
                sql.execute("COMMIT")

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """The connection inside a transaction: all of it happens, or nothing."""
        with self._lock, self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            code = errno.EIO
            if "full" in text:
                code = errno.ENOSPC
            elif "readonly" in text or "read-only" in text:
                code = errno.EROFS
            raise OSError(code, f"the index cannot be read or written ({text})", str(self.path)) from error


def in_parts(numbers: list[int], size: int = 500) -> Iterator[list[int]]:
    """Cut a list for SQL's ``IN (...)``, which takes a limited number of values."""
    yield from (numbers[start : start + size] for start in range(0, len(numbers), size))


_DATES = (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTimeDigitized, ExifTags.Base.DateTime)


class Notes(NamedTuple):
    """When (seconds since 1970) and where (degrees) a photo was taken, as far as it says.

    A camera's clock has no time zone, so its date is taken as UTC.
    """

    date: float | None = None
    latitude: float | None = None
    longitude: float | None = None


def read_notes(content: bytes) -> Notes:
    """Read the EXIF notes of a picture file; damaged ones are as good as none.

    Example:
        >>> read_notes(b"no picture")
        Notes(date=None, latitude=None, longitude=None)
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            exif = image.getexif()
            if not exif:
                return Notes()
            inner, gps = dict(exif.get_ifd(ExifTags.IFD.Exif)), dict(exif.get_ifd(ExifTags.IFD.GPSInfo))
    except Exception:  # noqa: BLE001, RUF100 - Pillow's readers raise what they like; the photo itself is judged later
        return Notes()
    date = next((found for tag in _DATES if (found := _date(inner.get(tag, exif.get(tag)))) is not None), None)
    latitude = _degrees(gps.get(ExifTags.GPS.GPSLatitude), gps.get(ExifTags.GPS.GPSLatitudeRef), 90)
    longitude = _degrees(gps.get(ExifTags.GPS.GPSLongitude), gps.get(ExifTags.GPS.GPSLongitudeRef), 180)
    if latitude is None or longitude is None:
        latitude = longitude = None
    return Notes(date, latitude, longitude)


def _date(value: Any) -> float | None:
    try:
        return datetime.strptime(str(value).strip("\0 ")[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def _degrees(parts: Any, side: Any, most: float) -> float | None:
    try:
        degrees, minutes, seconds = (float(part) for part in parts)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    value = degrees + minutes / 60 + seconds / 3600
    if not math.isfinite(value) or not 0 <= value <= most:
        return None
    return -value if str(side).strip("\0 ").upper() in {"S", "W"} else value


_SCHEMA = """
CREATE TABLE IF NOT EXISTS photos (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
    look TEXT NOT NULL, sha256 TEXT NOT NULL, date REAL NOT NULL, taken INTEGER NOT NULL,
    latitude REAL, longitude REAL);
CREATE TABLE IF NOT EXISTS captions (number INTEGER PRIMARY KEY AUTOINCREMENT, photo INTEGER NOT NULL,
    text TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS photos_sha256 ON photos (sha256);
CREATE INDEX IF NOT EXISTS captions_photo ON captions (photo)
"""


class Facts(NamedTuple):
    """What is known about a photo.

    Attributes:
        name: Its name below the folder, or in the archive.
        look: Size and time of its files, for a quick look whether it changed.
        sha256: Hash of its contents.
        date: When it was taken, else when the file was last changed; seconds since 1970.
        taken: Whether the camera gave the date.
        latitude: Where it was taken, in degrees, if the camera knew.
        longitude: The same.
    """

    name: str
    look: str
    sha256: str
    date: float
    taken: bool
    latitude: float | None = None
    longitude: float | None = None

    @property
    def place(self) -> tuple[float, float] | None:
        """Latitude and longitude, if the camera knew both."""
        return None if self.latitude is None or self.longitude is None else (self.latitude, self.longitude)


class Photo(NamedTuple):
    """A photo of the index: its number and what is known about it."""

    number: int
    facts: Facts


class CaptionOf(NamedTuple):
    """A caption: its number, its photo's number and name, and its text."""

    number: int
    photo: int
    name: str
    text: str


class Catalog:
    """Photos and captions, in ``catalog.sqlite``.

    The catalogue is written before vectors are added, and after they are deleted. So every vector has its entry here at
    any moment, whenever a process is killed; an entry that has no vector yet is found and embedded by the next run.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._database = Database(path, _SCHEMA, read_only=read_only)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def count(self, what: str = "photos") -> int:
        """How many ``"photos"`` or ``"captions"`` there are."""
        query = {"photos": "SELECT count(*) FROM photos", "captions": "SELECT count(*) FROM captions"}[what]
        with self._database.reading() as sql:
            return int(sql.execute(query).fetchone()[0])

    def numbers(self, what: str = "photos") -> Numbers:
        """Numbers of all ``"photos"`` or ``"captions"``, sorted."""
        query = {"photos": "SELECT number FROM photos", "captions": "SELECT number FROM captions"}[what]
        with self._database.reading() as sql:
            return np.fromiter((number for (number,) in sql.execute(f"{query} ORDER BY number")), np.int64)

    def looks(self) -> dict[str, tuple[int, str]]:
        """Number and quick look of every photo, by name."""
        with self._database.reading() as sql:
            return {name: (number, look) for number, name, look in sql.execute("SELECT number, name, look FROM photos")}

    def photos(self, numbers: Sequence[int]) -> dict[int, Photo]:
        """Photos by number; those that are not there are left out."""
        found = {}
        columns = "number, name, look, sha256, date, taken, latitude, longitude"
        with self._database.reading() as sql:
            for part in in_parts([int(one) for one in numbers]):
                # Question marks are all that is put in; the values go as parameters.
                query = f"SELECT {columns} FROM photos WHERE number IN ({','.join('?' * len(part))})"  # noqa: S608
                for number, *facts in sql.execute(query, part):
                    found[number] = Photo(number, Facts(*facts)._replace(taken=bool(facts[4])))
        return found

    def number_of(self, name: str) -> int | None:
        """Number of the photo of that name."""
        with self._database.reading() as sql:
            row = sql.execute("SELECT number FROM photos WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    def with_contents(self, sha256: str, name: str) -> int | None:
        """Number of a photo with these contents; of several, that of the name first."""
        query = "SELECT number FROM photos WHERE sha256 = ? ORDER BY name != ? LIMIT 1"
        with self._database.reading() as sql:
            row = sql.execute(query, (sha256, name)).fetchone()
        return None if row is None else int(row[0])

    def captions(self, numbers: Sequence[int]) -> dict[int, CaptionOf]:
        """Captions by number."""
        return self._captions("captions.number", numbers)

    def captions_of(self, photos: Sequence[int]) -> dict[int, CaptionOf]:
        """All captions of some photos, by the captions' numbers."""
        return self._captions("photo", photos)

    def put(self, photos: Iterable[tuple[Facts, Sequence[str]]], replaces: Sequence[int]) -> list[int]:
        """Enter photos with their captions, and take out those that they replace, at once; gives the new numbers."""
        numbers = []
        with self._database.change() as sql:
            sql.executemany("DELETE FROM captions WHERE photo = ?", [(int(one),) for one in replaces])
            sql.executemany("DELETE FROM photos WHERE number = ?", [(int(one),) for one in replaces])
            for facts, captions in photos:
                added = sql.execute(
                    "INSERT INTO photos (name, look, sha256, date, taken, latitude, longitude) VALUES (?,?,?,?,?,?,?)",
                    facts,
                )
                number = int(added.lastrowid or 0)
                numbers.append(number)
                sql.executemany("INSERT INTO captions (photo, text) VALUES (?, ?)", [(number, one) for one in captions])
        return numbers

    def touch(self, photos: Iterable[Photo]) -> None:
        """Note that files of photos were touched, and nothing in them changed but perhaps the date."""
        values = [(facts.look, facts.date, number) for number, facts in photos]
        with self._database.change() as sql:
            sql.executemany("UPDATE photos SET look = ?, date = ? WHERE number = ?", values)

    def remove(self, numbers: Sequence[int]) -> None:
        """Take out photos with their captions."""
        with self._database.change() as sql:
            sql.executemany("DELETE FROM captions WHERE photo = ?", [(int(one),) for one in numbers])
            sql.executemany("DELETE FROM photos WHERE number = ?", [(int(one),) for one in numbers])

    def _captions(self, column: str, numbers: Sequence[int]) -> dict[int, CaptionOf]:
        found: dict[int, CaptionOf] = {}
        with self._database.reading() as sql:
            for part in in_parts([int(one) for one in numbers]):
                places = ",".join("?" * len(part))  # the column is one of ours, the values go as parameters
                query = (
                    "SELECT captions.number, photo, name, text FROM captions JOIN photos ON photos.number = photo "  # noqa: S608
                    f"WHERE {column} IN ({places}) ORDER BY captions.number"
                )
                found.update((row[0], CaptionOf(*row)) for row in sql.execute(query, part))
        return found
