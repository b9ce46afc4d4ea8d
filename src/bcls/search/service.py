"""Query service: searches an index from any number of threads, for the command line and the server."""

import math
import threading
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_choice, check_number, check_whole, fail
from bcls.data.images import decode
from bcls.models.light import LightModel
from bcls.models.loading import find_folder
from bcls.search.batcher import Batcher, limit_work
from bcls.search.calibration import FITS
from bcls.search.catalog import IndexedCaption, Photo
from bcls.search.embedding import image_vectors, pair_scores, read_inputs, text_vectors
from bcls.search.engine import Engine, IndexUnavailableError, SearchFilter, Vectors, near_duplicates, parse_query
from bcls.search.index import Index, ModelInput, manifest_stamp, open_index
from bcls.search.score_model import SIMILAR, read_calibration
from bcls.search.source import DatasetSource, FileSource

if TYPE_CHECKING:
    from PIL import Image

#: An image, or the bytes of its file.
ImageInput: TypeAlias = "bytes | Image.Image"
Similarities: TypeAlias = npt.NDArray[np.float64]
#: Limits of a query: characters, and number of results.
MAX_TEXT, MAX_RESULTS = 2000, 1000
#: Orders of results.
SORTS = ("score", "date")
#: Photos with at least this similarity are near-duplicates.
DUPLICATE = 0.95
#: A shorter sum of unit vectors is rounding.
_SHORTEST = 1e-4
#: Texts per pass through the model, and image queries or rerankings that run at the same time.
_TOGETHER, _HEAVY = 32, 2


@dataclass(frozen=True)
class ServiceSettings:
    """Limits of a service.

    Attributes:
        cache: Texts whose vectors are cached; 0 for none.
        queue: Texts that may wait; more are rejected.
        timeout: Seconds after which a query is given up.
        rerank: Results that are reranked by models with cross attention; 0 for none.
    """

    cache: int = 1024
    queue: int = 256
    timeout: float = 10.0
    rerank: int = 50


@dataclass(frozen=True)
class PhotoInfo:
    """What the index contains about a photo.

    Attributes:
        number: Its number in the index, never reused.
        path: Its path; in an archive, the archive's path followed by the name inside.
        name: Its name below the photo folder.
        date: When it was taken, or its file was last modified, in seconds since 1970.
        from_camera: Whether the date comes from the camera.
        location: Latitude and longitude in degrees, if the camera recorded them.
        captions: Its captions.
    """

    number: int
    path: str
    name: str
    date: float
    from_camera: bool
    location: tuple[float, float] | None
    captions: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        row = {
            "path": self.path,
            "number": self.number,
            "name": self.name,
            "date": datetime.fromtimestamp(self.date, UTC).strftime("%Y-%m-%dT%H:%M:%S"),
            "date_from": "camera" if self.from_camera else "file",
            "captions": list(self.captions),
        }
        return row if self.location is None else {**row, "place": list(self.location)}


@dataclass(frozen=True)
class Hit(PhotoInfo):
    """A photo that was found.

    Attributes:
        score: Between 0 and 1, see :class:`bcls.search.Calibration` and
            :class:`bcls.search.score_model.ModelCalibration`.
        similarity: Similarity by the model, on its own scale.
        threshold: Scores from here on count as relevant.
    """

    score: float
    similarity: float
    threshold: float = FITS

    @property
    def fits(self) -> bool:
        """Whether the score is high enough to count as relevant."""
        return self.score >= self.threshold

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        # A photo that could not be read for reranking has no similarity, and JSON has no infinity.
        similarity = round(self.similarity, 6) if math.isfinite(self.similarity) else None
        return {**super().as_json(), "score": round(self.score, 4), "similarity": similarity, "fits": self.fits}


@dataclass(frozen=True)
class CaptionHit:
    """A caption that was found, with path, name and number of its photo."""

    text: str
    path: str
    name: str
    number: int
    score: float
    similarity: float
    threshold: float = FITS

    @property
    def fits(self) -> bool:
        """Whether the score is high enough to count as relevant."""
        return self.score >= self.threshold

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        row = {name: value for name, value in vars(self).items() if name != "threshold"}
        return {**row, "score": round(self.score, 4), "similarity": round(self.similarity, 6), "fits": self.fits}


_Hit = TypeVar("_Hit", Hit, CaptionHit)
_Entry = TypeVar("_Entry", Photo, IndexedCaption)


