"""Flags of ``bcls index``.

``index.json``: what an index was made from and with.

An index that is open for searches.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcls._core.errors import check_whole, fail
from bcls._core.files import write_whole
from bcls.data.images import MAX_PIXELS
from bcls.data.text_files import read_json
from bcls.search.calibration import Calibration
from bcls.search.catalog import Catalog
from bcls.search.embedding import hash_of
from bcls.search.engine import Engine, open_engine
from bcls.search.source import Source, open_source

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel


@dataclass(frozen=True)
class IndexSettings:
    """Settings of ``bcls index``."""

    out: str
    """Folder of the index; made new, or brought up to date."""
    model: str | None = None
    """Name or folder of a model; the index's own, or photo for a new index."""
    engine: str | None = None
    """What holds the vectors: faiss (inside the folder, the default) or milvus."""
    uri: str | None = None
    """For milvus: a file such as photos.db, or the address of a server."""
    features: str | None = None
    """Name of the dataset's features, for a model that reads features and no pictures."""
    captions: bool = True
    """Read captions: those of a dataset, and .txt and .json files beside the photos."""
    workers: int = 0
    """Threads that read and decode pictures; 0 for one a core."""
    max_pixels: int = 80_000_000
    """Pictures with more pixels are skipped."""
    device: str = "cpu"
    """Where the model runs, such as cuda."""
    precision: str = "float32"
    """Of the networks that see photos: float32, or bfloat16, twice as fast on processors that have it in hardware."""
    json: bool = False
    """Print what was done as JSON."""


FILE = "index.json"
FORMAT = "bcls-index"
VERSION = 1


@dataclass(frozen=True)
class IndexManifest:
    """Contents of the manifest."""

    identity: str
    """A random name of this index; collections in Milvus are named after it."""
    photos: str
    """The folder, archive or dataset, as an absolute path."""
    model: str
    """Name or folder that the model was loaded by."""
    weights: str
    """Hash of the model's weights."""
    dimension: int
    """Length of the vectors."""
    cross: bool
    """Whether the model scores pairs by more than one product of vectors, so that results are ranked again."""
    engine: str
    """``faiss`` or ``milvus``."""
    uri: str
    """Where Milvus is; empty for faiss."""
    features: str | None
    """Features that the images are read from, instead of pictures."""
    calibration: dict[str, Calibration]
    """How similarities become scores, by the kind of query; empty until the first run is done."""
    max_pixels: int = MAX_PIXELS
    """Most pixels of a photo that any run took in, and so of one that is shown."""

    def collection(self, what: str) -> str:
        """Name of a collection in Milvus."""
        return f"bcls_{self.identity}_{what}"


def read_index_manifest(folder: Path) -> IndexManifest:
    """Read the manifest of an index.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The folder is no index, or one of another version of bcls.
    """
    path = folder / FILE
    if not folder.exists():
        raise FileNotFoundError(2, "no such index; make it with `bcls index PHOTOS --out INDEX`", str(folder))
    if not path.exists():
        fail(str(folder), f"an index with an {FILE}", "none", "make it with `bcls index PHOTOS --out INDEX`")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        fail(str(path), f'a JSON object with "format": "{FORMAT}"', "something else", "make the index again")
    if content.get("version") != VERSION:
        remedy = "make the index again, or use the release of bcls that wrote it"
        fail(str(path), f"an index of version {VERSION}", f"version {content.get('version')!r}", remedy)
    try:
        # Older indexes do not say how many pixels they took in.
        known = {"max_pixels": MAX_PIXELS, **content}
        fields = {key: known[key] for key in IndexManifest.__dataclass_fields__}
        _check_kinds(fields)
        maps = {str(key): Calibration(**value) for key, value in fields["calibration"].items()}
        return replace(IndexManifest(**fields), calibration=maps)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        fail(str(path), "fields as bcls writes them", f"a wrong one ({repr(error)[:200]})", "make the index again")


def _check_kinds(fields: dict[str, Any]) -> None:
    for key in ("identity", "photos", "model", "weights", "engine", "uri"):
        if not isinstance(fields[key], str):
            raise TypeError(f"{key} is no text")
    for key in ("dimension", "max_pixels"):
        check_whole(key, fields[key], least=1)
    if not isinstance(fields["cross"], bool) or not isinstance(fields["features"], str | None):
        raise TypeError("cross or features")


def write_index_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Write the manifest whole."""
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    write_whole(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


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
