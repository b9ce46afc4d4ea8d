"""Labels of judged pairs by every kind of encoder and metric."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bcls._progress import progress
from bcls.labels.clip import ClipEncoder
from bcls.labels.encoder import load_text_encoder
from bcls.labels.judged import Judged
from bcls.labels.pairs import pair_relevance
from bcls.labels.scorers import SCORERS, load_pair_scorer

if TYPE_CHECKING:
    from PIL.Image import Image

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
        name: A name for :func:`bcls.labels.load_text_encoder` or :func:`bcls.labels.scorers.load_pair_scorer`.
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
