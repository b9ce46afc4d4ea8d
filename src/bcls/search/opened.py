"""An index as it is at one moment, with the photos it speaks of."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls.index import FITS, Index, Photo, open_index
from bcls.index.manifest import FILE
from bcls.index.source import Source
from bcls.search.answer import Hit


@dataclass(frozen=True)
class Opened:
    """An index that is open.

    Attributes:
        stamp: Changes with every run of ``bcls index``.
        index: The index.
        source: Where its photos are; ``None`` if they are gone.
    """

    stamp: tuple[int, int]
    index: Index
    source: Source | None

    def path(self, name: str) -> str:
        """A photo's path as a person knows it."""
        if self.source is not None:
            try:
                return self.source.place(name)
            except FileNotFoundError:
                pass
        return str(Path(self.index.manifest.photos) / name)

    def photos(self, numbers: npt.NDArray[np.int64]) -> list[Photo]:
        """Photos in the order of their numbers here; those that were taken out since are left out."""
        known = self.index.catalog.photos([int(one) for one in numbers if one >= 0])
        return [known[int(one)] for one in numbers if int(one) in known]

    def hits(self, numbers: npt.NDArray[np.int64], similarities: npt.NDArray[Any], kind: str) -> tuple[Hit, ...]:
        """Results with all that is known about them, scored as the ``kind`` of query asks."""
        scores = self.index.manifest.calibration[kind](similarities)
        of = {int(n): (float(score), float(s)) for n, score, s in zip(numbers, scores, similarities, strict=True)}
        photos = self.photos(numbers)
        captions: dict[int, list[str]] = {}
        for caption in self.index.catalog.captions_of([photo.number for photo in photos]).values():
            captions.setdefault(caption.photo, []).append(caption.text)
        return tuple(self._hit(photo, *of[photo.number], tuple(captions.get(photo.number, ()))) for photo in photos)

    def _hit(self, photo: Photo, score: float, similarity: float, captions: tuple[str, ...]) -> Hit:
        facts = photo.facts
        return Hit(
            number=photo.number,
            path=self.path(facts.name),
            name=facts.name,
            score=score,
            similarity=similarity,
            fits=score >= FITS,
            date=facts.date,
            taken=facts.taken,
            place=facts.place,
            captions=captions,
        )


def stamp_of(folder: Path) -> tuple[int, int]:
    """What tells one state of an index from the next."""
    found = (folder / FILE).stat()
    return found.st_mtime_ns, found.st_ino


def unreadable(error: OSError) -> str:
    """One sentence about an index whose files cannot be read."""
    return f"the index cannot be read ({error.strerror or error}): see that its folder is there, and start again"


def open_now(folder: Path) -> Opened:
    """Open an index; where its photos are gone, searches still work and say what they would show."""
    stamp = stamp_of(folder) if (folder / FILE).exists() else (0, 0)
    index = open_index(folder)
    try:
        return Opened(stamp, index, index.source())
    except (OSError, ValueError):  # gone, or no longer what it was: an archive cut short, say
        return Opened(stamp, index, None)