@dataclass(frozen=True)
class SearchResult(Generic[_Hit]):
    """Photos or captions, best first.

    Attributes:
        hits: The photos or captions.
        reranked: How many of the nearest vectors were reranked by cross attention; 0 for none.
        threshold: Scores from here on count as relevant.
    """

    hits: tuple[_Hit, ...]
    reranked: int = 0
    threshold: float = FITS

    @property
    def fits(self) -> bool:
        """Whether any hit is relevant."""
        return any(hit.fits for hit in self.hits)


class UnknownPhotoError(ValueError):
    """No photo of the index has the given number."""


class Service(AbstractContextManager["Service"]):
    """Answers searches from any number of threads.

    Concurrent texts share a pass through the model, and vectors of recent texts are cached. After an update of the
    index, the next search uses the new state. Only photos of the index are ever opened.

    Args:
        folder: The index.
        model: The model of the index, or its name or folder; by default the one in the manifest.
        settings: Limits.

    Raises:
        ValueError: The folder is not a complete index, or was built with another model.
    """

    def __init__(self, folder: str | Path, model: ModelInput = None, settings: ServiceSettings | None = None) -> None:
        self.settings = settings or ServiceSettings()
        check_whole("rerank", self.settings.rerank, least=0)
        check_whole("cache", self.settings.cache, least=0)
        self._folder = Path(folder)
        self._lock = threading.Lock()
        self._index = open_index(self._folder)
        self.model = self._index.load_model(model)
        source = model or self._index.manifest.model
        # A model in memory has none.
        self.calibration = read_calibration(find_folder(source)) if isinstance(source, str | Path) else None
        self._heavy = threading.BoundedSemaphore(_HEAVY)
        self._grouping = threading.BoundedSemaphore(1)
        self._groups: tuple[object, list[list[int]]] | None = None
        encoder = self.model if isinstance(self.model, LightModel) else self.model.for_queries()
        self._batcher = Batcher(
            lambda texts: text_vectors(encoder, texts),
            batch=_TOGETHER,
            waiting=self.settings.queue,
            timeout=self.settings.timeout,
        )
        self._text_vector = lru_cache(self.settings.cache)(self._batcher)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread and close the files."""
        self._batcher.close()
        self._index.close()

    @property
    def threshold(self) -> float:
        """Score from which photos count as fitting a text."""
        return FITS if self.calibration is None else self.calibration.threshold

    @property
    def index(self) -> Index:
        """The index in its current state, opened again after an update.

        Raises:
            IndexUnavailableError: It is missing, being rebuilt, or was replaced by an index of another model, or the
                service is closed.
        """
        with self._lock:
            if self._batcher.closed:
                fail("index", "an open index", "a closed one", "open it again", IndexUnavailableError)
            try:
                if manifest_stamp(self._folder) == self._index.stamp:
                    return self._index
                fresh = open_index(self._folder)
            except (OSError, ValueError) as error:
                message = unreadable(error) if isinstance(error, OSError) else str(error)
                raise IndexUnavailableError(message) from error
            if fresh.manifest.weights != self._index.manifest.weights:
                fresh.close()
                message = "expected its previous model, got an index of another model; restart the service"
                raise IndexUnavailableError(f"`{self._folder}`: {message}")
            # The old one is not closed: other threads may still search it.
            self._index = fresh
            return fresh

    def search(
        self,
        text: str | None = None,
        k: int = 10,
        filters: SearchFilter | None = None,
        *,
        image: "ImageInput | None" = None,
        sort: str = "score",
    ) -> SearchResult[Hit]:
        """Find photos that match a text, several texts, an image, or a text and an image.

        Args:
            text: Description of the photos, or terms with operators, see :func:`parse_query`; ``None`` for an image
                alone.
            k: Number of results.
            filters: Conditions on the results.
            image: An image, or the bytes of its file, whose vector is added to that of the text.
            sort: ``"score"``, best first, or ``"date"``: the newest of those that fit.

        Raises:
            ValueError: The text is empty or too long or has operators only, the image is not an image or too large,
                the index was built from features, or ``k`` is not between 1 and 1000.
            OverloadedError: There are too many queries.
        """
        parsed = [] if text is None and image is not None else parse_query(_check_text(text))
        index = self.index
        prompt = self.calibration.prompt if self.calibration is not None else str
        terms = [(weight, self._text_vector(prompt(term))) for weight, term in parsed]
        vectors = [weight * vector for weight, vector in terms]
        if image is not None:
            vector = _unit_sum([*vectors, self._encode_image(index, image)[0][0]])
            return self._search_photos(index, vector, k, filters, sort, terms, with_image=True)
        whole = parsed[0][1] if len(parsed) == 1 and parsed[0][0] == 1 else ""
        return self._search_photos(index, _unit_sum(vectors), k, filters, sort, terms, text=whole)

    def more_like(
        self, number: int, k: int = 10, filters: SearchFilter | None = None, *, sort: str = "score"
    ) -> SearchResult[Hit]:
        """Find photos that are similar to one of the index, without that one."""
        index = self.index
        vector = index.photos.vectors([_photo(index, number).number])
        return self._search_photos(index, vector, k, filters, sort, without=number, with_image=True)

    def duplicates(self, threshold: float = DUPLICATE) -> list[tuple[PhotoInfo, ...]]:
        """Find groups of photos that are nearly the same, such as copies in other sizes or formats.

        A photo belongs to a group if its similarity with another photo of the group is at least ``threshold``. The
        groups are computed once for each state of the index.

        Args:
            threshold: Smallest similarity, above 0 and at most 1.

        Returns:
            Groups of two or more photos, the largest first; in a group the oldest photo first.

        Raises:
            ValueError: The threshold is out of its range.
            OverloadedError: Another thread has computed groups for longer than the timeout.
        """
        if check_number("threshold", threshold, f"{DUPLICATE} is usual", above=0) > 1:
            fail("threshold", "at most 1", threshold, f"{DUPLICATE} is usual")
        index = self.index
        key = index.stamp, float(threshold)
        with limit_work(self._grouping, self.settings.timeout, "searches for duplicates"):
            if self._groups is None or self._groups[0] != key:
                self._groups = key, near_duplicates(index.photos, float(threshold))
            numbers = self._groups[1]
        known = index.catalog.photos([number for group in numbers for number in group])
        found = (sorted((known[one] for one in group if one in known), key=lambda one: one.date) for group in numbers)
        return [tuple(_describe(index, photos)) for photos in found if len(photos) > 1]

    def captions_for_image(
        self, image: ImageInput, k: int = 10, filters: SearchFilter | None = None
    ) -> SearchResult[CaptionHit]:
        """Find captions of the index that describe an image."""
        index = self.index
        vector, decoded = self._encode_image(index, image)
        return self._search_captions(index, vector, k, filters, [decoded])

    def captions_for(self, number: int, k: int = 10, filters: SearchFilter | None = None) -> SearchResult[CaptionHit]:
        """Find captions of the index that describe one of its photos, including the photo's own."""
        index = self.index
        photo = _photo(index, number)
        inputs: Any = []
        if index.manifest.cross and index.source is not None:
            inputs, _ = read_inputs(self.model, index.source, [photo.name], index.manifest.max_pixels)
        return self._search_captions(index, index.photos.vectors([photo.number]), k, filters, inputs)

    def by_date(self, k: int = 60, start: int = 0, filters: SearchFilter | None = None) -> tuple[list[PhotoInfo], int]:
        """Photos without a query, newest first.

        Args:
            k: Number of photos.
            start: Position of the first one.
            filters: Conditions on the photos.

        Returns:
            The photos, and how many pass the filters in all.
        """
        k, start = _check_k(k), check_whole("start", start, least=0)
        index = self.index
        numbers, total = index.catalog.by_date(filters or SearchFilter(), start, k)
        known = index.catalog.photos(numbers)
        return _describe(index, [known[number] for number in numbers if number in known]), total

    def photo(self, number: int) -> Photo:
        """Catalog entry of a photo.

        Raises:
            UnknownPhotoError: There is no such photo.
        """
        return _photo(self.index, number)

    def describe(self, number: int) -> PhotoInfo:
        """Path, date, location and captions of a photo; errors as :meth:`photo`."""
        index = self.index
        return _describe(index, [_photo(index, number)])[0]

    def number_of(self, name: str) -> int | None:
        """Number of the photo with a name below the photo folder."""
        return self.index.catalog.number_of(name)

    def counts(self) -> dict[str, int]:
        """Numbers of texts found in the cache, of texts encoded, and of passes through the model."""
        return {
            "text_cache_hits": self._text_vector.cache_info().hits,
            "texts_encoded": self._batcher.texts,
            "text_batches": self._batcher.batches,
        }

    def read_photo(self, number: int) -> bytes:
        """Contents of a photo's file.

        Raises:
            ValueError: There is no such photo in the index, or the dataset has features only.
            OSError: Its file is missing.
        """
        source, name = self._locate(number)
        return source.read_image(name)

    def photo_stamp(self, number: int) -> str:
        """Text that changes when a photo's file, or the archive with it, changes; errors as :meth:`read_photo`."""
        source, name = self._locate(number)
        path = Path(source.path_of(name))
        file = next((one for one in (path, *path.parents) if one.is_file()), None)
        if file is None:
            return str(source.date(name))
        found = file.stat()
        return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}"

    def _locate(self, number: int) -> tuple[FileSource | DatasetSource, str]:
        """The source of a photo, and its name there."""
        index = self.index
        photo = _photo(index, number)
        if index.source is None:
            raise FileNotFoundError(2, "the photos of the index are missing", " ".join(index.manifest.photos))
        return index.source.locate(photo.name)

    def thumbnail(self, number: int, side: int = 224) -> "Image.Image":
        """A photo whose longer side is at most ``side`` pixels; errors as :meth:`read_photo`."""
        limit = self.index.manifest.max_pixels
        image = decode(self.read_photo(number), self.photo(number).name, max_pixels=limit, side=side)
        image.thumbnail((check_whole("side", side, least=1), side))
        return image

    def _search_photos(
        self,
        index: Index,
        vector: Vectors,
        k: int,
        filters: SearchFilter | None,
        sort: str,
        terms: Sequence[tuple[float, Vectors]] = (),
        *,
        text: str = "",
        with_image: bool = False,
        without: int | None = None,
    ) -> SearchResult[Hit]:
        """Photos for the vector of terms, of an image, or of both; a text alone may be reranked."""
        k = _check_k(k)
        by_date = check_choice("sort", sort, SORTS) == "date"
        rerank = self.settings.rerank if text and index.manifest.cross and index.source is not None else 0
        depth = MAX_RESULTS if by_date and not rerank else max(k, rerank)
        photos, values = _nearest(index.photos, index.catalog.photos, vector, depth + (without is not None), filters)
        threshold = self.threshold
        if rerank and index.source is not None:
            names, limit = [photo.name for photo in photos], index.manifest.max_pixels
            with self._heavy_work():
                values = pair_scores(self.model, index.source, names, text, max_pixels=limit)
            scores, threshold = index.manifest.calibration["text"](values), FITS
        elif not with_image:
            scores = self._score_terms(index, photos, values, terms)
        elif self.calibration is None:
            scores = index.manifest.calibration["photo"](values)
        else:
            added = sum((weight * one for weight, one in terms), np.zeros_like(vector[0]))
            scores, threshold = self.calibration.score_similar(values, added), SIMILAR
        rows = zip(_describe(index, photos), scores.tolist(), values.tolist(), strict=True)
        hits = [Hit(**vars(info), score=score, similarity=value, threshold=threshold) for info, score, value in rows]
        hits = sorted((hit for hit in hits if hit.number != without), key=lambda hit: -hit.similarity)
        if by_date and any(hit.fits for hit in hits):
            hits = sorted((hit for hit in hits if hit.fits), key=lambda hit: -hit.date)
        return SearchResult(tuple(hits[:k]), len(photos) if rerank else 0, threshold)

    def _score_terms(
        self, index: Index, photos: Sequence[Photo], values: Similarities, terms: Sequence[tuple[float, Vectors]]
    ) -> Similarities:
        """Scores of photos for the sum of the added terms, times 1 - score for each subtracted term.

        Calibrations are fitted on texts, and the difference of two texts is far from the vector of any text.
        """
        added = [weight * vector for weight, vector in terms if weight > 0]
        if len(added) == len(terms):
            return self._calibrate(index, values, _unit_sum(added)[0])
        vectors, scores = index.photos.vectors([photo.number for photo in photos]), np.ones(len(photos))
        if added:
            whole = _unit_sum(added)[0]
            scores = self._calibrate(index, vectors @ whole, whole)
        for weight, vector in terms:
            if weight < 0:
                scores = scores * (1 - self._calibrate(index, vectors @ vector, vector)) ** -weight
        return scores

    def _calibrate(self, index: Index, values: npt.ArrayLike, text: Vectors) -> Similarities:
        """Scores of similarities with the vector of a text, by the calibration of the model or else of the index."""
        return (
            index.manifest.calibration["text"](values) if self.calibration is None else self.calibration(values, text)
        )

    def _search_captions(
        self, index: Index, vector: Vectors, k: int, filters: SearchFilter | None, inputs: Sequence[Any]
    ) -> SearchResult[CaptionHit]:
        k = _check_k(k)
        if not index.catalog.count("captions"):
            fail("captions", "an index with captions", "none", "put .txt files beside the photos, or index a dataset")
        rerank = self.settings.rerank if index.manifest.cross and len(inputs) else 0
        captions, values = _nearest(index.captions, index.catalog.captions, vector, max(k, rerank), filters)
        threshold = self.threshold
        if rerank:
            with self._heavy_work():
                values = np.asarray(self.model.similarity(inputs, [one.text for one in captions]))[0]
            scores, threshold = index.manifest.calibration["text"](values), FITS
        else:
            scores = self._calibrate(index, values, index.captions.vectors([one.number for one in captions]))
        rows = zip(captions, scores.tolist(), values.tolist(), strict=True)
        hits = [
            CaptionHit(one.text, _path(index, one.name), one.name, one.photo, score, value, threshold)
            for one, score, value in rows
        ]
        hits.sort(key=lambda hit: -hit.similarity)
        return SearchResult(tuple(hits[:k]), len(captions) if rerank else 0, threshold)

    def _encode_image(self, index: Index, image: ImageInput) -> "tuple[Vectors, Image.Image]":
        if index.manifest.features is not None:
            fail("image", "an index of images", "one of features", "search with text, or for photos like one of them")
        decoded = decode(image, "image") if isinstance(image, bytes) else image
        with self._heavy_work():
            return image_vectors(self.model, [self.model.prepare_images([decoded])]), decoded

    def _heavy_work(self) -> AbstractContextManager[None]:
        """Limit how many image queries and rerankings run at the same time."""
        return limit_work(self._heavy, self.settings.timeout)


