"""What a run has to do: compares the photos that are there with those in the index.

Writes photos with their vectors, in an order that leaves a right index whenever the process is killed.

One pass over the photos that may have changed: read, embed, write.

The beginning of a run: a new index, or one that this run fits.

Makes an index of photos, or brings it up to date.
"""

import time
import uuid
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bcls._core.errors import check_choice, check_whole, fail
from bcls._core.extras import check_device
from bcls._core.locks import sole_writer
from bcls._core.progress import Step, progress
from bcls.data.text_files import is_unicode
from bcls.search.calibration import calibrate
from bcls.search.catalog import CaptionOf, Catalog, Facts, Photo
from bcls.search.embedding import BATCH, PRECISIONS, Ready, hash_of, image_vectors, probe, read_ahead, text_vectors
from bcls.search.engine import ENGINES, Engine, Row, Vectors, open_engine, words_of
from bcls.search.index import FILE, IndexManifest, IndexSettings, read_index_manifest, write_index_manifest
from bcls.search.source import Item, Source, open_source

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel


class Plan(NamedTuple):
    """What to do.

    Attributes:
        read: Photos that are new or may have changed.
        gone: Numbers of photos in the index that are no longer there.
        unchanged: How many need nothing.
    """

    read: list[Item]
    gone: list[int]
    unchanged: int


def compare(items: Sequence[Item], looks: Mapping[str, tuple[int, str]], lacking: Collection[int]) -> Plan:
    """Compare photos with the index by a quick look at their files.

    Args:
        items: The photos that are there.
        looks: Number and quick look of the photos in the index, by name.
        lacking: Numbers in the index that have no vector yet, because a run was killed.

    Example:
        >>> compare([Item("a", "1"), Item("b", "2")], {"a": (1, "1"), "c": (2, "5")}, set())
        Plan(read=[Item(name='b', look='2')], gone=[2], unchanged=1)
    """
    lacks = set(lacking)
    read = []
    for item in items:
        number, look = looks.get(item.name, (None, ""))
        if number is None or look != item.look or number in lacks:
            read.append(item)
    there = {item.name for item in items}
    gone = [number for name, (number, _) in looks.items() if name not in there]
    return Plan(read, gone, len(items) - len(read))


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


def claim(folder: Path) -> None:
    """Make the folder of a new index; refuse one that holds something else."""
    if folder.exists() and not folder.is_dir():
        fail("out", "a folder", f"the file {folder}", "choose another --out")
    # A run that was killed at once may have left the lock and a hidden file.
    if (
        folder.is_dir()
        and not (folder / FILE).exists()
        and any(path.name != "lock" and not path.name.startswith(".") for path in folder.iterdir())
    ):
        got = f"{folder}, which has other files in it"
        fail("out", "a new or empty folder, or an index", got, "choose another --out: nothing is overwritten")
    folder.mkdir(parents=True, exist_ok=True)


def manifest_for(
    folder: Path,
    settings: IndexSettings,
    source: Source,
    items: list[Item],
    name: str,
    model: "RetrievalModel",
    old: IndexManifest | None,
) -> IndexManifest:
    """The manifest of this run, written for a new index and checked against the one there is."""
    weights = hash_of(model)
    if old is not None:
        _check_same(folder, settings, source, name, weights, old)
        most = max(old.max_pixels, settings.max_pixels)
        return replace(old, photos=str(source.path), model=_absolute(name), max_pixels=most)
    engine = check_choice("engine", settings.engine or "faiss", ENGINES)
    uri = _place(settings.uri or "")
    if (engine == "milvus") != bool(uri):
        expected = "a file or address with --engine milvus, and none with faiss"
        fail("uri", expected, f"{uri!r} with {engine}", "such as --engine milvus --uri photos.db")
    dimension, cross = probe(model, source.features([items[0].name]))
    features = settings.features
    manifest = IndexManifest(
        uuid.uuid4().hex,
        str(source.path),
        _absolute(name),
        weights,
        dimension,
        cross,
        engine,
        uri,
        features,
        {},
        settings.max_pixels,
    )
    write_index_manifest(folder, manifest)
    return manifest


