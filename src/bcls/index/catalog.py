"""What is in an index: photos and captions, each with a number that is never used again."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bcls.index._database import Database, in_parts
from bcls.index.engine import Numbers

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
