"""Pairs of an image and a caption that people judged, with the captions that labels are made from.

Labels of judged pairs by every kind of encoder and metric.

How well labels agree with people: the paper's Table II, and more judgements than it has.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import fail
from bcls._core.progress import progress
from bcls.data.dataset import ImageReader
from bcls.data.images import decode
from bcls.data.importers.captions import read_karpathy
from bcls.data.importers.common import ImportSettings, find_images
from bcls.data.judgements import flickr8k_crowdflower, flickr8k_expert, read_cxc
from bcls.data.records import ImageRecord
from bcls.data.text_files import read_json
from bcls.labels.caption_metrics import SCORERS, load_pair_scorer
from bcls.labels.encoders import ClipEncoder, load_text_encoder
from bcls.labels.relevance import pair_relevance

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
    photo = None if photos is None else partial(_photo, ImageReader(content.sources, content.images), content.images)
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
    images, sources, _ = find_images(records, wanted, photos)
    return partial(_photo, ImageReader(sources, images), images)


def _photo(library: ImageReader, images: tuple[ImageRecord, ...], number: int) -> "Image":
    return decode(library.read(images[number]), library.file_of(images[number]))


#: Aggregate of a metric, which puts an image's captions together in its own way.
REFERENCES = "references"
#: Aggregate of a score from the photo, not from its captions.
IMAGE = "image"


def pair_labels(
    judged: Sequence[Judged], name: str, aggregates: Sequence[str]
) -> Iterator[tuple[str, Judged, NDArray[np.float64]]]:
    """Labels of the pairs by one encoder or metric.

    Args:
        judged: The pairs. The captions that they need are encoded together, each different one once.
        name: A name for :func:`bcls.labels.load_text_encoder` or :func:`bcls.labels.caption_metrics.load_pair_scorer`.
        aggregates: ``"max"``, ``"mean"``, ``"paired"``; of no matter to a metric, or where an image has one caption.

    Yields:
        The aggregate, the pairs and their labels ``(P,)``.

    Raises:
        ValueError: If there is no such encoder or metric, or a program that it needs is missing.
    """
    if name in SCORERS:
        scorer = load_pair_scorer(name)
        for one in judged:
            with progress(f"{one.data} by {name}", len(one.images)) as step:
                scores = scorer.pair_scores(
                    one.texts, one.image_of_caption, one.images, one.captions, lambda done, _: step(done)
                )
            yield REFERENCES, one, scores
        return
    encoder = load_text_encoder(name)
    needed = [np.isin(one.image_of_caption, one.images) for one in judged]
    for used, one in zip(needed, judged, strict=True):
        used[one.captions] = True
    texts = [one.texts[row] for used, one in zip(needed, judged, strict=True) for row in np.flatnonzero(used)]
    with progress(f"captions by {name}", len(set(texts))) as step:
        vectors = encoder.encode(texts, lambda done, _: step(done))
    start = 0
    for used, one in zip(needed, judged, strict=True):
        rows = np.zeros((len(one.texts), vectors.shape[1]), dtype=np.float32)
        stop = start + int(np.count_nonzero(used))
        rows[used] = vectors[start:stop]
        start = stop
        several = len(np.unique(one.image_of_caption)) < len(one.texts)
        for aggregate in aggregates if several else ("max",):
            labels = pair_relevance(rows, one.image_of_caption, one.images, one.captions, aggregate)
            yield aggregate if several else "cosine", one, labels.astype(np.float64)
        if one.photo is not None and isinstance(encoder, ClipEncoder):
            yield IMAGE, one, _against_photos(encoder, one, one.photo, rows)


def _against_photos(
    encoder: ClipEncoder, judged: Judged, photo: "Callable[[int], Image]", rows: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Cosine of photo and caption, the paper's row for CLIP."""
    shown, place = np.unique(judged.images, return_inverse=True)
    with progress(f"photos by {encoder.name}", len(shown)) as step:
        photos = encoder.encode_photos((photo(int(one)) for one in shown), lambda done, _: step(done))
    cosines: NDArray[np.float64] = np.einsum("pd,pd->p", photos[place], rows[judged.captions], dtype=np.float64)
    return cosines


_RESAMPLES = 1000


@dataclass(frozen=True)
class Quality:
    """Agreement of one kind of labels with people."""

    data: str
    """Whose judgements, such as ``"cxc-sits"``."""
    encoder: str
    """Name of the text encoder or metric."""
    aggregate: str
    """How the captions of an image were put together; ``"references"`` by the metric, ``"image"`` from the photo."""
    subset: str
    """``"all"`` pairs, or the ``"others"``, without the images' own captions."""
    pairs: int
    """How many pairs."""
    pearson: float
    """Pearson's correlation with the mean judgement."""
    spearman: float
    """Spearman's rank correlation."""
    low: float
    """Lower end of the 95 % interval of Pearson's, by resampling images."""
    high: float
    """Upper end."""


def label_quality(encoder: str, aggregate: str, judged: Judged, labels: NDArray[np.float64]) -> Iterator[Quality]:
    """Agreement of labels with people: over all pairs, and where images' own captions are among them without these.

    Args:
        encoder: Who made the labels, for the row.
        aggregate: How, for the row.
        judged: The pairs and what people said.
        labels: ``(P,)`` labels of the pairs.
    """
    own = judged.own
    yield _row(encoder, aggregate, "all", judged, labels, np.ones_like(own))
    if own.any() and np.count_nonzero(~own) > 1:
        yield _row(encoder, aggregate, "others", judged, labels, ~own)


def _row(
    encoder: str,
    aggregate: str,
    subset: str,
    judged: Judged,
    labels: NDArray[np.float64],
    chosen: NDArray[np.bool_],
) -> Quality:
    from scipy import stats

    mine, people = labels[chosen], judged.ratings[chosen]
    low, high = _interval(mine, people, judged.groups[chosen])
    pearson = float(stats.pearsonr(mine, people).statistic)
    spearman = float(stats.spearmanr(mine, people).statistic)
    return Quality(judged.data, encoder, aggregate, subset, len(mine), pearson, spearman, low, high)


def _interval(
    labels: NDArray[np.float64], scores: NDArray[np.float64], images: NDArray[np.int64]
) -> tuple[float, float]:
    """95 % bootstrap interval of Pearson's correlation; images are drawn, each with all its pairs.

    Correlation needs only six sums, and a draw of images adds up the sums of its images.
    """
    _, group = np.unique(images, return_inverse=True)
    columns = (np.ones_like(labels), labels, scores, labels**2, scores**2, labels * scores)
    sums = np.stack([np.bincount(group, weights=column) for column in columns], axis=1)  # (images, 6)
    draws = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=_RESAMPLES)
    count, x, y, xx, yy, xy = (draws @ sums).T
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = (xy - x * y / count) / np.sqrt((xx - x**2 / count) * (yy - y**2 / count))
    # A draw whose pairs are all alike has no correlation.
    low, high = np.percentile(kept, (2.5, 97.5)) if len(kept := drawn[np.isfinite(drawn)]) else (np.nan, np.nan)
    return float(low), float(high)
