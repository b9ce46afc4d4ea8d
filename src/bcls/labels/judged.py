"""Pairs of an image and a caption that people judged, with the captions that labels are made from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls.data import flickr8k_crowdflower, flickr8k_expert, read_cxc
from bcls.data.images import decode
from bcls.data.importers.karpathy import read as read_karpathy
from bcls.data.importers.pictures import find_pictures
from bcls.data.importers.settings import ImportSettings
from bcls.data.library import Library
from bcls.data.records import ImageRecord
from bcls.data.text_files import read_json

if TYPE_CHECKING:
    from PIL.Image import Image

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Judged:
    """Judged pairs; images and captions are counted from 0."""

    data: str
    """``"cxc-sits"``, ``"cxc-sts"``, ``"flickr8k-expert"`` or ``"flickr8k-crowdflower"``."""
    texts: list[str]
    """C captions."""
    image_of_caption: Ids
    """``(C,)``, whose caption each is; for pairs of captions each stands for itself."""
    images: Ids
    """``(P,)``, the image of each pair."""
    captions: Ids
    """``(P,)``, the caption of each pair."""
    ratings: NDArray[np.float64]
    """``(P,)``, what people said."""
    groups: Ids
    """``(P,)``, rows that belong together: what a bootstrap draws."""
    photo: "Callable[[int], Image] | None" = None
    """Reads the photo of an image."""

    @property
    def own(self) -> NDArray[np.bool_]:
        """``(P,)``, whether the caption is the image's own."""
        whose: NDArray[np.bool_] = self.image_of_caption[self.captions] == self.images
        return whose


def judged_cxc(cxc: Path, captions: Path, photos: Path | None = None) -> Judged:
    """CxC's image-caption pairs.

    Args:
        cxc: ``sits_*.csv``, plain or ``.gz``.
        captions: A JSON list of ``{"caption_id", "image_id", "caption"}``, plain or ``.gz``, with every caption of
            every judged image.
        photos: Folder, zip or tar with COCO's photos.

    Raises:
        ValueError: If a file is not what it should be, or they do not belong together.
    """
    pairs = read_cxc(cxc, "sits")
    texts, caption_ids, image_ids = _coco_captions(captions)
    known, image_of_caption = np.unique(image_ids, return_inverse=True)
    images, rows = _places(known, pairs.second, captions), _places(caption_ids, pairs.first, captions)
    photo = None if photos is None else _coco_photos(known, photos)
    return Judged("cxc-sits", texts, image_of_caption, images, rows, pairs.score, images, photo)


def judged_sts(sts: Path, captions: Path) -> Judged:
    """CxC's pairs of captions: the first takes the place of an image with that one caption.

    Args:
        sts: ``sts_*.csv``, plain or ``.gz``.
        captions: As for :func:`judged_cxc`.

    Raises:
        ValueError: If a file is not what it should be, or they do not belong together.
    """
    pairs = read_cxc(sts, "sts")
    texts, caption_ids, image_ids = _coco_captions(captions)
    first, second = (_places(caption_ids, ids, captions) for ids in (pairs.first, pairs.second))
    return Judged("cxc-sts", texts, np.arange(len(texts)), first, second, pairs.score, image_ids[first])


def judged_flickr8k(folder: Path, photos: Path | None = None) -> list[Judged]:
    """Flickr8k's judgements by experts and by CrowdFlower, in CLIPScore's protocol.

    Args:
        folder: With ``ExpertAnnotations.txt``, ``CrowdFlowerAnnotations.txt`` and ``dataset_flickr8k.json``.
        photos: Folder, zip or tar with the photos.

    Raises:
        ValueError: If a file is not what it should be, or they do not belong together.
    """
    settings = ImportSettings(out="", images=None if photos is None else str(photos))
    content = read_karpathy(folder / "dataset_flickr8k.json", settings)
    number = {image.image_id: place for place, image in enumerate(content.images)}
    image_of_caption = np.array([number[caption.image_id] for caption in content.captions], dtype=np.int64)
    place: dict[str, int] = {}
    seen = [0] * len(number)
    for row, image in enumerate(image_of_caption.tolist()):
        place[f"{content.captions[row].image_id}#{seen[image]}"] = row
        seen[image] += 1
    texts = [caption.text for caption in content.captions]
    photo = None if photos is None else partial(_photo, Library(content.sources, content.images), content.images)
    judged = []
    for name, file, read in (
        ("expert", "ExpertAnnotations.txt", flickr8k_expert),
        ("crowdflower", "CrowdFlowerAnnotations.txt", flickr8k_crowdflower),
    ):
        ratings = read(folder / file)
        _all_known(folder / file, "photos", ratings.photos, number)
        _all_known(folder / file, "captions", ratings.caption_ids, place)
        images = np.array([number[photo] for photo in ratings.photos.tolist()], dtype=np.int64)
        rows = np.array([place[caption] for caption in ratings.caption_ids.tolist()], dtype=np.int64)
        judged.append(Judged(f"flickr8k-{name}", texts, image_of_caption, images, rows, ratings.ratings, images, photo))
    return judged


def _coco_captions(path: Path) -> tuple[list[str], Ids, Ids]:
    rows = read_json(path)
    try:
        texts = [str(row["caption"]) for row in rows]
        captions, images = (np.array([row[key] for row in rows], dtype=np.int64) for key in ("caption_id", "image_id"))
        if captions.ndim != 1 or images.ndim != 1:
            raise TypeError("an id that is a list")
        return texts, captions, images
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        expected = 'a JSON list of objects with "caption_id", "image_id" and "caption"'
        fail("--captions", expected, f"{path}: {type(error).__name__}: {error}", "see `bcls labels quality --help`")


def _places(known: Ids, wanted: Ids, path: Path) -> Ids:
    """Place of each wanted id among the known ones, with a count of those that are not there."""
    order = np.argsort(known, kind="stable")
    found = np.searchsorted(known[order], wanted).clip(max=max(0, len(order) - 1))
    places: Ids = order[found] if len(order) else np.zeros(len(wanted), dtype=np.int64)
    lost = known[places] != wanted if len(order) else np.ones(len(wanted), dtype=bool)
    if lost.any():
        fail(
            "--captions",
            "every judged caption, and the captions of every judged image",
            f"{int(lost.sum())} of {len(lost)} pairs without, in {path}",
            "give the captions of the same split as the judgements",
        )
    return places


def _all_known(path: Path, what: str, names: NDArray[np.str_], known: dict[str, int]) -> None:
    lost = sorted(set(names.tolist()) - known.keys())
    if lost:
        expected = f"{what} of dataset_flickr8k.json"
        fail(str(path), expected, f"{len(lost)} others, such as {lost[0]!r}", "give the files of one release")


def _coco_photos(image_ids: Ids, photos: Path) -> "Callable[[int], Image]":
    records = [ImageRecord(str(one), "test") for one in image_ids.tolist()]
    wanted = [(f"COCO_val2014_{one:012d}.jpg", f"{one:012d}.jpg") for one in image_ids.tolist()]
    images, sources, _ = find_pictures(records, wanted, photos)
    return partial(_photo, Library(sources, images), images)


def _photo(library: Library, images: tuple[ImageRecord, ...], number: int) -> "Image":
    return decode(library.read(images[number]), library.file_of(images[number]))
