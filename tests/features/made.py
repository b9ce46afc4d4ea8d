"""Datasets of drawn scenes with a tiny backbone, for extractions that take a moment."""

import hashlib
import json

import pytest

from bcls.data.dataset import open_dataset
from bcls.data.synthetic import make_scenes, save
from bcls.features.extraction import extract
from tests.backbones.models import save as save_model
from tests.backbones.models import square


def draw(folder, images=20, splits=None):
    """A folder with drawn scenes, as a dataset."""
    save(make_scenes(images, seed=3), folder, splits=splits or ["train"] * (images - 4) + ["test"] * 4, size=48)
    (folder / "manifest.json").write_text(json.dumps({"format": "bcls-dataset", "version": 1, "mine": "kept"}))
    return folder


def tiny(folder):
    """A folder with a tiny vision transformer with a grid of 4 x 4."""
    return str(save_model(folder, "vit", square(32))[0])


def digests(folder):
    """Checksums of what an extraction leaves, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != ".lock"
    }


def opened(folder):
    return open_dataset(folder)


def broken_off(folder, settings, monkeypatch, after=2):
    """An extraction that ends after a few blocks, as if interrupted."""
    from bcls.features.arrays import SplitFile

    write = SplitFile.write

    def limited(self, block, start, rows, zero):
        if len(self.done) == after:
            raise KeyboardInterrupt
        write(self, block, start, rows, zero)

    with monkeypatch.context() as patch:
        patch.setattr(SplitFile, "write", limited)
        with pytest.raises(KeyboardInterrupt):
            extract(open_dataset(folder), settings)
