"""Settings of a search service.

Checks of what people search for.

What a search gives.

Remembers the last answers of a function.

An index as it is at one moment, with the photos it speaks of.

Searches an index: one object for the command line and for a server.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_whole, fail
from bcls.data.images import decode
from bcls.search.batcher import Batcher, OverloadedError
from bcls.search.calibration import FITS
from bcls.search.catalog import Photo
from bcls.search.embedding import image_vectors, prepare, read_inputs, scores_of, text_vectors
from bcls.search.engine import IndexUnavailableError, Vectors, Where
from bcls.search.index import FILE, Index, open_index
from bcls.search.source import Source

if TYPE_CHECKING:
    from PIL import Image

    from bcls.models.base import RetrievalModel


@dataclass(frozen=True)
class ServiceSettings:
    """How much a service takes on at a time."""

    cache: int = 1024
    """Texts whose vectors are remembered; 0 for none."""
    wait: float = 0.01
    """Seconds that the first text of a batch waits for others, where the batch before had several."""
    queue: int = 256
    """Texts that may wait; more are refused."""
    timeout: float = 10.0
    """Seconds after which a query is given up."""
    rerank: int = 50
    """Results of the vectors that are ranked again, for models with cross attention; 0 for none."""


#: Longest query, in characters, and most results.
MAX_TEXT, MAX_RESULTS = 2000, 1000


def check_text(text: str) -> str:
    """Check a query.

    Returns:
        The text on one line.

    Raises:
        ValueError: It is empty, or longer than 2000 characters.
    """
    if not isinstance(text, str):
        fail("text", "a string", type(text).__name__, "write what the photo should show")
    query = " ".join(text.replace("\0", " ").encode(errors="replace").decode().split())
    if not query:
        fail("text", "some words", repr(text[:20]), "write what the photo should show")
    if len(query) > MAX_TEXT:
        fail("text", f"at most {MAX_TEXT} characters", f"{len(query)}", "describe one photo in a sentence or two")
    return query


def check_results(k: int) -> int:
    """Check a number of results, from 1 to 1000."""
    if check_whole("k", k, least=1) > MAX_RESULTS:
        fail("k", f"at most {MAX_RESULTS}", k, "ask for fewer results, and narrow them with filters")
    return k


@dataclass(frozen=True)
class Hit:
    """A photo that was found.

    Attributes:
        number: Its number in the index, never used for another photo.
        path: Its path; for an archive the archive's path and the name inside.
        name: Its name below the folder of photos.
        score: Between 0 and 1, see :class:`bcls.search.Calibration`.
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


_Answer = TypeVar("_Answer")


class LastUsed(Generic[_Answer]):
    """The answers for the ``size`` texts that were asked for last; threads may share it.

    Example:
        >>> lengths = LastUsed(len, 1)
        >>> lengths("abc"), lengths("abc"), lengths.hits
        (3, 3, 1)
    """

    def __init__(self, function: Callable[[str], _Answer], size: int) -> None:
        self._function = function
        self._size = check_whole("cache", size, least=0)
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self.hits = 0

    def __call__(self, text: str) -> _Answer:
        """The function's answer, remembered or new."""
        with self._lock:
            if text in self._answers:
                self._answers.move_to_end(text)
                self.hits += 1
                return self._answers[text]
        answer = self._function(text)
        with self._lock:
            self._answers[text] = answer
            while len(self._answers) > self._size:
                self._answers.popitem(last=False)
        return answer


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


#: Texts that go through the model together at most, and queries with pictures or rankings by it that run at once.
_TOGETHER, _HEAVY = 32, 2


