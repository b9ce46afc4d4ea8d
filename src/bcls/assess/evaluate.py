"""All figures of one model on one split."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_whole, fail
from bcls.assess.fits import check_similarity_shape
from bcls.assess.graded import CaptionVectors, graded_figures

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bcls.data import Dataset

#: How many first items the hubness looks at.
_HUB_K = 10


@dataclass(frozen=True)
class Options:
    """What to compute beside the recalls and the median ranks."""

    folds: int = 1
    """Consecutive folds of the images to average over."""
    labels: str | None = None
    """Text encoder whose labels tau, nDCG and the coherent score are computed against."""
    cs: int | None = None
    """K of the coherent score; 100, or all images of a smaller split."""
    eccv: bool = False
    """Figures of ECCV Caption, CxC and COCO, for the COCO 5K test split."""
    intervals: bool = False
    """95 % intervals of the recalls, by resampling images."""
    hubness: bool = False
    """How uneven the first places are."""
    qbnorm: bool = False
    """Recalls after QB-Norm, with the test queries as their own bank."""


def evaluate(
    split: "Dataset",
    similarity: NDArray[Any],
    options: Options | None = None,
    *,
    captions: CaptionVectors | None = None,
) -> dict[str, float]:
    """Compute the figures of a model.

    Args:
        split: Images and captions.
        similarity: ``(N, C)`` scores of the split's images and captions.
        options: What to compute.
        captions: Embeddings of the captions by the encoder of ``options.labels``, for a caller who needs them as well.

    Returns:
        The figures by the names that :mod:`bcls.evaluation` gives them.

    Raises:
        ValueError: If the matrix or an option does not fit the split.
        MissingExtraError: If a package for an option is not installed.
    """
    from bcls.evaluation import eccv, hubness, qb_norm_recalls, recall_intervals, recalls

    wanted = options or Options()
    owner = split.image_of_caption
    check_similarity_shape("similarity", tuple(np.shape(similarity)), split)
    _check(wanted, len(split.images))
    figures = recalls(similarity, owner, folds=wanted.folds)
    figures |= _median_ranks(similarity, owner, wanted.folds)
    if wanted.intervals:
        figures |= recall_intervals(similarity, owner)
    if wanted.eccv:
        images = _coco_ids("image", split.image_ids)
        texts = _coco_ids("caption", (caption.caption_id for caption in split.captions))
        figures |= eccv(similarity, images, texts)
    if wanted.hubness:
        figures |= hubness(similarity, min(_HUB_K, *similarity.shape))
    if wanted.qbnorm:
        figures |= qb_norm_recalls(similarity, owner, similarity, similarity)
    # Last, for it takes longest: whatever else is wrong has been said by now.
    if wanted.labels is not None:
        figures |= graded_figures(split, similarity, captions or CaptionVectors(split, wanted.labels), wanted.cs)
    return figures


def _check(options: Options, images: int) -> None:
    folds = check_whole("--folds", options.folds, least=1)
    if images % folds:
        fail("--folds", f"a divisor of the {images} images of the split", folds, "leave it out for the whole gallery")
    # They look at the whole gallery, and one table has one protocol.
    for flag in ("intervals", "hubness", "qbnorm"):
        if folds > 1 and getattr(options, flag):
            fail(f"--{flag}", "it without --folds", f"--folds {folds}", "leave one of the two out")
    if options.cs is not None and options.labels is None:
        fail("--cs", "it with --labels", "no --labels", "the coherent score needs labels: add --labels minilm")


def _median_ranks(similarity: NDArray[Any], owner: NDArray[np.int64], folds: int) -> dict[str, float]:
    """Average the median ranks over the folds; that captions lie grouped by fold has been seen before."""
    from bcls.evaluation import median_rank

    size = similarity.shape[0] // folds
    found: list[dict[str, float]] = []
    for fold in range(folds):
        columns = np.flatnonzero(owner // size == fold)
        part = similarity
        if folds > 1:
            part = similarity[fold * size : (fold + 1) * size, columns[0] : columns[-1] + 1]
        found.append(median_rank(part, owner[columns] - fold * size))
    keys = ("i2t_median_rank", "t2i_median_rank")
    return {key: sum(one[key] for one in found) / folds for key in keys}


def _coco_ids(kind: str, ids: "Iterable[str]") -> NDArray[np.int64]:
    known = list(ids)
    wrong = [one for one in known if not (one.isascii() and one.isdigit())]
    if wrong:
        shown = ", ".join(wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        got = f"{len(wrong)} of {len(known)} {kind} ids that are no numbers ({shown})"
        fail("--eccv", "a dataset with COCO's ids", got, "import it with the ids of COCO's files")
    return np.array([int(one) for one in known], dtype=np.int64)
