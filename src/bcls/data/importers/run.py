"""The table of importers, and the one way to run them."""

import importlib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from bcls._core.errors import check_choice, fail
from bcls.data.importers.hold_out import hold_out
from bcls.data.importers.settings import ImportSettings
from bcls.data.records import Manifest, read_manifest
from bcls.data.write import Content, check_free, check_records, write_dataset

#: Kind of source: the module that reads it, what it is, and the settings that apply beside ``out`` and ``json``.
KINDS: dict[str, tuple[str, str, frozenset[str]]] = {
    "folder": (
        "bcls.data.importers.folder",
        "pictures and a CSV, TSV or JSONL file of captions",
        frozenset(
            {"name", "images", "captions", "split", "held_out", "image_column", "caption_column", "encoding", "copy"}
        ),
    ),
    "karpathy": (
        "bcls.data.importers.karpathy",
        "dataset_*.json with Karpathy's splits, pictures by --images",
        frozenset({"name", "images", "restval", "copy"}),
    ),
    "coco": (
        "bcls.data.importers.coco",
        "captions_*.json of MS-COCO, one file or a folder of them",
        frozenset({"name", "images", "split", "held_out", "copy"}),
    ),
    "scan": (
        "bcls.data.importers.scan",
        "a *_precomp folder with caps, ids and region features",
        frozenset({"name", "encoding", "copy"}),
    ),
    "butd": (
        "bcls.data.importers.butd",
        "bottom-up-attention .tsv files: adds region features to the dataset at --out",
        frozenset(),
    ),
    "webdataset": (
        "bcls.data.importers.webdataset",
        "tar files with pictures and .txt or .json captions",
        frozenset({"name", "split", "held_out", "copy"}),
    ),
    "huggingface": (
        "bcls.data.importers.huggingface",
        "a folder that `datasets` saved with save_to_disk",
        frozenset({"name", "held_out", "image_column", "caption_column", "copy"}),
    ),
}


@dataclass(frozen=True)
class Imported:
    """What an import wrote: the manifest, and what the user should be told."""

    manifest: Manifest
    notes: tuple[str, ...]


def run_import(kind: str, source: str | Path, settings: ImportSettings) -> Imported:
    """Import a source into a dataset folder.

    Args:
        kind: One of :data:`KINDS`.
        source: The file or folder.
        settings: Where to, and what else the importer should know.

    Returns:
        The manifest and notes.

    Raises:
        ValueError: A setting does not apply, or the source is not as expected; the message names file and place.
        OSError: A file is missing or cannot be read or written.
    """
    check_choice("kind", kind, KINDS)
    module, _, used = KINDS[kind]
    for one in fields(ImportSettings):
        if one.default is MISSING or one.name in used | {"out", "json"}:
            continue
        if getattr(settings, one.name) != one.default:
            fail(
                f"--{one.name}",
                f"it only where it applies, not with {kind}",
                getattr(settings, one.name),
                "leave it out",
            )
    out = Path(settings.out)
    reader = importlib.import_module(module)
    if kind == "butd":
        notes: tuple[str, ...] = reader.add_features(Path(source), out)
        return Imported(read_manifest(out), notes)
    check_free(out)
    read: Callable[[Path, ImportSettings], Content] = reader.read
    content = read(Path(source), settings)
    if settings.held_out is not None:
        check_records(content)  # before the ids are drawn by their bytes
        content = hold_out(content, settings.held_out)
    return Imported(write_dataset(out, content, copy=settings.copy), content.notes)