class Service:
    """Answers searches from any number of threads.

    Texts that come at the same time share a pass through the model, those that come again are remembered. When the
    index is brought up to date, the next search sees it. Only photos that are in the index are ever opened.

    Args:
        folder: The index.
        model: The model of the index, or the name under which it is found now; its own name by default.
        settings: How much is taken on at a time.

    Raises:
        ValueError: The folder is no finished index, or was made with another model.
    """

    def __init__(
        self,
        folder: str | Path,
        model: "str | RetrievalModel | None" = None,
        settings: ServiceSettings | None = None,
    ) -> None:
        self.settings = settings or ServiceSettings()
        self._folder = Path(folder)
        self._lock = threading.Lock()
        self._open = open_now(self._folder)
        index = self._open.index
        if model is None or isinstance(model, str):
            self.model = index.load_model(model)
        else:
            index.check_model(model, type(model).__name__)
            self.model = model.eval()
        check_whole("rerank", self.settings.rerank, least=0)
        self._heavy = threading.BoundedSemaphore(_HEAVY)
        reader = self.model.for_queries()
        self._batcher = Batcher(
            lambda texts: text_vectors(reader, texts),
            batch=_TOGETHER,
            wait=self.settings.wait,
            waiting=self.settings.queue,
            timeout=self.settings.timeout,
        )
        self._vector_of_text = LastUsed(self._batcher, self.settings.cache)

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads and close the files."""
        self._batcher.close()
        self._open.index.close()

    @property
    def index(self) -> Index:
        """The index, as it is now."""
        return self._now().index

    def search(self, text: str, k: int = 10, where: Where | None = None) -> Answer:
        """Find photos for a text.

        Args:
            text: What they should show.
            k: How many.
            where: What they are limited to.

        Raises:
            ValueError: The text is empty or too long, or ``k`` is not from 1 to 1000.
            OverloadedError: Too much is going on.
        """
        query, k = check_text(text), check_results(k)
        now = self._now()
        vector = self._vector_of_text(query)
        if not (now.index.manifest.cross and self.settings.rerank and now.source is not None):
            found = now.index.photos.search(vector[None], k, where)
            return Answer(now.hits(found.numbers[0], found.scores[0], "text"))
        found = now.index.photos.search(vector[None], max(k, self.settings.rerank), where)
        photos = now.photos(found.numbers[0])
        with self._alone():
            names, most = [photo.facts.name for photo in photos], now.index.manifest.max_pixels
            scores = scores_of(self.model, now.source, names, query, max_pixels=most)
        order = np.argsort(-scores, kind="stable")[:k]
        numbers = np.array([photos[place].number for place in order], dtype=np.int64)
        return Answer(now.hits(numbers, scores[order], "text"), reranked=len(photos))

    def search_image(self, image: "bytes | Image.Image", k: int = 10, where: Where | None = None) -> Answer:
        """Find photos like a picture.

        Args:
            image: A picture, or the bytes of its file.
            k: How many.
            where: What they are limited to.

        Raises:
            ValueError: It is no picture or too large, or the index is one of features.
        """
        k = check_results(k)
        now = self._now()
        found = now.index.photos.search(self._vector_of_image(now, image), k, where)
        return Answer(now.hits(found.numbers[0], found.scores[0], "photo"))

    def more_like(self, number: int, k: int = 10, where: Where | None = None) -> Answer:
        """Find photos like one of the index, without that one."""
        k = check_results(k)
        now = self._now()
        photo = self.photo(number)
        found = now.index.photos.search(now.index.photos.vectors([photo.number]), k + 1, where)
        others = found.numbers[0] != photo.number
        return Answer(now.hits(found.numbers[0][others][:k], found.scores[0][others][:k], "photo"))

    def captions_for_image(
        self, image: "bytes | Image.Image", k: int = 10, where: Where | None = None
    ) -> CaptionAnswer:
        """Find captions of the index that describe a picture."""
        now = self._now()
        opened = decode(image, "image") if isinstance(image, bytes) else image
        vector = self._vector_of_image(now, opened)
        return self._captions(now, vector, k, where, [opened])

    def captions_for(self, number: int, k: int = 10, where: Where | None = None) -> CaptionAnswer:
        """Find captions of the index that describe one of its photos; its own are among them."""
        now = self._now()
        photo = self.photo(number)
        inputs: Any = []
        if now.index.manifest.cross and now.source is not None:
            inputs, _ = read_inputs(now.source, [photo.facts.name], now.index.manifest.max_pixels)
        return self._captions(now, now.index.photos.vectors([photo.number]), k, where, inputs)

    def photo(self, number: int) -> Photo:
        """What is known about a photo of the index.

        Raises:
            ValueError: There is no such photo.
        """
        found = self.index.catalog.photos([number])
        if number not in found:
            fail("number", "the number of a photo in the index", number, "it may have been removed: search again")
        return found[number]

    def number_of(self, name: str) -> int | None:
        """Number of the photo with a name below the folder of photos."""
        return self.index.catalog.number_of(name)

    def path_of(self, name: str) -> str:
        """The path of a photo as a person knows it, by its name below the folder of photos."""
        return self._now().path(name)

    def counts(self) -> dict[str, int]:
        """How many texts were remembered, went through the model, and in how many passes."""
        return {
            "texts_remembered": self._vector_of_text.hits,
            "texts_encoded": self._batcher.texts,
            "text_batches": self._batcher.batches,
        }

    def read_photo(self, number: int) -> bytes:
        """A photo's file.

        Raises:
            ValueError: There is no such photo in the index, or the dataset has features alone.
            OSError: Its file is gone.
        """
        now = self._now()
        photo = self.photo(number)
        if now.source is None:
            raise FileNotFoundError(2, "the photos of the index are gone", now.index.manifest.photos)
        return now.source.picture(photo.facts.name)

    def thumbnail(self, number: int, side: int = 224) -> "Image.Image":
        """A photo in small, its longer side at most ``side`` pixels; errors as of :meth:`read_photo`."""
        most = self.index.manifest.max_pixels
        image = decode(self.read_photo(number), self.photo(number).facts.name, max_pixels=most)
        image.thumbnail((check_whole("side", side, least=1), side))
        return image

    def _captions(
        self, now: Opened, vector: Vectors, k: int, where: Where | None, inputs: Sequence[Any]
    ) -> CaptionAnswer:
        k = check_results(k)
        if not now.index.catalog.count("captions"):
            remedy = "put .txt files beside the photos, or index a dataset"
            fail("captions", "an index with captions", "one without", remedy)
        rerank = self.settings.rerank if now.index.manifest.cross and len(inputs) else 0
        found = now.index.captions.search(vector, max(k, rerank), where)
        captions = now.index.catalog.captions([int(one) for one in found.numbers[0] if one >= 0])
        pairs = [
            (captions[int(n)], s) for n, s in zip(found.numbers[0], found.scores[0], strict=True) if int(n) in captions
        ]
        if rerank:
            with self._alone():
                scores = self.model.similarity(inputs, [one.text for one, _ in pairs])[0].tolist()
            pairs = sorted(((one, s) for (one, _), s in zip(pairs, scores, strict=True)), key=lambda pair: -pair[1])
        calibrated = now.index.manifest.calibration["text"]([similarity for _, similarity in pairs])
        hits = [
            CaptionHit(
                one.text,
                now.path(one.name),
                one.name,
                one.photo,
                float(score),
                float(similarity),
                bool(score >= FITS),
            )
            for (one, similarity), score in zip(pairs[:k], calibrated, strict=False)
        ]
        return CaptionAnswer(tuple(hits), reranked=len(pairs) if rerank else 0)

    def _vector_of_image(self, now: Opened, image: "bytes | Image.Image") -> Vectors:
        if now.index.manifest.features is not None:
            fail("image", "an index of pictures", "one of features", "search with text, or for more like a photo")
        opened = decode(image, "image") if isinstance(image, bytes) else image
        with self._alone():
            return image_vectors(self.model, [prepare(self.model, [opened])])

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A turn with the model, for long work."""
        if not self._heavy.acquire(timeout=self.settings.timeout):
            raise OverloadedError(math.ceil(self.settings.timeout))
        try:
            yield
        finally:
            self._heavy.release()

    def _now(self) -> Opened:
        """The index as it is now; opened again where a run has ended since.

        Raises:
            IndexUnavailableError: It is gone, being made anew, or now one of another model.
        """
        with self._lock:
            try:
                changed = stamp_of(self._folder) != self._open.stamp
                fresh = open_now(self._folder) if changed else self._open
            except OSError as error:
                raise IndexUnavailableError(unreadable(error)) from error
            except ValueError as error:
                raise IndexUnavailableError(str(error)) from error
            if changed:
                if fresh.index.manifest.weights != self._open.index.manifest.weights:
                    fresh.index.close()
                    told = "expected the model it had, got an index of another model; start the service again"
                    raise IndexUnavailableError(f"`{self._folder}`: {told}")
                # Not closed here: searches of other threads may still read the old one.
                self._open = fresh
            return self._open
