"""One pass over the photos that may have changed: read, embed, write."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import numpy as np

from bcls._progress import Step, progress
from bcls.index.catalog import Photo
from bcls.index.changes import Plan
from bcls.index.embedding import BATCH, image_vectors
from bcls.index.engine import Vectors
from bcls.index.reading import Ready, read_ahead
from bcls.index.settings import IndexSettings
from bcls.index.source import Item, Source
from bcls.index.writer import Writer

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel

#: Photos are written to the disk together, as many as come in this time or this number of them.
_SECONDS, _TOGETHER = 5.0, 512


class Run:
    """One pass; it says how many photos were added, updated, removed or only touched, and what was skipped."""

    def __init__(self, writer: Writer, source: Source, settings: IndexSettings) -> None:
        self.writer, self._source, self._settings = writer, source, settings
        self.added = self.updated = self.removed = self.touched = 0
        self.skipped: dict[str, str] = {}
        self._old: dict[str, tuple[int, str]] = {}
        self._embedded: set[int] = set()
        self._reuse = True
        self._waiting: list[tuple[Ready, Vectors]] = []
        self._touches: list[Photo] = []
        self._again: list[Item] = []
        self._written = time.monotonic()

    def go(self, plan: Plan, model: "RetrievalModel") -> None:
        """Read, embed and write; then take out what is gone."""
        self._old = self.writer.catalog.looks()
        self._embedded = {int(one) for one in self.writer.photos.numbers()}
        if plan.read:
            with progress("indexing", len(plan.read)) as step, self._kept():
                self._embed(plan.read, model, step)
        if self._again:
            # Their vectors were to be taken from photos that have changed in the meantime.
            again, self._again, self._reuse = self._again, [], False
            with progress("indexing", len(again)) as step, self._kept():
                self._embed(again, model, step)
        # Last, so that a photo that was only moved could use its vector again.
        gone = [*plan.gone, *(self._old[name][0] for name in self.skipped if name in self._old)]
        self.writer.remove(gone)
        self.removed = len(gone)

    def _embed(self, items: list[Item], model: "RetrievalModel", step: Step) -> None:
        started = time.monotonic()
        batch: list[Ready] = []
        options = {"workers": self._settings.workers, "max_pixels": self._settings.max_pixels}
        ready = read_ahead(items, self._source, model, self._with_contents, **options)
        with closing(ready):
            for done, one in enumerate(ready, start=1):
                if one.prepared is not None:
                    batch.append(one)
                else:
                    self._take(one)
                if len(batch) == BATCH or (done == len(items) and batch):
                    prepared = [one.prepared for one in batch if one.prepared]
                    self._take_vectors(batch, image_vectors(model, prepared, self._settings.precision))
                    batch = []
                if len(self._waiting) >= _TOGETHER or time.monotonic() - self._written > _SECONDS:
                    self._write()
                step(done, f"{done / max(time.monotonic() - started, 1e-9):.0f} photos/s")

    def _with_contents(self, name: str, sha256: str) -> int | None:
        number = self.writer.catalog.with_contents(sha256, name)
        return number if self._reuse and number in self._embedded else None

    def _take(self, one: Ready) -> None:
        """A photo that needs no embedding: it cannot be read, was only touched, or has a twin in the index."""
        if one.facts is None:
            self.skipped[one.item.name] = one.problem
        elif one.known is not None and one.known == self._old.get(one.item.name, (None, ""))[0]:
            number = one.known
            texts = tuple(caption.text for caption in self.writer.catalog.captions_of([number]).values())
            if texts == one.captions:
                self._touches.append(Photo(number, one.facts))
                self.touched += 1
            else:
                self._take_vectors([one], self.writer.photos.vectors([number]))
        elif one.known in self._embedded and one.known is not None:
            self._take_vectors([one], self.writer.photos.vectors([one.known]))
        else:
            self._again.append(one.item)

    def _take_vectors(self, photos: list[Ready], vectors: Vectors) -> None:
        for one, vector in zip(photos, vectors, strict=True):
            if np.isfinite(vector).all():
                self._waiting.append((one, vector))
            else:
                self.skipped[one.item.name] = f"`{one.item.name}`: the model gives no finite vector"

    def _write(self) -> None:
        if self._touches:
            self.writer.touch(self._touches)
            self._touches = []
        waiting, self._waiting = self._waiting, []
        replaces = [self._old[one.item.name][0] for one, _ in waiting if one.item.name in self._old]
        if waiting:
            self.writer.write([one for one, _ in waiting], np.stack([vector for _, vector in waiting]), replaces)
        # What a kill had left without a vector is as good as new.
        updated = len(self._embedded.intersection(replaces))
        self.added += len(waiting) - updated
        self.updated += updated
        self._embedded.difference_update(replaces)
        self._written = time.monotonic()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Write what is embedded, also when the user interrupts."""
        try:
            yield
        except KeyboardInterrupt:
            self._write()
            raise
        self._write()