def _check_same(
    folder: Path, settings: IndexSettings, source: Source, name: str, weights: str, old: IndexManifest
) -> None:
    another = "choose another --out, or delete the folder and index again"
    if weights != old.weights:
        expected = f"the model {old.model!r} with weights {old.weights[:12]}, which it was made with"
        fail(str(folder), expected, f"{name!r} with weights {weights[:12]}", another)
    if settings.engine is not None and settings.engine != old.engine:
        fail("engine", f"{old.engine!r}, which {folder} was made with", repr(settings.engine), another)
    if settings.uri is not None and _place(settings.uri) != old.uri:
        fail("uri", f"{old.uri or 'none'}, which {folder} was made with", repr(settings.uri), another)
    if settings.features != old.features:
        fail("features", f"{old.features!r}, which {folder} was made with", repr(settings.features), another)
    # Photos that moved as a whole keep their names, and so their entries.
    if str(source.path) != old.photos and Path(old.photos).exists():
        fail("PHOTOS", f"{old.photos}, which {folder} is an index of", str(source.path), another)


def _place(uri: str) -> str:
    """Where Milvus is, as it holds from everywhere."""
    return str(Path(uri).absolute()) if uri and "://" not in uri else uri


def _absolute(name: str) -> str:
    """A model's folder as a path that holds from everywhere; names stay names."""
    return str(Path(name).absolute()) if Path(name).is_dir() else name


@dataclass(frozen=True)
class Report:
    """What a run did: numbers of photos, and why files were skipped, by name."""

    photos: int
    added: int
    updated: int
    removed: int
    unchanged: int
    captions: int
    skipped: dict[str, str]
    seconds: float


def build_index(photos: str | Path, settings: IndexSettings, *, model: "RetrievalModel | None" = None) -> Report:
    """Make an index, or bring it up to date with what was added, changed and removed.

    A photo is looked at again when the size or time of its files changed, and embedded again when its contents did.
    What is done is kept when the process is killed, and the next run goes on from there.

    Args:
        photos: A folder, zip, tar or dataset.
        settings: See :class:`IndexSettings`.
        model: The model itself, where it is already in memory; ``settings.model`` is then its name.

    Returns:
        What was done.

    Raises:
        ValueError: The index was made with another model, engine or version or of other photos, another process is
            writing it, or there are no photos.
        OSError: Photos are missing, or the disk is full or read-only.
    """
    started = time.monotonic()
    folder = Path(settings.out)
    check_whole("workers", settings.workers, least=0)
    check_whole("max_pixels", settings.max_pixels, least=1)
    check_choice("precision", settings.precision, PRECISIONS)
    check_device(settings.device)
    source = open_source(Path(photos), settings.features, captions=settings.captions)
    found = source.items()
    items = [item for item in found if is_unicode(item.name)]
    if not items:
        fail(
            str(photos),
            "at least one picture",
            "none",
            "check the path; a whole index is removed by deleting its folder",
        )
    claim(folder)
    with sole_writer(folder), ExitStack() as stack, warnings.catch_warnings():
        # Damaged notes of cameras are common and harm nobody, and what is too large is listed. Here and not where
        # photos are read: the filters are those of the whole process, and threads would restore each other's.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        for left in folder.glob(f".{FILE}.*.tmp"):
            left.unlink()
        old = read_index_manifest(folder) if (folder / FILE).exists() else None
        name = settings.model or (old.model if old else "photo")
        if model is None:
            from bcls.models import load

            model = load(name)
        model.to(settings.device).eval()
        manifest = manifest_for(folder, settings, source, items, name, model, old)
        catalog = stack.enter_context(closing(Catalog(folder / "catalog.sqlite")))
        images, texts = (
            stack.enter_context(closing(_engine(folder, manifest, what))) for what in ("photos", "captions")
        )
        run = Run(Writer(catalog, images, texts, model), source, settings)
        odd = [ascii(item.name) for item in found if not is_unicode(item.name)]
        run.skipped.update((name, f"`{name}`: expected a name that is text; rename the file") for name in odd)
        plan = compare(items, catalog.looks(), run.writer.repair())
        run.go(plan, model)
        images.finish()
        texts.finish()
        if run.added or run.updated or run.removed or not manifest.calibration:
            calibration = calibrate(
                catalog, images, texts, model, source, cross=manifest.cross, max_pixels=manifest.max_pixels
            )
            manifest = replace(manifest, calibration=calibration)
        write_index_manifest(folder, manifest)
        return Report(
            catalog.count(),
            run.added,
            run.updated,
            run.removed,
            plan.unchanged + run.touched,
            catalog.count("captions"),
            run.skipped,
            time.monotonic() - started,
        )


def _engine(folder: Path, manifest: IndexManifest, what: str) -> Engine:
    return open_engine(manifest.engine, folder / what, manifest.uri, manifest.collection(what), manifest.dimension)
