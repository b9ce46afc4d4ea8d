"""Validation photos for the open vocabulary of the photo models; used by ``photo_model.py``.

The stamps of Tux Paint (the Debian package tuxpaint-stamps-default, in ``/usr/share/tuxpaint/stamps``) are cut-out
photos of animals, food, plants, tools, instruments and vehicles with a sentence each. They are not in Flickr8k and not
among the outside photos. Only the settings of the class part are selected with them; no weight is trained on them.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bcls.features.backbones import load_backbone
from bcls.labels import load_text_encoder

#: Folders without photos, and the cosine of two sentences from which on a stamp also answers the query of another.
DRAWINGS, ALSO = {"cartoon", "roadsigns", "symbols"}, 0.75
#: Random indexes and photos in each, as many as there are outside photos.
INDEXES, PHOTOS = 40, 22


@dataclass(frozen=True)
class Stamps:
    """Features and queries of stamps.

    Attributes:
        images: ``(N, d)`` features.
        texts: Query of each stamp.
        relevant: ``(N, N)``, whether a stamp answers the query of another one.
    """

    images: Tensor
    texts: list[str]
    relevant: "np.ndarray[tuple[int, int], np.dtype[np.bool_]]"

    def first_three(self, scores: "np.ndarray[tuple[int, int], np.dtype[np.float32]]") -> float:
        """Share of queries with a relevant stamp among the first three, in random indexes of 22 stamps.

        Args:
            scores: ``(N, N)``, of queries and stamps.
        """
        generator = np.random.default_rng(0)
        found = []
        for _ in range(INDEXES):
            some = generator.permutation(len(scores))[:PHOTOS]
            order = np.argsort(-scores[np.ix_(some, some)], axis=1)[:, :3]
            found.append(np.take_along_axis(self.relevant[np.ix_(some, some)], order, 1).any(1).mean())
        return float(np.mean(found))


def read_stamps(folder: Path, networks: str) -> Stamps:
    """Read the photos among the stamps, on a white square, and compute the features of joined networks."""
    paths = [path for path in sorted(folder.rglob("*.png")) if not DRAWINGS & set(path.relative_to(folder).parts)]
    paths = [path for path in paths if path.with_suffix(".txt").exists()]
    if not paths:
        raise ValueError(f"{folder}: expected PNG files with texts beside them; install tuxpaint-stamps-default")
    texts = [path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()[0].strip() for path in paths]
    backbone = load_backbone(networks)
    with torch.no_grad():
        images = torch.cat([backbone(backbone.prepare(on_white(path))[None]).mean((2, 3)) for path in paths])
    sentences = load_text_encoder("minilm").encode(texts)
    return Stamps(images, texts, sentences @ sentences.T > ALSO)


def on_white(path: Path) -> Image.Image:
    """A transparent image in the middle of a white square."""
    with Image.open(path) as opened:
        image = opened.convert("RGBA")
    side = max(image.size)
    square = Image.new("RGBA", (side, side), "white")
    square.alpha_composite(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square.convert("RGB")
