"""Makes an index of photos, or brings it up to date."""

import time
import warnings
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bcls._checks import check_choice, check_whole, fail
from bcls._device import check_device
from bcls.data.text_files import is_unicode
from bcls.index._lock import sole_writer
from bcls.index.calibrate import calibrate
from bcls.index.catalog import Catalog
from bcls.index.changes import compare
from bcls.index.embedding import PRECISIONS
from bcls.index.engine import Engine, open_engine
from bcls.index.manifest import FILE, IndexManifest, read_index_manifest, write_index_manifest
from bcls.index.run import Run
from bcls.index.settings import IndexSettings
from bcls.index.source import open_source
from bcls.index.start import claim, manifest_for
from bcls.index.writer import Writer

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel


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