def _check_text(text: object) -> str:
    """Check a query; returns it on one line, with full-width letters as plain ones."""
    if not isinstance(text, str):
        fail("text", "a string", type(text).__name__, "describe the photo")
    plain = unicodedata.normalize("NFKC", text.replace("\0", " ").encode(errors="replace").decode())
    query = " ".join(plain.split())
    if not query:
        fail("text", "some words", repr(text[:20]), "describe the photo")
    if len(query) > MAX_TEXT:
        fail("text", f"at most {MAX_TEXT} characters", f"{len(query)}", "describe one photo in a sentence or two")
    return query


def _unit_sum(vectors: Sequence[Vectors]) -> Vectors:
    """Sum of vectors as a ``(1, D)`` unit vector."""
    total = np.sum(vectors, axis=0)
    length = float(np.linalg.norm(total))
    if length < _SHORTEST:
        fail("text", "terms that do not cancel each other", "a sum of zero", "subtract something else")
    return np.asarray(total[None] / length, dtype=np.float32)


def _check_k(k: int) -> int:
    number = check_whole("k", k, least=1)
    if number > MAX_RESULTS:
        fail("k", f"at most {MAX_RESULTS}", k, "request fewer results, and use filters")
    return number


def _path(index: Index, name: str) -> str:
    """Path of a photo for display."""
    with suppress(FileNotFoundError):
        if index.source is not None:
            source, own_name = index.source.locate(name)
            return source.path_of(own_name)
    roots = index.manifest.photos
    return str(Path(roots[0]) / name) if len(roots) == 1 else name


