"""Evaluation of one model on a split, and comparison of two: :func:`evaluate` and :func:`compare`."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import check_whole, fail
from bcls._core.progress import progress
from bcls.evaluation.coco import check_coco_ids
from bcls.evaluation.coco import eccv as eccv_metrics
from bcls.evaluation.graded import coherent_score, ndcg, one_per_image
from bcls.evaluation.hubness import hubness as hubness_metrics
from bcls.evaluation.hubness import qb_norm_recalls
from bcls.evaluation.inputs import Ids, Matrix, Values, blocks, first_few
from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import QueryRanks, fold_ranks, query_ranks, recalls_from_ranks
from bcls.evaluation.scores import check_similarity_shape, load_similarity, score_model
from bcls.evaluation.statistics import paired_test, recall_intervals

if TYPE_CHECKING:
    from bcls.data.dataset import Dataset
    from bcls.models.base import RetrievalModel

#: A similarity matrix, the name of a model, run or file, several names to average, or a model.
Scores: TypeAlias = "Matrix | str | Path | list[str] | list[Path] | RetrievalModel"

KS = (1, 5, 10)
#: Bytes of labels that are kept in memory; larger matrices are written to a temporary file.
IN_MEMORY = 1 << 30
# Bytes of labels that are computed at a time.
_LABEL_BLOCK = 1 << 27
# Default K of the coherent score and of the hubness.
_COHERENT_K, _HUB_K = 100, 10


def evaluate(
    split: "Dataset",
    model: Scores,
    *,
    folds: int = 1,
    labels: str | None = None,
    cs: int | None = None,
    eccv: bool = False,
    intervals: bool = False,
    hubness: bool = False,
    qbnorm: bool = False,
    features: str | None = None,
    captions: "CaptionVectors | None" = None,
) -> dict[str, float]:
    """Compute retrieval metrics of a model, or of its scores, on a split.

    Args:
        split: Images and captions.
        model: ``(N, C)`` scores as array or tensor; the name of a model, run or file for
            :func:`bcls.evaluation.load_similarity`, or a list of names, whose scores are averaged; or a loaded model.
        folds: Average recalls and median ranks over this many consecutive folds of the images; 5 on COCO 5K is the 1K
            protocol.
        labels: Name of a text encoder such as ``"minilm"``: adds Kendall's tau, nDCG and the coherent score against
            labels that are computed from the captions.
        cs: K of the coherent score; by default 100, or all images of a smaller split.
        eccv: Add the metrics of ECCV Caption, CxC and COCO; for the COCO 5K test split with COCO's ids.
        intervals: Add 95 % confidence intervals of the recalls.
        hubness: Add the hubness of the first 10 positions.
        qbnorm: Add recalls after QB-Norm with the test queries as query bank.
        features: Name of the dataset's features that a model reads; by default those of its run, or images.
        captions: Vectors of the captions, if several calls share them; with them ``labels`` is not needed.

    Returns:
        Recalls, ``rsum`` and median ranks, and the requested metrics under the names of the functions of
        :mod:`bcls.evaluation`.

    Raises:
        ValueError: If the scores or an option do not match the split.
        MissingExtraError: If a package for an option is not installed.
    """
    if captions is None and labels is not None:
        captions = CaptionVectors(split, labels)
    graded = captions is not None
    check_options(
        split, folds=folds, graded=graded, cs=cs, eccv=eccv, intervals=intervals, hubness=hubness, qbnorm=qbnorm
    )
    similarity = _similarity(split, model, features)
    owner = split.image_of_caption
    ranks = fold_ranks(similarity, owner, folds)
    metrics = recalls_from_ranks(ranks, KS)
    for direction in QueryRanks._fields:
        medians = [np.floor(np.median(values[values > 0])) for values in (getattr(fold, direction) for fold in ranks)]
        metrics[f"{direction}_median_rank"] = float(np.mean(medians))
    if intervals:
        metrics |= recall_intervals(similarity, owner)
    if eccv:
        metrics |= eccv_metrics(similarity, *_coco_ids(split))
    if hubness:
        metrics |= hubness_metrics(similarity, min(_HUB_K, *similarity.shape))
    if qbnorm:
        metrics |= qb_norm_recalls(similarity, owner, similarity, similarity)
    # Last, since it takes longest.
    if captions is not None:
        metrics |= graded_metrics(split, similarity, captions, cs)
    return metrics


def check_options(
    split: "Dataset",
    *,
    folds: int = 1,
    graded: bool = False,
    cs: int | None = None,
    eccv: bool = False,
    **whole_gallery: bool,
) -> None:
    """Check the options of :func:`evaluate`, before scores are computed.

    Args:
        split: Images and captions.
        folds: Number of folds.
        graded: Whether metrics against labels are requested.
        cs: K of the coherent score.
        eccv: Whether the metrics of ECCV Caption are requested.
        **whole_gallery: Whether other metrics are requested, by the name of the option; they cannot use folds.

    Raises:
        ValueError: If an option does not match the split or another option.
    """
    count, images = check_whole("folds", folds, least=1), len(split.images)
    if images % count:
        fail("folds", f"a divisor of the {images} images of the split", count, "leave it out for the whole gallery")
    for option, wanted in whole_gallery.items():
        if count > 1 and wanted:
            fail(option, "the whole gallery, without folds", f"{count} folds", "leave one of the two out")
    if graded:
        _coherent_k(split, cs)
    elif cs is not None:
        fail("cs", "labels for the coherent score", "none", "add labels, such as minilm")
    if eccv:
        check_coco_ids(*_coco_ids(split))


def compare(
    split: "Dataset", a: "Scores | QueryRanks", b: "Scores | QueryRanks", *, seed: int = 0, features: str | None = None
) -> dict[str, float]:
    """Compare two models on the same queries.

    The tests resample and swap whole images with their captions, which are not independent.

    Args:
        split: Images and captions.
        a: One model: anything that :func:`evaluate` accepts, or its :func:`bcls.evaluation.query_ranks`.
        b: The other model.
        seed: Seed of the tests.
        features: Name of the dataset's features that models read; by default those of their runs, or images.

    Returns:
        For each recall and ``rsum`` the two values ``a_{metric}`` and ``b_{metric}`` and ``difference_{metric}``, a
        minus b; for ``i2t_r1``, ``t2i_r1`` and ``rsum`` the 95 % interval ``difference_{metric}_low`` and ``_high``
        and the p-value ``p_{metric}`` of a permutation test; ``i2t_disagree`` and ``t2i_disagree``, the number of
        queries that only one model ranks correctly first, and of these ``i2t_only_a``, ``i2t_only_b`` and so on.

    Raises:
        ValueError: If the scores or ranks do not match the split.
    """
    a, b = _ranks("a", split, a, features), _ranks("b", split, b, features)
    owner = split.image_of_caption
    queries = np.flatnonzero(a.i2t > 0)
    first, second = recalls_from_ranks([a], KS), recalls_from_ranks([b], KS)
    metrics = {f"a_{key}": value for key, value in first.items()}
    metrics |= {f"b_{key}": value for key, value in second.items()}
    metrics |= {f"difference_{key}": first[key] - second[key] for key in first}
    # R@5 and R@10 are not tested: they are correlated with these.
    pairs = {
        "i2t_r1": (100.0 * (a.i2t[queries] <= 1), 100.0 * (b.i2t[queries] <= 1), queries),
        "t2i_r1": (100.0 * (a.t2i <= 1), 100.0 * (b.t2i <= 1), owner),
        "rsum": (rsum_by_image(a, owner), rsum_by_image(b, owner), queries),
    }
    for key, (left, right, groups) in pairs.items():
        test = paired_test(left, right, groups, seed=seed)
        metrics |= {f"difference_{key}_{end}": test[f"difference_{end}"] for end in ("low", "high")}
        metrics[f"p_{key}"] = test["p_value"]
    for direction in QueryRanks._fields:
        # Images without captions have rank 0 in both models, so they are in neither count.
        right_a, right_b = getattr(a, direction) <= 1, getattr(b, direction) <= 1
        only_a, only_b = float(np.sum(right_a & ~right_b)), float(np.sum(right_b & ~right_a))
        metrics |= {f"{direction}_disagree": only_a + only_b}
        metrics |= {f"{direction}_only_a": only_a, f"{direction}_only_b": only_b}
    return metrics


class CaptionVectors:
    """Embeddings of the captions of a split, computed on first access.

    Args:
        split: Images and captions.
        encoder: Argument of :func:`bcls.labels.load_text_encoder`.
        vectors: ``(C, d)`` unit rows, if they are known already.

    Raises:
        ValueError: If there is no such encoder.
    """

    def __init__(self, split: "Dataset", encoder: str, vectors: NDArray[np.float32] | None = None) -> None:
        from bcls.labels.encoders import check_encoder

        self._split, self.encoder = split, encoder
        if vectors is not None:
            self.vectors = vectors
        else:
            check_encoder("labels", encoder)

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """``(C, d)`` unit rows.

        Raises:
            ValueError: If there is no such encoder.
            MissingExtraError: If its packages are not installed, and the dataset's folder does not have the rows.
        """
        from bcls.labels.cache import caption_vectors

        try:
            return caption_vectors(self._split, self.encoder)
        except ValueError as error:
            raise ValueError(str(error).replace("`name`", "`labels`", 1)) from error

    def label(self, image: int, caption: int) -> float | None:
        """Compute the label of one pair, as :func:`pseudo_labels` does; ``None`` if the image has no captions."""
        own = self._split.image_of_caption == image
        if not own.any():
            return None
        return 1.0 if own[caption] else float((self.vectors[own] @ self.vectors[caption]).max().clip(-1.0, 1.0))


def graded_metrics(
    split: "Dataset", similarity: Matrix, captions: CaptionVectors, k: int | None = None
) -> dict[str, float]:
    """Compute Kendall's tau, nDCG and the coherent score against labels from captions.

    Tau and nDCG use all captions, and nDCG counts labels below 0 as 0. The coherent score uses the first caption of
    each image, as in the original paper.

    Args:
        split: Images and captions.
        similarity: ``(N, C)`` scores.
        captions: Caption vectors of the same split.
        k: K of the coherent score; by default 100, or all images of a smaller split.

    Returns:
        The metrics of :func:`bcls.evaluation.kendall`, :func:`bcls.evaluation.ndcg` and
        :func:`bcls.evaluation.coherent_score`.

    Raises:
        ValueError: If there is no such encoder, an image has no caption, or ``k`` is out of range.
        MissingExtraError: If the packages of the encoder are not installed.
    """
    images, owner = len(split.images), split.image_of_caption
    first = _coherent_k(split, k)
    with pseudo_labels(split, captions) as labels, progress("graded metrics", 3) as step:
        metrics = kendall(similarity, labels)
        step(1, "tau")
        metrics |= ndcg(similarity, labels, negative="clip")
        step(2, "nDCG")
        if first is not None:
            columns = one_per_image(owner, images)
            metrics |= coherent_score(similarity[:, columns], labels[:, columns], first)
        step(3, "coherent score")
    return metrics


def _coherent_k(split: "Dataset", k: int | None) -> int | None:
    """K of the coherent score; ``None`` for a single image, which has no order, unless a K was requested."""
    images = len(split.images)
    without = np.flatnonzero(np.bincount(split.image_of_caption, minlength=images) == 0)
    if without.size:
        got = f"{without.size} without ({first_few([split.image_ids[place] for place in without])})"
        fail("labels", "a caption for every image of the split", got, "leave these images out of the dataset")
    if k is None:
        return min(_COHERENT_K, images) if images > 1 else None
    first = check_whole("cs", k, least=2)
    if first > images:
        fail("cs", f"a number from 2 to {images}, the images of the split", first, "choose another K")
    return first


@contextmanager
def pseudo_labels(split: "Dataset", captions: CaptionVectors) -> Iterator[NDArray[np.float32]]:
    """Compute the label of every pair, in memory, or in a temporary file if the matrix is large.

    Args:
        split: Images and captions; every image has a caption.
        captions: Caption vectors of the same split.

    Yields:
        ``(N, C)`` float32 labels: the highest cosine of a caption with the captions of the image; 1 for its own.
    """
    from bcls.labels.relevance import relevance

    vectors, owner = captions.vectors, split.image_of_caption
    shape = len(split.images), len(split.captions)
    with tempfile.TemporaryDirectory(prefix="bcls-labels-", ignore_cleanup_errors=True) as folder:
        labels: NDArray[np.float32]
        if 4 * shape[0] * shape[1] <= IN_MEMORY:
            labels = np.empty(shape, dtype=np.float32)
        else:
            labels = np.lib.format.open_memmap(Path(folder) / "labels.npy", mode="w+", dtype=np.float32, shape=shape)
        for part in blocks(shape[1], _LABEL_BLOCK // (4 * shape[0])):
            labels[:, part] = relevance(vectors, vectors[part], owner, caption_image=owner[part])
        yield labels


def _similarity(split: "Dataset", model: Any, features: str | None) -> Any:
    """The scores that :func:`evaluate` was given or that it has to load or compute."""
    if isinstance(model, str | Path):
        model = [model]
    if isinstance(model, list | tuple) and model and isinstance(model[0], str | Path):
        return load_similarity([str(name) for name in model], split, "model", features=features)
    if hasattr(model, "encode_images"):
        return score_model(model, split, split.texts, features)
    check_similarity_shape("similarity", tuple(np.shape(model)), split)
    return model


def _ranks(argument: str, split: "Dataset", model: Any, features: str | None) -> QueryRanks:
    if not isinstance(model, QueryRanks):
        return query_ranks(_similarity(split, model, features), split.image_of_caption)
    counts, got = (len(split.images), len(split.captions)), (len(model.i2t), len(model.t2i))
    if got != counts:
        expected = f"ranks of the split's {counts[0]} images and {counts[1]} captions"
        fail(argument, expected, f"{got[0]} and {got[1]}", "use the ranks of this split")
    return model


def _coco_ids(split: "Dataset") -> tuple[Ids, Ids]:
    """Ids of the images and captions of a split of COCO."""
    ids = []
    captions = [caption.caption_id for caption in split.captions]
    for kind, known in (("image", split.image_ids), ("caption", captions)):
        wrong = [one for one in known if not (one.isascii() and one.isdigit())]
        if wrong:
            got = f"{len(wrong)} of {len(known)} {kind} ids that are no numbers ({first_few(wrong)})"
            fail("eccv", "a dataset with COCO's ids", got, "import it with the ids of COCO's files")
        ids.append(np.array([int(one) for one in known], dtype=np.int64))
    return ids[0], ids[1]


def rsum_by_image(ranks: QueryRanks, owner: Ids) -> Values:
    """Distribute the sum of recalls over the images that are queries, so that the mean of the parts is the sum.

    Example:
        >>> ranks = QueryRanks(np.array([1, 20]), np.array([1, 20, 20]))
        >>> parts = rsum_by_image(ranks, np.array([0, 0, 1]))
        >>> round(float(parts.mean()), 9), round(recalls_from_ranks([ranks], KS)["rsum"], 9)
        (250.0, 250.0)
    """
    queries = ranks.i2t > 0
    by_image = sum((ranks.i2t[queries] <= k).astype(np.float64) for k in KS)
    hits = np.sum([ranks.t2i <= k for k in KS], axis=0)
    by_caption = np.bincount(owner, hits, minlength=len(ranks.i2t))[queries]
    parts: Values = 100.0 * (by_image + by_caption * (np.count_nonzero(queries) / len(owner)))
    return parts
