"""An index that is open for searches."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bcls._checks import fail
from bcls.index.catalog import Catalog
from bcls.index.embedding import hash_of
from bcls.index.engine import Engine, open_engine
from bcls.index.manifest import IndexManifest, read_index_manifest
from bcls.index.source import Source, open_source

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel


@dataclass(frozen=True)
class Index:
    """An index; made by :func:`open_index`.

    Attributes:
        folder: Where it lies.
        manifest: What it was made from and with.
        catalog: Its photos and captions.
        photos: Vectors of the photos.
        captions: Vectors of the captions.
    """

    folder: Path
    manifest: IndexManifest
    catalog: Catalog
    photos: Engine
    captions: Engine

    def source(self) -> Source:
        """Where the photos are.

        Raises:
            FileNotFoundError: They are gone.
        """
        return open_source(Path(self.manifest.photos), self.manifest.features)

    def load_model(self, name: str | None = None) -> "RetrievalModel":
        """Load the model of the index, by its own name or by another one under which it is found now.

        Raises:
            ValueError: There is no such model, or its weights are not those that the index was made with.
        """
        from bcls.models import load

        model = load(name or self.manifest.model).eval()
        self.check_model(model, name or self.manifest.model)
        return model

    def check_model(self, model: "RetrievalModel", name: str) -> None:
        """Refuse a model that the index was not made with."""
        weights = hash_of(model)
        if weights != self.manifest.weights:
            expected = f"the model {self.manifest.model!r} with weights {self.manifest.weights[:12]}"
            remedy = "its vectors mean nothing to another model: index the photos again into another folder"
            fail(str(self.folder), expected, f"{name!r} with weights {weights[:12]}", remedy)

    def close(self) -> None:
        """Close all files."""
        for part in (self.catalog, self.photos, self.captions):
            part.close()


def open_index(folder: str | Path) -> Index:
    """Open an index for searches. Nothing in it is written, and it may be brought up to date at the same time.

    Args:
        folder: A folder that ``bcls index`` wrote.

    Raises:
        ValueError: The folder is no index, is of another version, or its first run was never finished.
        OSError: A file is missing.
    """
    folder = Path(folder)
    manifest = read_index_manifest(folder)
    if not manifest.calibration:
        remedy = f"run `bcls index {manifest.photos} --out {folder}` again: it goes on where it stopped"
        fail(str(folder), "a finished index", "one whose first run was broken off", remedy)
    engines = [
        open_engine(
            manifest.engine,
            folder / what,
            manifest.uri,
            manifest.collection(what),
            manifest.dimension,
            read_only=True,
        )
        for what in ("photos", "captions")
    ]
    return Index(folder, manifest, Catalog(folder / "catalog.sqlite", read_only=True), *engines)