def _photo(index: Index, number: int) -> Photo:
    """Catalog entry of a photo."""
    found = index.catalog.photos([number])
    if number not in found:
        hint = "it may have been removed: search again"
        fail("number", "the number of a photo in the index", number, hint, UnknownPhotoError)
    return found[number]


def _describe(index: Index, photos: Sequence[Photo]) -> list[PhotoInfo]:
    """Photos with paths and captions, in the given order."""
    captions: dict[int, list[str]] = {photo.number: [] for photo in photos}
    for caption in index.catalog.captions_of(list(captions)).values():
        captions[caption.photo].append(caption.text)
    return [
        PhotoInfo(one.number, _path(index, one.name), one.name, one.date, one.from_camera, one.location, texts)
        for one, texts in zip(photos, map(tuple, captions.values()), strict=True)
    ]


def _nearest(
    engine: Engine,
    entries: Callable[[Sequence[int]], dict[int, _Entry]],
    vector: Vectors,
    k: int,
    filters: SearchFilter | None,
) -> tuple[list[_Entry], Similarities]:
    """Entries of the catalog with the most similar vectors, and their similarities."""
    found = engine.search(vector, k, filters)
    numbers = found.numbers[0].tolist()
    known = entries(numbers)
    there = [number in known for number in numbers]
    return [known[number] for number in numbers if number in known], found.scores[0][there].astype(np.float64)


def unreadable(error: OSError) -> str:
    """Message for an index whose files cannot be read."""
    return f"the index cannot be read ({error.strerror or error}): check that its folder exists, and try again"
