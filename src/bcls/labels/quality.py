"""Quality of labels: their correlation with human judgements of image-caption pairs."""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from bcls._core.errors import check_choice, fail
from bcls._core.extras import require
from bcls._core.progress import progress
from bcls.data.dataset import ImageReader
from bcls.data.images import decode
from bcls.data.importers.captions import ImportSettings, find_images, read_karpathy
from bcls.data.judgements import flickr8k_crowdflower, flickr8k_expert, read_cxc
from bcls.data.records import Content, ImageRecord
from bcls.data.text_files import read_json
from bcls.labels.caption_metrics import SCORERS, PairScorer
from bcls.labels.encoders import ClipEncoder, check_encoder, load_text_encoder
from bcls.labels.relevance import AGGREGATES, pair_relevance

Ids = NDArray[np.int64]
Labels = NDArray[np.float64]

#: Aggregate of a metric, which combines the captions of an image in its own way.
REFERENCES = "references"
#: Aggregate of a score that is computed from the photo instead of its captions.
IMAGE = "image"
_ALL_RATED = "every rated caption, and the captions of every rated image"


@dataclass(frozen=True)
class RatedPairs:
    """Pairs of an image and a caption with human ratings; images and captions are numbered from 0.

    Attributes:
        data: ``"cxc-sits"``, ``"cxc-sts"``, ``"flickr8k-expert"`` or ``"flickr8k-crowdflower"``.
        texts: C captions.
        image_of_caption: ``(C,)``, the image of each caption; for pairs of captions the caption itself.
        images: ``(P,)``, the image of each pair.
        captions: ``(P,)``, the caption of each pair.
        ratings: ``(P,)``, the human ratings.
        groups: ``(P,)``, the groups that a bootstrap resamples.
        photo: Reads the photo of an image.
    """

    data: str
    texts: list[str]
    image_of_caption: Ids
    images: Ids
    captions: Ids
    ratings: NDArray[np.float64]
    groups: Ids
    photo: Callable[[int], Image] | None = None

    @property
    def own(self) -> NDArray[np.bool_]:
        """``(P,)``, whether the caption is one of the image's own."""
        own: NDArray[np.bool_] = self.image_of_caption[self.captions] == self.images
        return own


def load_cxc(cxc: Path, captions: Path, photos: Path | None = None) -> RatedPairs:
    """Load the image-caption pairs of Crisscrossed Captions (CxC).

    Args:
        cxc: ``sits_*.csv``, plain or ``.gz``.
        captions: A JSON list of ``{"caption_id", "image_id", "caption"}``, plain or ``.gz``, with every caption of
            every rated image.
        photos: Folder, zip or tar with COCO's photos.

    Raises:
        ValueError: A file is damaged, or the files do not match.
    """
    pairs = read_cxc(cxc, "sits")
    texts, caption_ids, image_ids = _coco_captions(captions)
    known, image_of_caption = np.unique(image_ids, return_inverse=True)
    images = _positions("--captions", _ALL_RATED, known.tolist(), pairs.second)
    rows = _positions("--captions", _ALL_RATED, caption_ids.tolist(), pairs.first)
    photo = None
    if photos is not None:
        content = Content("cxc", tuple(ImageRecord(str(one), "test") for one in known.tolist()), ())
        files = [(f"COCO_val2014_{one:012d}.jpg", f"{one:012d}.jpg") for one in known.tolist()]
        photo = _photo_reader(find_images(content, files, photos))
    return RatedPairs("cxc-sits", texts, image_of_caption, images, rows, pairs.score, images, photo)


def load_sts(sts: Path, captions: Path) -> RatedPairs:
    """Load the caption-caption pairs of CxC; the first caption is treated as an image with only that caption.

    Args:
        sts: ``sts_*.csv``, plain or ``.gz``.
        captions: As for :func:`load_cxc`.

    Raises:
        ValueError: A file is damaged, or the files do not match.
    """
    pairs = read_cxc(sts, "sts")
    texts, caption_ids, image_ids = _coco_captions(captions)
    known = caption_ids.tolist()
    first, second = (_positions("--captions", _ALL_RATED, known, ids) for ids in (pairs.first, pairs.second))
    return RatedPairs("cxc-sts", texts, np.arange(len(texts)), first, second, pairs.score, image_ids[first])


