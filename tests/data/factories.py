"""Factories of small datasets on disk, and helpers for importers."""

import io
import json
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from bcls.data.dataset import open_dataset
from bcls.data.importers import ImportSettings, run_import


def image_bytes(seed=0, size=(32, 24), file_format="PNG", mode="RGB", **options):
    """Return the bytes of an image with smooth random content."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    written = io.BytesIO()
    coarse.resize(size, Image.Resampling.BICUBIC).convert(mode).save(written, file_format, **options)
    return written.getvalue()


def caption_rows(images=4, each=2, splits=("train", "train", "val", "test")):
    return [
        {
            "image_id": f"i{n}",
            "caption_id": f"i{n}#{k}",
            "text": f"image {n}, take {k}",
            "split": splits[n % len(splits)],
        }
        for n in range(images)
        for k in range(each)
    ]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_images(where, names, kind="folder"):
    """Write images to a folder, a zip or a tar, and return its path."""
    contents = {name: image_bytes(seed) for seed, name in enumerate(names)}
    if kind == "folder":
        for name, content in contents.items():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            (where / name).write_bytes(content)
        return where
    path = where.with_suffix(f".{kind}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in contents.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(path, "w") as archive:
            for name, content in contents.items():
                add_to_tar(archive, name, content)
    return path


def add_to_tar(archive, name, content, **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    archive.addfile(info, io.BytesIO(content))


def make_dataset(folder, kind="folder", rows=None, **manifest):
    """Write a dataset as a user would by hand: captions, images and a manifest with two fields."""
    rows = caption_rows() if rows is None else rows
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "captions.jsonl", rows)
    make_images(
        folder / "images", [f"{name}.png" for name in dict.fromkeys(str(row["image_id"]) for row in rows)], kind
    )
    (folder / "manifest.json").write_text(json.dumps({"format": "bcls-dataset", "version": 1, **manifest}))
    return folder


def import_dataset(kind, source, out, **settings):
    """Import a source; return the opened dataset and the notes."""
    imported = run_import(kind, source, ImportSettings(str(out), **settings))
    return open_dataset(out), imported.notes


def import_error(kind, source, out, **settings):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        run_import(kind, source, ImportSettings(str(out), **settings))
    assert "\n" not in str(caught.value)
    assert not (out / "manifest.json").exists()
    return str(caught.value)
