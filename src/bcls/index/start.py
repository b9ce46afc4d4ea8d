"""The beginning of a run: a new index, or one that this run fits."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bcls._checks import check_choice, fail
from bcls.index.embedding import hash_of, probe
from bcls.index.engine import ENGINES
from bcls.index.manifest import FILE, IndexManifest, write_index_manifest
from bcls.index.settings import IndexSettings
from bcls.index.source import Item, Source

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel


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