def load_flickr8k(folder: Path, photos: Path | None = None) -> list[RatedPairs]:
    """Load Flickr8k's expert and CrowdFlower ratings, in CLIPScore's protocol.

    Args:
        folder: With ``ExpertAnnotations.txt``, ``CrowdFlowerAnnotations.txt`` and ``dataset_flickr8k.json``.
        photos: Folder, zip or tar with the photos.

    Raises:
        ValueError: A file is damaged, or the files do not match.
    """
    settings = ImportSettings(out="", images=None if photos is None else str(photos))
    content = read_karpathy(folder / "dataset_flickr8k.json", settings)
    image_ids = [image.image_id for image in content.images]
    own = np.array([caption.image_id for caption in content.captions])
    image_of_caption = _positions("dataset_flickr8k.json", "images of all captions", image_ids, own)
    numbers: defaultdict[str, count[int]] = defaultdict(count)
    names = [f"{image}#{next(numbers[image])}" for image in own.tolist()]
    texts = [caption.text for caption in content.captions]
    photo = None if photos is None else _photo_reader(content)
    loaded = []
    for name, file, read in (
        ("expert", folder / "ExpertAnnotations.txt", flickr8k_expert),
        ("crowdflower", folder / "CrowdFlowerAnnotations.txt", flickr8k_crowdflower),
    ):
        ratings = read(file)
        images = _positions(str(file), "photos of dataset_flickr8k.json", image_ids, ratings.photos)
        rows = _positions(str(file), "captions of dataset_flickr8k.json", names, ratings.caption_ids)
        data = f"flickr8k-{name}"
        loaded.append(RatedPairs(data, texts, image_of_caption, images, rows, ratings.ratings, images, photo))
    return loaded


#: Names of aggregates, with rated pairs and their labels.
LabelledPairs = Iterator[tuple[str, RatedPairs, Labels]]


def pair_labels(rated: Sequence[RatedPairs], encoder: str, aggregates: Sequence[str]) -> LabelledPairs:
    """Compute the labels of rated pairs with one encoder or metric.

    The arguments are checked at once, and nothing is computed before the first labels are requested.

    Args:
        rated: The pairs. The captions of all of them are encoded together, each distinct one once.
        encoder: A name for :func:`bcls.labels.load_text_encoder` or :class:`bcls.labels.caption_metrics.PairScorer`.
        aggregates: ``"max"``, ``"mean"``, ``"paired"``; ignored for a metric, and for images with one caption.

    Yields:
        The aggregate, the pairs and their labels ``(P,)``.

    Raises:
        ValueError: There is no such encoder, metric or aggregate, or a program that a metric needs is missing.
        MissingExtraError: The package of the metric is not installed.
    """
    for aggregate in aggregates:
        check_choice("aggregate", aggregate, AGGREGATES)
    if encoder in SCORERS:
        return _scored(rated, PairScorer(encoder))
    check_encoder("encoder", encoder)
    return _encoded(rated, encoder, aggregates)


def _scored(rated: Sequence[RatedPairs], scorer: PairScorer) -> LabelledPairs:
    for one in rated:
        with progress(f"{one.data} by {scorer.name}", len(one.images)) as step:
            scores = scorer.pair_scores(
                one.texts, one.image_of_caption, one.images, one.captions, lambda done, _: step(done)
            )
        yield REFERENCES, one, scores


def _encoded(rated: Sequence[RatedPairs], name: str, aggregates: Sequence[str]) -> LabelledPairs:
    encoder = load_text_encoder(name)
    needed = [np.union1d(np.flatnonzero(np.isin(one.image_of_caption, one.images)), one.captions) for one in rated]
    texts = [one.texts[row] for rows, one in zip(needed, rated, strict=True) for row in rows]
    with progress(f"captions by {name}", len(set(texts))) as step:
        encoded = encoder.encode(texts, lambda done, _: step(done))
    parts = np.split(encoded, np.cumsum([len(rows) for rows in needed])[:-1])
    for rows, part, one in zip(needed, parts, rated, strict=True):
        vectors = np.zeros((len(one.texts), encoded.shape[1]), dtype=np.float32)
        vectors[rows] = part
        several = len(np.unique(one.image_of_caption)) < len(one.texts)
        for aggregate in aggregates if several else ("max",):
            labels = pair_relevance(vectors, one.image_of_caption, one.images, one.captions, aggregate)
            yield aggregate if several else "cosine", one, labels.astype(np.float64)
        if one.photo is not None and isinstance(encoder, ClipEncoder):
            yield IMAGE, one, _photo_cosines(encoder, one, one.photo, vectors)


def _photo_cosines(
    encoder: ClipEncoder, rated: RatedPairs, photo: Callable[[int], Image], vectors: NDArray[np.float32]
) -> Labels:
    """Cosine of photo and caption, the paper's row for CLIP."""
    shown, row_of_pair = np.unique(rated.images, return_inverse=True)
    with progress(f"photos by {encoder.name}", len(shown)) as step:
        photos = encoder.encode_photos((photo(int(one)) for one in shown), lambda done, _: step(done))
    cosines: Labels = np.einsum("pd,pd->p", photos[row_of_pair], vectors[rated.captions], dtype=np.float64)
    return cosines


