"""Build and update an index of photos.

The order of the writes keeps the index consistent whenever the process is killed: vectors are deleted before their
catalog entries, and inserted after them.
"""

import time
import uuid
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import bcls.search.embedding as embedding
from bcls._core.config import check_field_types
from bcls._core.errors import check_choice, check_whole, fail, visible
from bcls._core.locks import lock_folder
from bcls._core.progress import Step, progress
from bcls.data.images import MAX_PIXELS
from bcls.data.text_files import is_unicode
from bcls.models.loading import SHIPPED
from bcls.search.calibration import calibrate
from bcls.search.catalog import IndexedCaption, Photo
from bcls.search.embedding import LoadedPhoto, SearchModel, image_vectors, text_vectors
from bcls.search.engine import ENGINES, VectorRow, Vectors, words_of
from bcls.search.index import FILE, Index, IndexManifest, open_parts, read_index_manifest, write_index_manifest
from bcls.search.source import PhotoSource, SourceItem, absolute, open_source

#: Photos are written together after this many seconds or photos.
_SECONDS, _TOGETHER = 5.0, 512
#: Photos in the first batch of a run.
_FIRST = 8
#: Captions per batch when missing vectors are restored.
_REPAIR_BATCH = 512


@dataclass(frozen=True)
class IndexSettings:
    """Settings of ``bcls index``.

    Attributes:
        out: Folder of the index, which is created or updated.
        model: Name or folder of a model; by default that of the index, or photo for a new index.
        engine: Vector engine: faiss (inside the folder, the default) or milvus.
        uri: With milvus: a file such as photos.db, or the address of a server.
        features: Name of features of the dataset, for a model that reads features instead of images.
        captions: Read captions: those of a dataset, and .txt and .json files beside the photos; stored in the index,
            and on for a new one.
        exclude: Patterns of names to leave out, such as *.png or 2023/raw/*; stored in the index, '' for none.
        follow_links: Follow links that leave a folder; stored in the index, and off for a new one.
        workers: Threads that read and decode images; 0 for one per core.
        max_pixels: Images with more pixels are skipped; stored in the index, and 80 million for a new one.
        device: Device of the model, such as cuda.
        precision: Precision of the image networks: float32, or bfloat16, twice as fast on processors that support it.
        json: Print the report as JSON.
    """

    out: str
    model: str | None = None
    engine: str | None = None
    uri: str | None = None
    features: str | None = None
    captions: bool | None = None
    exclude: list[str] = field(default_factory=list)
    follow_links: bool | None = None
    workers: int = 0
    max_pixels: int | None = None
    device: str = "cpu"
    precision: str = "float32"
    json: bool = False


@dataclass(frozen=True)
class IndexReport:
    """Result of a run.

    Attributes:
        photos: Number of photos in the index.
        added: Number of new photos.
        updated: Number of changed photos.
        removed: Number of deleted photos.
        unchanged: Number of photos that did not change.
        captions: Number of captions in the index.
        skipped: Why photos and folders were skipped, by name.
        reasons: Number of skipped files by reason, with those that are not listed, such as videos.
        seconds: Duration.
        runtime: What ran the model, ``"ONNX Runtime"`` or ``"torch"``.
    """

    photos: int
    added: int
    updated: int
    removed: int
    unchanged: int
    captions: int
    skipped: dict[str, str]
    reasons: dict[str, int]
    seconds: float
    runtime: str = ""


