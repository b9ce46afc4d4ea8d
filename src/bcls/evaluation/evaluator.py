"""Figures against graded labels that a text encoder makes from the captions of the split.

All figures of one model on one split.

Two models on one split: their recalls, the differences, and whether these could be chance.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import check_whole, fail
from bcls._core.progress import progress
from bcls.evaluation.scores import check_similarity_shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bcls.data.dataset import Dataset
    from bcls.evaluation.recall import QueryRanks

#: Bytes of labels that are held in memory; more go to a temporary file.
IN_MEMORY = 1 << 30
#: Bytes of labels that are made at once.
_AT_ONCE = 1 << 27
#: K of the coherent score where nobody says otherwise.
_USUAL_K = 100


class CaptionVectors:
    """Embeddings of the captions of a split, made once and when first asked for.

    Args:
        split: Images and captions.
        encoder: Name for :func:`bcls.labels.load_text_encoder`.
    """

    def __init__(self, split: "Dataset", encoder: str) -> None:
        self._split, self.encoder = split, encoder

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """``(C, d)`` unit rows.

        Raises:
            ValueError: If there is no such encoder.
            MissingExtraError: If its packages are not installed.
        """
        from bcls.labels.encoders import load_text_encoder

        try:
            model = load_text_encoder(self.encoder)
        except ValueError as error:
            # It speaks of its own argument; who reads this wrote a flag.
            raise ValueError(str(error).replace("`name`", "`--labels`", 1)) from error
        with progress(f"captions by {self.encoder}", len(set(self._split.texts))) as step:
            return model.encode(self._split.texts, progress=lambda done, _: step(done))


def graded_figures(
    split: "Dataset", similarity: NDArray[Any], captions: CaptionVectors, k: int | None = None
) -> dict[str, float]:
    """Compute Kendall's tau, nDCG and the coherent score against labels from captions.

    Tau and nDCG take all captions, and nDCG counts labels below 0 as 0. The coherent score takes the first caption of
    each image, as its authors do.

    Args:
        split: Images and captions.
        similarity: ``(N, C)`` scores.
        captions: Of the same split.
        k: Of the coherent score; 100, or all images of a smaller split.

    Returns:
        The figures of :func:`bcls.evaluation.kendall`, :func:`~bcls.evaluation.graded` and
        :func:`~bcls.evaluation.coherent_score`.

    Raises:
        ValueError: If there is no such encoder, an image has no caption, or ``k`` does not fit.
        MissingExtraError: If the packages of the encoder are not installed.
    """
    from bcls.evaluation.graded import coherent_score, ndcg, one_per_image
    from bcls.evaluation.kendall import kendall

    images, owner = len(split.images), split.image_of_caption
    _check_every_image(split)
    first = min(_USUAL_K, images) if k is None else check_whole("--cs", k, least=2)
    # One image alone has no order: without a K that somebody asked for there is no coherent score.
    coherent = k is not None or images > 1
    if coherent and first > images:
        fail("--cs", f"a number from 2 to {images}, the images of the split", first, "choose another K")
    with pseudo_labels(split, captions) as labels, progress("graded figures", 3) as step:
        figures = kendall(similarity, labels)
        step(1, "tau")
        figures |= ndcg(similarity, labels, negative="clip")
        step(2, "nDCG")
        if coherent:
            columns = one_per_image(owner, images)
            figures |= coherent_score(similarity[:, columns], labels[:, columns], first)
        step(3, "coherent score")
    return figures


@contextmanager
def pseudo_labels(split: "Dataset", captions: CaptionVectors) -> Iterator[NDArray[np.float32]]:
    """Make the label of every pair, block by block: in memory, or in a temporary file where it would be too large.

    Args:
        split: Images and captions; every image has one.
        captions: Of the same split.

    Yields:
        ``(N, C)`` float32 labels: the highest cosine of a caption with those of the image, 1 for its own.
    """
    from bcls.labels.relevance import relevance

    vectors, owner = captions.vectors, split.image_of_caption
    shape = len(split.images), len(split.captions)
    step = max(1, _AT_ONCE // (4 * shape[0]))
    with tempfile.TemporaryDirectory(prefix="bcls-labels-", ignore_cleanup_errors=True) as folder:
        labels: NDArray[np.float32]
        if 4 * shape[0] * shape[1] <= IN_MEMORY:
            labels = np.empty(shape, dtype=np.float32)
        else:
            labels = np.lib.format.open_memmap(Path(folder) / "labels.npy", mode="w+", dtype=np.float32, shape=shape)
        for start in range(0, shape[1], step):
            part = slice(start, start + step)
            labels[:, part] = relevance(vectors, vectors[part], owner, caption_image=owner[part])
        yield labels


def _check_every_image(split: "Dataset") -> None:
    without = np.flatnonzero(np.bincount(split.image_of_caption, minlength=len(split.images)) == 0)
    if without.size:
        shown = ", ".join(split.image_ids[place] for place in without[:3])
        got = f"{without.size} without ({shown}{', ...' if without.size > 3 else ''})"
        fail("--labels", "a caption for every image of the split", got, "leave these images out of the dataset")


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
    from bcls.evaluation.coco import eccv
    from bcls.evaluation.hubness import hubness, qb_norm_recalls
    from bcls.evaluation.recall import recalls
    from bcls.evaluation.statistics import recall_intervals

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
    from bcls.evaluation.recall import median_rank

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


KS = (1, 5, 10)


def compare(split: "Dataset", a: "QueryRanks", b: "QueryRanks", *, seed: int = 0) -> dict[str, float]:
    """Compare two models by the ranks of their queries.

    The tests draw and exchange whole images with their captions, which are not independent.

    Args:
        split: Images and captions.
        a: :func:`bcls.evaluation.query_ranks` of one model.
        b: Of the other.
        seed: Of the tests.

    Returns:
        For each recall and ``rsum`` the two values ``a_{figure}`` and ``b_{figure}`` and ``difference_{figure}``, a
        less b; for ``i2t_r1``, ``t2i_r1`` and ``rsum`` the 95 % interval ``difference_{figure}_low`` and ``_high``
        and the p-value ``p_{figure}`` of a permutation test; for the first places ``i2t_disagree`` and
        ``t2i_disagree``, the queries that one model alone gets right, of them ``i2t_only_a`` and ``i2t_only_b``.

    Raises:
        ValueError: If there is not one rank for each image and each caption of the split.
    """
    from bcls.evaluation.recall import recalls_of_ranks
    from bcls.evaluation.statistics import paired_test

    for argument, ranks in (("a", a), ("b", b)):
        counts, came = (len(split.images), len(split.captions)), (len(ranks.i2t), len(ranks.t2i))
        if came != counts:
            expected = f"ranks of the split's {counts[0]} images and {counts[1]} captions"
            fail(argument, expected, f"{came[0]} and {came[1]}", "take the ranks of this very split")
    owner = split.image_of_caption
    asked = np.flatnonzero(a.i2t > 0)
    first, second = recalls_of_ranks([a], KS), recalls_of_ranks([b], KS)
    figures = {f"a_{key}": value for key, value in first.items()}
    figures |= {f"b_{key}": value for key, value in second.items()}
    figures |= {f"difference_{key}": first[key] - second[key] for key in first}
    # Those in between move with these.
    pairs = {
        "i2t_r1": (100.0 * (a.i2t[asked] <= 1), 100.0 * (b.i2t[asked] <= 1), asked),
        "t2i_r1": (100.0 * (a.t2i <= 1), 100.0 * (b.t2i <= 1), owner),
        "rsum": (_shares(a, owner), _shares(b, owner), asked),
    }
    for key, (left, right, groups) in pairs.items():
        test = paired_test(left, right, groups, seed=seed)
        figures |= {f"difference_{key}_{end}": test[f"difference_{end}"] for end in ("low", "high")}
        figures[f"p_{key}"] = test["p_value"]
    return figures | _disagreements("i2t", a.i2t, b.i2t) | _disagreements("t2i", a.t2i, b.t2i)


def _shares(ranks: "QueryRanks", owner: NDArray[np.int64]) -> NDArray[np.float64]:
    """Split the sum of the recalls among the images that are queries, so that its mean over them is the sum."""
    asked = ranks.i2t > 0
    by_image = sum((ranks.i2t[asked] <= k).astype(np.float64) for k in KS)
    hits = np.sum([ranks.t2i <= k for k in KS], axis=0)
    by_caption = np.bincount(owner, hits, minlength=len(ranks.i2t))[asked]
    shares: NDArray[np.float64] = 100.0 * (by_image + by_caption * (np.count_nonzero(asked) / len(owner)))
    return shares


def _disagreements(direction: str, a: NDArray[Any], b: NDArray[Any]) -> dict[str, float]:
    # Rank 0 is an image without captions: both models have it, so that it is in neither count.
    only_a, only_b = int(np.count_nonzero((a <= 1) & (b > 1))), int(np.count_nonzero((b <= 1) & (a > 1)))
    return {
        f"{direction}_disagree": float(only_a + only_b),
        f"{direction}_only_a": float(only_a),
        f"{direction}_only_b": float(only_b),
    }