def label_quality(encoder: str, aggregate: str, rated: RatedPairs, labels: Labels) -> Iterator[dict[str, Any]]:
    """Correlate labels with ratings: of all pairs, then without the images' own captions if there are any.

    Args:
        encoder: Name of the encoder, for the result.
        aggregate: The aggregate, for the result.
        rated: The pairs and their ratings.
        labels: ``(P,)`` labels of the pairs.

    Yields:
        ``data``, the name of the ratings, such as ``"cxc-sits"``; ``encoder``; ``aggregate``, how the captions of an
        image were combined (``"references"`` for a metric, ``"image"`` for the photo); ``subset``, ``"all"`` pairs or
        ``"others"``, without the images' own captions; ``pairs``, their number; the correlations ``pearson`` and
        ``spearman`` with the mean rating, NaN if all labels or all ratings are equal; and ``low`` and ``high``, the
        ends of the 95 % interval of ``pearson``, by resampling images.
    """
    stats = require("scipy.stats", "text", "the quality of labels")
    subsets = {"all": np.ones_like(rated.own)}
    if rated.own.any() and np.count_nonzero(~rated.own) > 1:
        subsets["others"] = ~rated.own
    for subset, chosen in subsets.items():
        x, y = labels[chosen], rated.ratings[chosen]
        about = {"data": rated.data, "encoder": encoder, "aggregate": aggregate, "subset": subset, "pairs": len(x)}
        with warnings.catch_warnings(action="ignore", category=stats.ConstantInputWarning):  # the result is NaN
            pearson, spearman = float(stats.pearsonr(x, y).statistic), float(stats.spearmanr(x, y).statistic)
        low, high = _interval(x, y, rated.groups[chosen])
        yield {**about, "pearson": pearson, "spearman": spearman, "low": low, "high": high}


def _interval(labels: Labels, ratings: NDArray[np.float64], groups: Ids, resamples: int = 1000) -> tuple[float, float]:
    """95 % bootstrap interval of the Pearson correlation; groups are resampled, each with all its pairs.

    A correlation needs only six sums, and the sums of a resample are those of its groups added up.
    """
    _, group = np.unique(groups, return_inverse=True)
    columns = (np.ones_like(labels), labels, ratings, labels**2, ratings**2, labels * ratings)
    sums = np.stack([np.bincount(group, weights=column) for column in columns], axis=1)  # (groups, 6)
    draws = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=resamples)
    n, x, y, xx, yy, xy = (draws @ sums).T
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = (xy - x * y / n) / np.sqrt((xx - x**2 / n) * (yy - y**2 / n))
    # A resample in which all labels or ratings are equal has no correlation.
    low, high = np.percentile(kept, (2.5, 97.5)) if len(kept := drawn[np.isfinite(drawn)]) else (np.nan, np.nan)
    return float(low), float(high)


def _coco_captions(path: Path) -> tuple[list[str], Ids, Ids]:
    rows = read_json(path)
    try:
        texts = [row["caption"] for row in rows]
        captions, images = (np.array([row[key] for row in rows], dtype=np.int64) for key in ("caption_id", "image_id"))
        if captions.ndim != 1 or images.ndim != 1:
            raise TypeError("an id that is a list")
        for caption, text in zip(captions, texts, strict=True):
            if not isinstance(text, str):
                raise TypeError(f"caption {caption} is no text but {text!r}")
        return texts, captions, images
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        expected = 'a JSON list of objects with "caption_id", "image_id" and "caption"'
        fail("--captions", expected, f"{path}: {type(error).__name__}: {error}", "see `bcls labels quality --help`")


def _positions(argument: str, expected: str, known: Iterable[Any], wanted: NDArray[Any]) -> Ids:
    """Find the position of each wanted id among the known ones."""
    position = {one: number for number, one in enumerate(known)}
    missing = [one for one in wanted.tolist() if one not in position]
    if missing:
        got = f"{len(missing)} of {len(wanted)} pairs without, such as {missing[0]!r}"
        fail(argument, expected, got, "use the files of the same release and split")
    return np.array([position[one] for one in wanted.tolist()], dtype=np.int64)


def _photo_reader(content: Content) -> Callable[[int], Image]:
    reader = ImageReader(content.sources, content.images)

    def read(number: int) -> Image:
        image = content.images[number]
        return decode(reader.read(image), reader.file_of(image))

    return read