def build_index(
    photos: str | Path | Sequence[str | Path], settings: IndexSettings, *, model: "SearchModel | None" = None
) -> IndexReport:
    """Build an index, or update it with photos that were added, changed and removed.

    A photo is read again when the size or time of its files changed, and embedded again when its contents changed.
    Completed work is kept when the process is killed, and the next run continues from there.

    Args:
        photos: A folder, zip, tar or dataset, or several of them.
        settings: See :class:`IndexSettings`.
        model: The model, if it is already in memory; ``settings.model`` is then its name.

    Returns:
        What was done.

    Raises:
        ValueError: The index belongs to another model, engine, format version or other photos, another process is
            writing it, or there are no photos.
        OSError: Photos are missing, or the disk is full or read-only.
    """
    started = time.monotonic()
    folder = Path(settings.out)
    check_whole("workers", settings.workers, least=0)
    check_choice("precision", settings.precision, embedding.PRECISIONS)
    check_field_types({key: getattr(settings, key) for key in ("captions", "exclude", "follow_links")}, IndexSettings)
    paths = [Path(photos)] if isinstance(photos, str | Path) else [Path(path) for path in photos]
    if not paths:
        fail("photos", "a folder, zip, tar or dataset", "none", "name at least one, before --exclude and its patterns")
    old = read_index_manifest(folder) if (folder / FILE).exists() else None
    exclude = [one for one in settings.exclude or (old.exclude if old else []) if one]
    follow = getattr(old, "follow_links", False) if settings.follow_links is None else settings.follow_links
    captions = getattr(old, "captions", True) if settings.captions is None else settings.captions
    limit = getattr(old, "index_pixels", MAX_PIXELS) if settings.max_pixels is None else settings.max_pixels
    limit = check_whole("max_pixels", limit, least=1)
    source = open_source(*paths, features=settings.features, captions=captions, exclude=exclude, follow_links=follow)
    scan = source.scan()
    if not scan.items:
        got = ", ".join(f"{number} {reason}" for reason, number in count_reasons(scan.skipped, scan.others).items())
        hint = "check the path; to remove an index, delete its folder"
        fail(" ".join(map(str, paths)), "at least one image", got or "none", hint)
    name = settings.model or (old.model if old else "photo")
    roots = [str(absolute(path)) for path in paths]
    stored: dict[str, Any] = {"photos": roots, "model": _absolute(name), "index_pixels": limit}
    stored |= {"captions": captions, "exclude": exclude, "follow_links": follow}
    if old is None:
        _check_engine(settings)
    # Before the folder is created: a wrong engine, model or device leaves nothing behind.
    model = embedding.ready_model(name if model is None else model, settings.device, settings.precision)
    _create_folder(folder)
    hint = "wait until it has finished, or choose another --out"
    lock = lock_folder(folder, "an index that no other process is writing", hint, name="lock")
    with lock, warnings.catch_warnings():
        # Damaged EXIF data is common and harmless, and images that are too large are reported. The filter is set here,
        # not where images are read: it is global, and threads would restore the filters of each other.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        for temporary in folder.glob(f".{FILE}.*.tmp"):
            temporary.unlink()
        old = read_index_manifest(folder) if (folder / FILE).exists() else None
        if old is None:
            dimension, cross = embedding.probe(model, source.features([scan.items[0].name]))
            manifest = IndexManifest(
                identity=uuid.uuid4().hex,
                weights=embedding.model_hash(model),
                dimension=dimension,
                cross=cross,
                engine=settings.engine or "faiss",
                uri=_absolute_uri(settings.uri or ""),
                features=settings.features,
                calibration={},
                max_pixels=limit,
                **stored,
            )
            write_index_manifest(folder, manifest)
        else:
            _check_unchanged(old, settings, roots, name, model)
            manifest = replace(old, max_pixels=max(old.max_pixels, limit), **stored)
        with closing(open_parts(folder, manifest, read_only=False)) as index:
            run = IndexRun(index, model, source, settings)
            run.skipped = {name if is_unicode(name) else ascii(name): text for name, text in scan.skipped.items()}
            run.update(scan.items, scan.unreadable)
            index.photos.finish()
            index.captions.finish()
            if any(run.counts[change] for change in ("added", "updated", "removed")) or not manifest.calibration:
                pairs = partial(embedding.pair_scores, model, source, max_pixels=manifest.max_pixels)
                scores = pairs if manifest.cross else None
                calibration = calibrate(index.catalog, index.photos, index.captions, model, scores)
                manifest = replace(manifest, calibration=calibration)
            write_index_manifest(folder, manifest)
            return IndexReport(
                photos=index.catalog.count(),
                **run.counts,
                captions=index.catalog.count("captions"),
                skipped=run.skipped,
                reasons=count_reasons(run.skipped, scan.others),
                seconds=time.monotonic() - started,
                runtime=embedding.runtime_of(model),
            )


