"""What is known about one photo, for its page and for the API."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bcls.search.catalog import Photo
from bcls.search.service import Service


@dataclass(frozen=True)
class PhotoFacts:
    """A photo of the index.

    Attributes:
        number: Its number in the index.
        name: Its name below the folder of photos.
        path: Where its file is.
        date: Seconds since 1970.
        taken: Whether the camera gave the date.
        captions: What is written about it.
        place: Latitude and longitude in degrees, if the camera gave them.
    """

    number: int
    name: str
    path: str
    date: float
    taken: bool
    captions: tuple[str, ...]
    place: tuple[float, float] | None

    def as_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        day = datetime.fromtimestamp(self.date, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        row: dict[str, Any] = {key: getattr(self, key) for key in ("number", "name", "path")}
        row |= {"date": day, "date_from": "camera" if self.taken else "file", "captions": list(self.captions)}
        return row if self.place is None else {**row, "place": list(self.place)}


def facts_of(service: Service, photo: Photo) -> PhotoFacts:
    """Put together what the index knows about a photo."""
    facts = photo.facts
    written = service.index.catalog.captions_of([photo.number])
    return PhotoFacts(
        photo.number,
        facts.name,
        service.path_of(facts.name),
        facts.date,
        facts.taken,
        tuple(caption.text for caption in written.values()),
        facts.place,
    )
