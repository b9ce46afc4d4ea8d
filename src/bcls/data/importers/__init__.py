"""Importers: read other formats of images and captions into a dataset folder."""

import hashlib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

from bcls._core.errors import check_choice, check_number, fail
from bcls._core.files import user_path
from bcls.data.importers.archives import read_huggingface, read_webdataset
from bcls.data.importers.captions import ImportSettings, read_coco, read_folder, read_karpathy
from bcls.data.importers.regions import import_regions, read_scan
from bcls.data.records import Content, Manifest, check_free, check_records, read_manifest, write_dataset

__all__ = ["KINDS", "ImportSettings", "Imported", "run_import"]


class Importer(NamedTuple):
    """A format: the function that reads it, and its settings besides those of every reader."""

    read: Callable[[Path, ImportSettings], Content] | None
    settings: str


#: Importers by the name of the format. ``butd`` adds features to an existing dataset instead of creating one.
KINDS: dict[str, Importer] = {
    "folder": Importer(read_folder, "images captions split held_out image_column caption_column encoding"),
    "karpathy": Importer(read_karpathy, "images restval"),
    "coco": Importer(read_coco, "images split held_out"),
    "scan": Importer(read_scan, "encoding"),
    "butd": Importer(None, ""),
    "webdataset": Importer(read_webdataset, "split held_out"),
    "huggingface": Importer(read_huggingface, "held_out image_column caption_column"),
}


@dataclass(frozen=True)
class Imported:
    """Result of an import: the manifest, and messages for the user."""

    manifest: Manifest
    notes: tuple[str, ...]


def run_import(kind: str, source: str | Path, settings: ImportSettings) -> Imported:
    """Import a source into a dataset folder.

    Args:
        kind: One of :data:`KINDS`.
        source: The file or folder.
        settings: Output folder and options.

    Returns:
        The manifest and messages.

    Raises:
        ValueError: A setting does not apply to the format, or the source is invalid; the message names file and
            position.
        OSError: A file is missing, or cannot be read or written.
    """
    check_choice("kind", kind, KINDS)
    importer = KINDS[kind]
    used = {"out", "json", *(("name", "copy") if importer.read else ()), *importer.settings.split()}
    for one in fields(ImportSettings):
        value = getattr(settings, one.name)
        if one.name not in used and one.default is not MISSING and value != one.default:
            fail(f"--{one.name.replace('_', '-')}", f"no value for a {kind} source", value, "leave it out")
    out, path = user_path(settings.out), user_path(source)
    if importer.read is None:
        return Imported(notes=import_regions(path, out), manifest=read_manifest(out))
    check_free(out)
    content = importer.read(path, settings)
    where = str(settings.captions or source)
    if settings.held_out is not None:
        check_records(content, where)  # ids must be valid before they are hashed
        content = hold_out(content, settings.held_out)
    return Imported(write_dataset(out, content, copy=settings.copy, where=where), content.notes)


def hold_out(content: Content, share: float) -> Content:
    """Move a share of the images to ``val``, and as many to ``test``, with their captions.

    The selection depends on the ids of the images alone, so that every import gives the same splits.

    Args:
        content: An imported dataset with all images in ``train``.
        share: Share of the images for each split, above 0 and below 0.5; each split gets at least one image.

    Raises:
        ValueError: There are splits already, or too few images for three of them.
    """
    if check_number("--held-out", share, "0.1 is usual", above=0) >= 0.5:
        fail("--held-out", "a share below 0.5", share, "0.1 is usual")
    splits = sorted({image.split for image in content.images})
    if set(splits) - {"train"}:
        fail("--held-out", "a source without splits of its own", ", ".join(splits), "leave out --held-out")
    if len(content.images) < 3:
        fail("--held-out", "at least 3 images", len(content.images), "add images, or leave out --held-out")
    order = sorted((image.image_id for image in content.images), key=lambda one: hashlib.sha256(one.encode()).digest())
    count = min(max(1, round(share * len(order))), (len(order) - 1) // 2)
    moved = dict.fromkeys(order[:count], "val") | dict.fromkeys(order[count : 2 * count], "test")
    return replace(
        content,
        images=tuple(image._replace(split=moved.get(image.image_id, "train")) for image in content.images),
        captions=tuple(one._replace(split=moved.get(one.image_id, "train")) for one in content.captions),
    )