#: Reasons for skipping a file, by a phrase of the message.
_REASONS = {
    "pillow-heif": 'HEIC (pip install "bcls[heif]")',
    "RAW file": "RAW without preview",
    "an empty file": "empty",
    "something else": "not an image",
    "a damaged one": "damaged",
    "pixels": "too large",
    "an image of at most": "too large",
    "leaves the folder": "link that leaves the folder",
    "not a regular file": "not a regular file",
    "photos in the index are kept": "unreadable folder",
    "not valid text": "invalid name",
}


def count_reasons(skipped: Mapping[str, str], others: Mapping[str, int]) -> dict[str, int]:
    """Number of skipped files by reason, most frequent first.

    Args:
        skipped: Messages by name.
        others: Numbers of files of other kinds.

    Example:
        >>> count_reasons({"a.jpg": "`a.jpg`: expected an image, got an empty file; copy it again"}, {"video": 2})
        {'video': 2, 'empty': 1}
    """
    found = Counter(others)
    for text in skipped.values():
        message = text.partition("`: ")[2]
        found[next((reason for phrase, reason in _REASONS.items() if phrase in message), "unreadable")] += 1
    return dict(found.most_common())


def _create_folder(folder: Path) -> None:
    """Create the folder of a new index; raise an error if it contains something else."""
    if folder.exists() and not folder.is_dir():
        fail("out", "a folder", f"the file {folder}", "choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    # A killed run may have left the lock and a hidden file.
    others = [path for path in folder.iterdir() if path.name != "lock" and not path.name.startswith(".")]
    if others and not (folder / FILE).exists():
        got = f"{folder}, which contains other files"
        fail("out", "a new or empty folder, or an index", got, "choose another --out: nothing is overwritten")


def _check_engine(settings: IndexSettings) -> None:
    """Check the engine of a new index."""
    engine = check_choice("engine", settings.engine or "faiss", ENGINES)
    if (engine == "milvus") != bool(settings.uri):
        expected = "a file or address with --engine milvus, and none with faiss"
        hint = "for example --engine milvus --uri photos.db"
        fail("uri", expected, f"{settings.uri or ''!r} with {engine}", hint)


def _check_unchanged(
    old: IndexManifest, settings: IndexSettings, roots: list[str], name: str, model: SearchModel
) -> None:
    """Raise an error if this run does not match an existing index."""
    hint = "choose another --out, or delete the folder and build the index again"
    folder = Path(settings.out)
    old.check_model(folder, model, name)
    changes = (
        ("engine", repr(old.engine), settings.engine not in (None, old.engine)),
        ("uri", old.uri or "none", settings.uri is not None and _absolute_uri(settings.uri) != old.uri),
        ("features", repr(old.features), settings.features != old.features),
    )
    for key, built_with, changed in changes:
        if changed:
            fail(key, f"{built_with}, which {folder} was built with", repr(getattr(settings, key)), hint)
    # A folder may be added. If a whole folder was moved, names and entries stay the same.
    real = {Path(path).resolve() for path in roots}
    if any(Path(path).resolve() not in real and Path(path).exists() for path in old.photos):
        fail("photos", f"{' '.join(old.photos)}, which {folder} is an index of", " ".join(roots), hint)


def _absolute_uri(uri: str) -> str:
    return str(Path(uri).absolute()) if uri and "://" not in uri else uri


def _absolute(name: str) -> str:
    """Absolute path of a model's folder; names of packaged models and of the hub are unchanged."""
    return str(Path(name).absolute()) if name not in SHIPPED and Path(name).is_dir() else name


class IndexRun:
    """One update of an index: reads, embeds and writes the photos that may have changed.

    The order of the writes is essential: vectors are deleted before entries, entries inserted before vectors; see
    :class:`Catalog`.

    Args:
        index: The index, open for writing.
        model: The model of the index.
        source: The photos.
        settings: Settings of the run.

    Attributes:
        counts: Numbers of photos that were added, updated, removed and unchanged; see :class:`IndexReport`.
        skipped: Why photos were skipped, by name.
    """

    def __init__(self, index: Index, model: SearchModel, source: PhotoSource, settings: IndexSettings) -> None:
        self._catalog, self._photos, self._captions = index.catalog, index.photos, index.captions
        self._model, self._source, self._settings = model, source, settings
        self._max_pixels = index.manifest.index_pixels
        self.counts = dict.fromkeys(("added", "updated", "removed", "unchanged"), 0)
        self.skipped: dict[str, str] = {}
        self._stamps: dict[str, tuple[int, str]] = {}
        self._missing: set[int] = set()
        self._denied: set[str] = set()  # without permission to read them; their entries are kept
        self._waiting: list[tuple[LoadedPhoto, Vectors]] = []
        self._touched: list[Photo] = []
        self._last_write, self._written = time.monotonic(), False

    def update(self, items: Sequence[SourceItem], unreadable: tuple[str, ...] = ()) -> None:
        """Bring the index up to date.

        Args:
            items: The photos.
            unreadable: Folders that cannot be listed now, whose photos are kept.
        """
        self._missing = self._repair()
        self._stamps = self._catalog.stamps()
        # Read again what is new, has files of another size or time, or was left without a vector by a killed run.
        current = {(name, stamp) for name, (number, stamp) in self._stamps.items() if number not in self._missing}
        changed = [item for item in items if item not in current]
        self.counts["unchanged"] = len(items) - len(changed)
        if changed:
            with progress("indexing", len(changed)) as step:
                try:
                    self._embed(changed, step)
                except KeyboardInterrupt:
                    self._write()
                    raise
                self._write()
        # Last, so that photos that were only moved could reuse their vectors.
        kept = {item.name for item in items}.difference(self.skipped) | self._denied
        old = {name: number for name, (number, _) in self._stamps.items() if not name.startswith(unreadable)}
        gone = [number for name, number in old.items() if name not in kept]
        self._delete_vectors(gone)
        self._catalog.remove(gone)
        self.counts["removed"] = len(gone)

    def _repair(self) -> set[int]:
        """Repair what a killed run left: embeds captions without a vector, and returns photos without one."""
        catalog = self._catalog
        entries, vectors = catalog.numbers("captions"), self._captions.numbers()
        self._captions.delete(np.setdiff1d(vectors, entries).tolist())
        missing = np.setdiff1d(entries, vectors).tolist()
        for start in range(0, len(missing), _REPAIR_BATCH):
            found = list(catalog.captions(missing[start : start + _REPAIR_BATCH]).values())
            dates = {number: one.date for number, one in catalog.photos([one.photo for one in found]).items()}
            self._add_captions(found, text_vectors(self._model, [one.text for one in found]), dates)
        entries, vectors = catalog.numbers(), self._photos.numbers()
        self._photos.delete(np.setdiff1d(vectors, entries).tolist())
        return set(np.setdiff1d(entries, vectors).tolist())

    def _embed(self, items: list[SourceItem], step: Step) -> None:
        """Read and embed photos, and write them from time to time."""
        started = time.monotonic()
        batch: list[LoadedPhoto] = []
        known, most = self._known_vector, self._max_pixels
        load = partial(embedding.load_photo, source=self._source, model=self._model, known=known, max_pixels=most)
        with closing(embedding.read_ahead(items, load, self._settings.workers)) as loaded:
            for done, (item, one) in enumerate(zip(items, loaded, strict=True), start=1):
                if isinstance(one, Exception):
                    self._skip(item.name, one)
                elif one.vector is None:
                    batch.append(one)
                elif self._is_unchanged(one):
                    self._touched.append(one.photo)
                    self.counts["unchanged"] += 1
                else:
                    self._waiting.append((one, one.vector))
                # The first write is early, so that a run that is killed soon keeps something.
                due = time.monotonic() - self._last_write > _SECONDS
                full = min(embedding.BATCH, _FIRST) if not self._written else embedding.BATCH
                if batch and (len(batch) >= full or due or done == len(items)):
                    self._embed_batch(batch)
                    batch = []
                if due or len(self._waiting) >= (_TOGETHER if self._written else 1):
                    self._write()
                step(done, f"{done / max(time.monotonic() - started, 1e-9):.0f} photos/s")

    def _skip(self, name: str, error: Exception) -> None:
        text = visible(f"`{name}`: {error.strerror or error}") if isinstance(error, OSError) else str(error)
        self.skipped[name] = " ".join(text.split()) or "too large for the memory"
        if isinstance(error, PermissionError):
            self._denied.add(name)

    def _embed_batch(self, batch: list[LoadedPhoto]) -> None:
        vectors = image_vectors(self._model, [one.prepared for one in batch], self._settings.precision)
        for one, vector in zip(batch, vectors, strict=True):
            if np.isfinite(vector).all():
                self._waiting.append((one, vector))
            else:
                self.skipped[one.photo.name] = f"`{one.photo.name}`: the model returned no finite vector"

    def _known_vector(self, name: str, sha256: str) -> tuple[int, Vectors] | None:
        """Number and vector of a photo with these contents. Called by the reading threads."""
        number = self._catalog.number_with_hash(sha256, name)
        if number is None or number in self._missing:
            return None
        try:
            return number, self._photos.vectors([number])[0]
        except ValueError:  # replaced in the meantime
            return None

    def _is_unchanged(self, one: LoadedPhoto) -> bool:
        """Whether only the stamp of a photo changed."""
        number = one.photo.number
        if self._stamps.get(one.photo.name, (None, ""))[0] != number:
            return False
        return tuple(caption.text for caption in self._catalog.captions_of([number]).values()) == one.captions

    def _write(self) -> None:
        """Write the photos that are waiting, and delete the entries that they replace."""
        self._touch()
        names = [one.photo.name for one, _ in self._waiting]
        replaced = [self._stamps[name][0] for name in names if name in self._stamps]
        if self._waiting:
            entries = [(one.photo, one.captions) for one, _ in self._waiting]
            caption_vectors = text_vectors(self._model, [text for _, captions in entries for text in captions])
            self._delete_vectors(replaced)
            numbers = self._catalog.put(entries, replaced)
            photos = [photo._replace(number=number) for number, (photo, _) in zip(numbers, entries, strict=True)]
            # Captions are sorted by number, which is the order of insertion.
            captions = list(self._catalog.captions_of(numbers).values())
            self._add_vectors(photos, np.stack([vector for _, vector in self._waiting]), captions, caption_vectors)
        # Entries without a vector, left by a killed run, count as new.
        updated = len(set(replaced) - self._missing)
        self.counts["added"] += len(self._waiting) - updated
        self.counts["updated"] += updated
        self._waiting = []
        self._last_write, self._written = time.monotonic(), True

    def _touch(self) -> None:
        """Update stamps of photos that did not change, and the dates of their vectors, which filters use."""
        if not self._touched:
            return
        before = self._catalog.photos([photo.number for photo in self._touched])
        changed = [photo for photo in self._touched if photo.date != before[photo.number].date]
        numbers = [photo.number for photo in changed]
        captions = list(self._catalog.captions_of(numbers).values())
        caption_vectors = self._captions.vectors([caption.number for caption in captions])
        self._add_vectors(changed, self._photos.vectors(numbers), captions, caption_vectors)
        # Last: after a kill, the next run detects the old stamps.
        self._catalog.touch(self._touched)
        self._touched = []

    def _delete_vectors(self, numbers: Sequence[int]) -> None:
        self._captions.delete(list(self._catalog.captions_of(numbers)))
        self._photos.delete(numbers)

    def _add_vectors(
        self, photos: Sequence[Photo], vectors: Vectors, captions: Sequence[IndexedCaption], caption_vectors: Vectors
    ) -> None:
        """Add the vectors of photos, and then those of their captions."""
        texts: dict[int, list[str]] = {photo.number: [] for photo in photos}
        for caption in captions:
            texts[caption.photo].append(caption.text)
        rows = [
            VectorRow(photo.number, vector, photo.date, photo.name, words_of(texts[photo.number]))
            for photo, vector in zip(photos, vectors, strict=True)
        ]
        self._photos.add(rows)
        self._add_captions(captions, caption_vectors, {photo.number: photo.date for photo in photos})

    def _add_captions(self, captions: Sequence[IndexedCaption], vectors: Vectors, dates: Mapping[int, float]) -> None:
        rows = [
            VectorRow(one.number, vector, dates[one.photo], one.name, words_of([one.text]))
            for one, vector in zip(captions, vectors, strict=True)
        ]
        self._captions.add(rows)
