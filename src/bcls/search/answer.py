"""What a search gives."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True)
class Hit:
    """A photo that was found.

    Attributes:
        number: Its number in the index, never used for another photo.
        path: Its path; for an archive the archive's path and the name inside.
        name: Its name below the folder of photos.
        score: Between 0 and 1, see :class:`bcls.index.Calibration`.
        similarity: What the model says, on its own scale.
        fits: Whether the score says that it fits.
        date: When it was taken, or its file last changed, in seconds since 1970.
        taken: Whether the camera gave the date.
        place: Latitude and longitude in degrees, if the camera gave them.
        captions: What is written about it.
    """

    number: int
    path: str
    name: str
    score: float
    similarity: float
    fits: bool
    date: float
    taken: bool
    place: tuple[float, float] | None
    captions: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        day = datetime.fromtimestamp(self.date, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        row = {
            "path": self.path,
            "score": round(self.score, 4),
            # A photo that could not be read for ranking again has none, and JSON has no infinity.
            "similarity": round(self.similarity, 6) if math.isfinite(self.similarity) else None,
            "fits": self.fits,
            "number": self.number,
            "name": self.name,
            "date": day,
            "date_from": "camera" if self.taken else "file",
            "captions": list(self.captions),
        }
        return row if self.place is None else {**row, "place": list(self.place)}


@dataclass(frozen=True)
class CaptionHit:
    """A caption that was found, with the photo that it belongs to."""

    text: str
    path: str
    name: str
    number: int
    score: float
    similarity: float
    fits: bool

    def as_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "score": round(self.score, 4), "similarity": round(self.similarity, 6)}


@dataclass(frozen=True)
class Answer:
    """Photos, best first.

    Attributes:
        hits: The photos.
        reranked: How many of the nearest vectors the whole model ranked again; 0 where vectors are all there is.
    """

    hits: tuple[Hit, ...]
    reranked: int = 0

    @property
    def fits(self) -> bool:
        """Whether anything fits the query."""
        return any(hit.fits for hit in self.hits)


@dataclass(frozen=True)
class CaptionAnswer:
    """Captions, best first; see :class:`Answer`."""

    hits: tuple[CaptionHit, ...]
    reranked: int = 0

    @property
    def fits(self) -> bool:
        """Whether anything fits the photo."""
        return any(hit.fits for hit in self.hits)
