"""Writes photos with their vectors, in an order that leaves a right index whenever the process is killed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bcls.index.catalog import CaptionOf, Catalog, Facts, Photo
from bcls.index.embedding import text_vectors
from bcls.index.engine import Engine, Row, Vectors
from bcls.index.reading import Ready
from bcls.index.where import words_of

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel

#: Captions that are embedded again at a time, after a kill.
_PART = 512


class Writer:
    """Changes catalogue and engines together.

    The order is the rule: vectors out, then entries out; entries in, then vectors in. See :class:`Catalog`.

    Args:
        catalog: The entries.
        photos: Vectors of photos.
        captions: Vectors of captions.
        model: Embeds captions.
    """

    def __init__(self, catalog: Catalog, photos: Engine, captions: Engine, model: "RetrievalModel") -> None:
        self.catalog, self.photos, self.captions, self._model = catalog, photos, captions, model

    def repair(self) -> set[int]:
        """Mend what a kill left: captions without a vector get theirs; gives the photos that lack one."""
        entries, vectors = self.catalog.numbers("captions"), self.captions.numbers()
        self.captions.delete([int(one) for one in np.setdiff1d(vectors, entries)])
        lacking = [int(one) for one in np.setdiff1d(entries, vectors)]
        for start in range(0, len(lacking), _PART):
            found = list(self.catalog.captions(lacking[start : start + _PART]).values())
            facts = {number: photo.facts for number, photo in self.catalog.photos([one.photo for one in found]).items()}
            self._add_captions(found, text_vectors(self._model, [one.text for one in found]), facts)
        entries, vectors = self.catalog.numbers(), self.photos.numbers()
        self.photos.delete([int(one) for one in np.setdiff1d(vectors, entries)])
        return {int(one) for one in np.setdiff1d(entries, vectors)}

    def write(self, photos: Sequence[Ready], vectors: Vectors, replaces: Sequence[int]) -> None:
        """Enter photos, in place of older entries.

        Args:
            photos: N photos that were read.
            vectors: ``(N, D)`` their vectors.
            replaces: Numbers of the entries that they replace.
        """
        if not photos:
            return
        texts = [text for one in photos for text in one.captions]
        of_texts = text_vectors(self._model, texts)
        self._take_out(replaces)
        entries = [(one.facts, one.captions) for one in photos if one.facts is not None]
        numbers = self.catalog.put(entries, replaces)
        rows = [
            Row(number, vector, facts.date, facts.name, words_of(captions))
            for number, vector, (facts, captions) in zip(numbers, vectors, entries, strict=True)
        ]
        self.photos.add(rows)
        if texts:
            # By number, which is the order in which they were entered.
            facts_of = {number: facts for number, (facts, _) in zip(numbers, entries, strict=True)}
            self._add_captions(list(self.catalog.captions_of(numbers).values()), of_texts, facts_of)

    def touch(self, photos: Sequence[Photo]) -> None:
        """Note that files were touched; vectors with an older date get the new one, which searches are limited by."""
        before = self.catalog.photos([photo.number for photo in photos])
        later = {one.number: one.facts for one in photos if one.facts.date != before[one.number].facts.date}
        if later:
            captions = list(self.catalog.captions_of(list(later)).values())
            texts: dict[int, list[str]] = {number: [] for number in later}
            for caption in captions:
                texts[caption.photo].append(caption.text)
            self.photos.add(
                [
                    Row(number, vector, later[number].date, later[number].name, words_of(texts[number]))
                    for number, vector in zip(later, self.photos.vectors(list(later)), strict=True)
                ]
            )
            self._add_captions(captions, self.captions.vectors([one.number for one in captions]), later)
        # Last: until then the next run sees that there is something to do.
        self.catalog.touch(photos)

    def remove(self, numbers: Sequence[int]) -> None:
        """Take photos out."""
        if numbers:
            self._take_out(numbers)
            self.catalog.remove(numbers)

    def _take_out(self, numbers: Sequence[int]) -> None:
        self.captions.delete(list(self.catalog.captions_of(numbers)))
        self.photos.delete(list(numbers))

    def _add_captions(self, captions: Sequence[CaptionOf], vectors: Vectors, facts: Mapping[int, Facts]) -> None:
        self.captions.add(
            [
                Row(one.number, vector, facts[one.photo].date, one.name, words_of([one.text]))
                for one, vector in zip(captions, vectors, strict=True)
            ]
        )
