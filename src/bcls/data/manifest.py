"""``manifest.json``: what a dataset folder holds. It is written last, so a folder that has one is complete."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bcls._checks import check_whole, fail
from bcls._files import write_whole
from bcls.data.text_files import is_unicode, read_json

FILE = "manifest.json"
FORMAT = "bcls-dataset"
VERSION = 1
_REMEDY = "see the dataset page of the documentation, or import the dataset again"


@dataclass(frozen=True)
class ImageFiles:
    """A folder, zip or tar with pictures; ``bytes`` and ``sha256`` of an archive where they are known."""

    path: str
    bytes: int | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        _check_path("path", self.path)


@dataclass(frozen=True)
class FeatureFile:
    """An ``.npy`` file with features of a split: row ``i * every`` belongs to the split's image ``i``.

    ``counts`` is an ``.npy`` file with the number of real regions of each row, where it differs between images. The
    first ``views`` of an image's ``every`` rows are its views: the whole picture, then random ones.
    """

    path: str
    every: int = 1
    counts: str | None = None
    views: int = 1

    def __post_init__(self) -> None:
        _check_path("path", self.path)
        check_whole("every", self.every, least=1)
        if self.counts is not None:
            _check_path("counts", self.counts)
        if check_whole("views", self.views, least=1) > self.every:
            fail("views", f"at most {self.every}, the rows of an image that `every` tells", self.views, _REMEDY)


@dataclass(frozen=True)
class Manifest:
    """Contents of the manifest; paths are absolute or relative to its folder.

    Attributes:
        name: Name of the dataset.
        splits: Numbers of images and captions of each split, where they are stated.
        images: Where the pictures are, in the order that ``source`` in ``images.jsonl`` counts.
        features: Feature files by the features' name and the split.
        sha256: Checksums of files in the folder.
    """

    name: str
    splits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    images: tuple[ImageFiles, ...] = ()
    features: Mapping[str, Mapping[str, FeatureFile]] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a dataset folder.

    Only ``format`` and ``version`` have to be there, so that a manifest is quickly made by hand. Where it does not say
    where the pictures are, they are looked for in ``images``, ``images.zip`` and ``images.tar``.

    Raises:
        ValueError: There is no manifest, so the folder is no dataset or was never finished; or it is not valid.
    """
    path = folder / FILE
    if not folder.exists():
        raise FileNotFoundError(2, "no such dataset folder", str(folder))
    if not path.exists():
        fail(str(folder), f"a dataset with a {FILE}", "none", "import it first, again if an import was broken off")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        fail(str(path), f'a JSON object with "format": "{FORMAT}"', "something else", _REMEDY)
    if content.get("version") != VERSION:
        fail(str(path), f'"version": {VERSION}', repr(content.get("version")), "use the release of bcls that wrote it")
    try:
        return Manifest(
            str(content.get("name", folder.resolve().name)),
            {str(split): (int(n["images"]), int(n["captions"])) for split, n in content.get("splits", {}).items()},
            _image_files(folder, content),
            {
                str(name): {str(split): FeatureFile(**file) for split, file in files.items()}
                for name, files in content.get("features", {}).items()
            },
            {str(file): str(digest) for file, digest in content.get("sha256", {}).items()},
        )
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        fail(str(path), "fields as bcls writes them", f"a wrong one ({str(error)[:200]})", _REMEDY)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest; every other file must be in place before."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": manifest.name,
        "splits": {split: {"images": n, "captions": c} for split, (n, c) in manifest.splits.items()},
        "images": [_without_none(vars(one)) for one in manifest.images],
        "features": {
            name: {split: _feature_entry(file) for split, file in files.items()}
            for name, files in manifest.features.items()
        },
        "sha256": dict(manifest.sha256),
    }
    write_whole(folder / FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def add_features(folder: Path, name: str, split: str, file: FeatureFile) -> None:
    """Enter a feature file of a split; whatever else stands in the manifest is kept."""
    read_manifest(folder)
    content = read_json(folder / FILE)
    entry = _feature_entry(file)
    files = content.setdefault("features", {}).setdefault(name, {})
    if files.get(split) != entry:
        files[split] = entry
        write_whole(folder / FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _image_files(folder: Path, content: Mapping[str, Any]) -> tuple[ImageFiles, ...]:
    if "images" in content:
        return tuple(ImageFiles(**one) for one in content["images"])
    usual = [name for name in ("images", "images.zip", "images.tar") if (folder / name).exists()]
    return tuple(ImageFiles(name) for name in usual[:1])


def _check_path(name: str, path: object) -> None:
    if not isinstance(path, str) or not path or "\0" in path or not is_unicode(path):
        fail(name, "the path of a file or folder", repr(path)[:60], _REMEDY)


def _feature_entry(file: FeatureFile) -> dict[str, Any]:
    entry = _without_none(vars(file))
    if file.views == 1:  # so that releases that know no views read the manifest as well
        del entry["views"]
    return entry


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
