"""The index folder: its manifest (``index.json``), and opening the index or one of its vector engines."""

import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from bcls._core.config import from_plain
from bcls._core.errors import check_choice, check_whole, fail, quoted, refuse_damage
from bcls._core.files import write_whole
from bcls.data.images import MAX_PIXELS
from bcls.data.text_files import read_json
from bcls.search.calibration import Calibration
from bcls.search.catalog import Catalog
from bcls.search.embedding import SearchModel, load_search_model, model_hash
from bcls.search.engine import ENGINES, Engine
from bcls.search.faiss_engine import FaissEngine
from bcls.search.milvus_engine import MilvusEngine
from bcls.search.source import PhotoSource, open_source

FILE = "index.json"
FORMAT = "bcls-index"
VERSION = 2
#: A model, or its name or folder; by default the model of the index.
ModelInput: TypeAlias = "str | Path | SearchModel | None"


@dataclass(frozen=True)
class IndexManifest:
    """Contents of the manifest.

    Attributes:
        identity: Random name of this index, used for the names of its Milvus collections.
        photos: Absolute paths of the folders, archives or datasets.
        model: Name or folder of the model.
        weights: Hash of the model's weights.
        dimension: Length of the vectors.
        cross: Whether the model has cross attention, so that results are reranked.
        engine: ``faiss`` or ``milvus``.
        uri: File or address of Milvus; empty for faiss.
        features: Name of the features that the index was built from, instead of images.
        calibration: Calibration by the kind of query; empty until the first run is complete.
        max_pixels: Largest limit on the pixels of a photo in any run; also the limit when photos are displayed.
        index_pixels: Limit of the last run; in an index of an earlier version ``max_pixels``.
        captions: Whether captions are read.
        exclude: Patterns of names that are left out.
        follow_links: Whether links that leave a folder are followed.
    """

    identity: str
    photos: list[str]
    model: str
    weights: str
    dimension: int
    cross: bool
    engine: str
    uri: str
    features: str | None
    calibration: dict[str, Calibration]
    max_pixels: int = MAX_PIXELS
    exclude: list[str] = field(default_factory=list)
    follow_links: bool = False
    captions: bool = True
    index_pixels: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "index_pixels", self.index_pixels or self.max_pixels)

    def command(self, folder: Path) -> str:
        """The command that builds or updates the index in ``folder``, with its options."""
        engine = self.engine if self.uri else None
        options = {"--model": self.model, "--engine": engine, "--uri": self.uri, "--features": self.features}
        words = [word for flag, value in options.items() if value for word in (flag, value)]
        words += ["--exclude", *self.exclude] * bool(self.exclude) + ["--follow-links"] * self.follow_links
        words += ["--no-captions"] * (not self.captions)
        words += ["--max-pixels", str(self.index_pixels)] * (self.index_pixels != MAX_PIXELS)
        return " ".join(map(quoted, ["bcls", "index", *self.photos, "--out", folder, *words]))

    def check_model(self, folder: Path, model: SearchModel, name: str) -> None:
        """Raise an error if the index in ``folder`` was built with another model."""
        weights = model_hash(model)
        if weights != self.weights:
            expected = f"the model {self.model!r} with weights {self.weights[:12]}"
            hint = "vectors of different models are not comparable: build an index in another folder"
            if name == self.model:
                hint += f", or delete this one and run `{self.command(folder)}`"
            fail(str(folder), expected, f"{name!r} with weights {weights[:12]}", hint)


def read_index_manifest(folder: Path) -> IndexManifest:
    """Read the manifest of an index.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: The folder is not an index, or one of another format version.
    """
    path = folder / FILE
    build = "build it with `bcls index PHOTOS --out INDEX`"
    if not folder.exists():
        raise FileNotFoundError(2, f"no such index; {build}", str(folder))
    if not path.exists():
        fail(str(folder), f"an index with an {FILE}", "none", build)
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        fail(str(path), f'a JSON object with "format": "{FORMAT}"', "something else", "build the index again")
    if content.get("version") != VERSION:
        photos = content.get("photos")
        known = [photos] if isinstance(photos, str) else photos if isinstance(photos, list) else ["PHOTOS"]
        names = " ".join(map(quoted, known))
        hint = f"build it again: delete the folder, then run `bcls index {names} --out {quoted(folder)}`"
        fail(str(path), f"an index of version {VERSION}", f"version {content.get('version')!r}", hint)
    errors, hint = (TypeError, ValueError, OverflowError), "build the index again"
    with refuse_damage(str(path), "fields as bcls writes them", hint, *errors):
        fields = {key: content[key] for key in IndexManifest.__dataclass_fields__ if key in content}
        manifest: IndexManifest = from_plain(IndexManifest, fields, FILE)
        if not manifest.photos:
            fail("photos", "at least one path", "none", hint)
        for key in ("dimension", "max_pixels", "index_pixels"):
            check_whole(key, getattr(manifest, key), least=1)
        return manifest


