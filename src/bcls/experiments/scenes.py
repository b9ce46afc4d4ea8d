"""Drawn scenes as a dataset folder, for experiments that must know the true relevance."""

import os
from pathlib import Path

from bcls.data.manifest import FILE, ImageFiles, Manifest, write_manifest
from bcls.data.synthetic import make_scenes, save

#: Side of the pictures.
_SIDE = 96


def draw_scenes(folder: str | Path, images: int, *, seed: int = 0) -> None:
    """Draw scenes into a folder as a dataset; a folder that has one is left as it is.

    Seven tenths of the scenes are for training, the others half for validation and half for the test.

    Args:
        folder: Where.
        images: How many scenes.
        seed: Of the scenes.
    """
    folder = Path(folder)
    if (folder / FILE).exists():
        return
    train, val = images * 7 // 10, images * 3 // 20
    splits = ["train"] * train + ["val"] * val + ["test"] * (images - train - val)
    save(make_scenes(images, seed=seed), folder, splits=splits, size=_SIDE, workers=min(2, os.cpu_count() or 1))
    write_manifest(folder, Manifest("scenes", images=(ImageFiles("images"),)))