def write_index_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Write the manifest atomically."""
    content = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    write_whole(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Index:
    """An open index; see :func:`open_index`.

    Attributes:
        folder: The index folder.
        manifest: What it was built from and with.
        catalog: Its photos and captions.
        photos: Vectors of the photos.
        captions: Vectors of the captions.
        stamp: Of the manifest when the index was opened; changes with every run of ``bcls index``.
    """

    folder: Path
    manifest: IndexManifest
    catalog: Catalog
    photos: Engine
    captions: Engine
    stamp: tuple[int, int] = (0, 0)

    @cached_property
    def source(self) -> PhotoSource | None:
        """Source of the photos; ``None`` if it is missing or damaged, such as a truncated archive."""
        try:
            paths, features = map(Path, self.manifest.photos), self.manifest.features
            return open_source(*paths, features=features, follow_links=self.manifest.follow_links)
        except (OSError, ValueError):
            return None

    def load_model(self, model: ModelInput = None) -> SearchModel:
        """The model of the index: by its recorded name, from another location, or already in memory.

        Raises:
            ValueError: There is no such model, or its weights are not those of the index.
        """
        name = type(model).__name__
        if model is None or isinstance(model, str | Path):
            name = str(model or self.manifest.model)
            model = load_search_model(name)
        self.manifest.check_model(self.folder, model, name)
        return model

    def close(self) -> None:
        """Close all files."""
        for part in (self.catalog, self.photos, self.captions):
            part.close()


def open_index(folder: str | Path) -> Index:
    """Open an index for searches. Nothing is written, and another process may update the index at the same time.

    Args:
        folder: Folder that ``bcls index`` wrote.

    Raises:
        ValueError: The folder is not an index, has another format version, or its first run is incomplete.
        OSError: A file is missing.
    """
    folder = Path(folder)
    stamp = manifest_stamp(folder) if (folder / FILE).exists() else (0, 0)
    manifest = read_index_manifest(folder)
    if not manifest.calibration:
        hint = f"run `{manifest.command(folder)}` again to complete it"
        fail(str(folder), "a complete index", "one whose first run was interrupted", hint)
    return replace(open_parts(folder, manifest, read_only=True), stamp=stamp)


def manifest_stamp(folder: Path) -> tuple[int, int]:
    """Time and number of the manifest's file, which is replaced by every run of ``bcls index``."""
    found = (folder / FILE).stat()
    return found.st_mtime_ns, found.st_ino


def open_parts(folder: Path, manifest: IndexManifest, *, read_only: bool) -> Index:
    """Open the catalog and both engines of an index, and create them if the index is not read-only."""
    catalog = Catalog(folder / "catalog.sqlite", read_only=read_only)

    def engine(table: str) -> Engine:
        collection = f"bcls_{manifest.identity}_{table}"
        return open_engine(
            manifest.engine, folder / table, manifest.uri, collection, manifest.dimension, read_only=read_only
        )

    return Index(folder, manifest, catalog, engine("photos"), engine("captions"))


def open_engine(
    name: str, folder: Path, uri: str, collection: str, dimension: int, *, read_only: bool = False
) -> Engine:
    """Open a vector engine, or create an empty one.

    Args:
        name: ``"faiss"`` or ``"milvus"``.
        folder: Folder of the faiss files.
        uri: File or address of Milvus.
        collection: Name of the collection in Milvus.
        dimension: D.
        read_only: Search only; the engine must exist.

    Raises:
        ValueError: There is no such engine, or it cannot be reached.
        MissingExtraError: Its package is not installed.
    """
    if check_choice("engine", name, ENGINES) == "milvus":
        return MilvusEngine(uri, collection, dimension, read_only=read_only)
    return FaissEngine(folder, dimension, read_only=read_only)
