"""Recalls between captions and between images, after the judgements of Crisscrossed Captions (CxC)."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls.evaluation._coco_truth import as_ids
from bcls.evaluation._inputs import Matrix, as_array, check_matrix
from bcls.evaluation._ranks import count_above, gold_targets, pick
from bcls.evaluation._targets import Ids
from bcls.evaluation.median import shares_within
from bcls.evaluation.recall import check_ks

# What counts as the same, on the scale from 0 to 5 (Parekh et al., 2021).
_TEXT, _IMAGE = 3.0, 2.5

Pairs: TypeAlias = tuple[Ids, Ids, NDArray[np.float64]]


def cxc_text_text(
    similarity: Matrix,
    caption_ids: object,
    image_of_caption: object,
    judgements: Pairs,
    ks: Sequence[int] = (1, 5, 10),
) -> dict[str, float]:
    r"""Compute the recalls at K from caption to caption.

    .. math::
        R@K = \frac{100}{|Q|} \sum_{q \in Q} [\min_{g \in G_q} \mathrm{rank}_q(g) \le K]

    where :math:`G_q` are the other captions of the same image and the captions judged 3 or more with q, whichever of
    the two the table names first. The query itself is not in its gallery. Equal scores rank the lower index first.

    Args:
        similarity: ``(C, C)`` scores, queries in rows, array or tensor.
        caption_ids: ``(C,)`` COCO's ids of the captions.
        image_of_caption: ``(C,)`` integers that are equal for captions of one image.
        judgements: Two arrays of ids and one of scores; what :func:`bcls.data.read_cxc` reads from ``sts_test.csv``.
        ks: The cut-offs K.

    Returns:
        Percentages ``cxc_r{k}_t2t``, and the number of queries without gold item, left out, ``cxc_empty_t2t``.

    Raises:
        ValueError: If the matrix is not square, ids are missing, the judgements are no three arrays of one length, or a
            score is not finite.

    Example:
        >>> judged = np.array([7]), np.array([9]), np.array([4.0])
        >>> similarity = np.array([[1.0, 0.2, 0.3], [0.2, 1.0, 0.4], [0.3, 0.4, 1.0]])
        >>> cxc_text_text(similarity, [7, 8, 9], [0, 0, 1], judged, ks=(1,))
        {'cxc_r1_t2t': 33.3..., 'cxc_empty_t2t': 0.0}
    """
    owner = as_ids("image_of_caption", image_of_caption)
    ids = as_ids("caption_ids", caption_ids)
    if len(owner) != len(ids):
        fail("image_of_caption", f"{len(ids)} integers, one a caption", len(owner), "give the image of each caption")
    order = np.argsort(owner, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(owner[order])) + 1)
    siblings = [(int(a), int(b)) for group in groups for a in group for b in group if a != b]
    gold = _gold("caption_ids", ids, judgements, _TEXT)
    return _recalls(similarity, ids, [*gold, *siblings], ks, "t2t")


def cxc_image_image(
    similarity: Matrix, image_ids: object, judgements: Pairs, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, float]:
    """Compute the recalls at K from image to image, as :func:`cxc_text_text` does from caption to caption.

    Gold items are the images judged 2.5 or more with the query, whichever of the two the table names first.

    Args:
        similarity: ``(N, N)`` scores, queries in rows, array or tensor.
        image_ids: ``(N,)`` COCO's ids of the images.
        judgements: Two arrays of ids and one of scores; what :func:`bcls.data.read_cxc` reads from ``sis_test.csv``.
        ks: The cut-offs K.

    Returns:
        Percentages ``cxc_r{k}_i2i``, and the number of queries without gold item, left out, ``cxc_empty_i2i``.

    Raises:
        ValueError: If the matrix is not square, ids are missing, or a score is not finite.

    Example:
        >>> judged = np.array([7, 7]), np.array([9, 8]), np.array([4.0, 1.0])
        >>> similarity = np.array([[1.0, 0.2, 0.3], [0.2, 1.0, 0.4], [0.3, 0.4, 1.0]])
        >>> cxc_image_image(similarity, [7, 8, 9], judged, ks=(1,))
        {'cxc_r1_i2i': 50.0, 'cxc_empty_i2i': 1.0}
    """
    ids = as_ids("image_ids", image_ids)
    return _recalls(similarity, ids, _gold("image_ids", ids, judgements, _IMAGE), ks, "i2i")


def _gold(argument: str, ids: Ids, judgements: Pairs, threshold: float) -> list[tuple[int, int]]:
    """List the pairs that were judged alike, both ways round, by their places."""
    place = {int(one): index for index, one in enumerate(ids)}
    if len(place) != len(ids):
        fail(argument, "each id once", f"{len(ids) - len(place)} repeated", "keep one of each")
    first, second, score = _check_judgements(judgements)
    named = np.union1d(first, second)
    missing = named[~np.isin(named, ids)]
    if missing.size:
        expected = f"the {len(named)} ids that the table names"
        fail(argument, expected, f"{len(missing)} missing, such as {missing[0]}", "evaluate the whole split")
    alike = score >= threshold
    pairs = zip(first[alike].tolist(), second[alike].tolist(), strict=True)
    return [ends for a, b in pairs for ends in ((place[a], place[b]), (place[b], place[a])) if a != b]


def _check_judgements(judgements: Pairs) -> Pairs:
    """Check that these are two arrays of ids and one of scores, of one length."""
    expected, remedy = "two arrays of ids and one of scores, of one length", "give what bcls.data.read_cxc reads"
    if not isinstance(judgements, Sequence) or len(judgements) != 3:
        fail("judgements", expected, type(judgements).__name__, remedy)
    first, second = (as_ids("judgements", part) for part in judgements[:2])
    score = as_array("judgements", judgements[2])
    if score.ndim != 1 or not len(first) == len(second) == len(score):
        fail("judgements", expected, f"shapes {first.shape}, {second.shape} and {score.shape}", remedy)
    if score.dtype.kind not in "fiu" or not np.isfinite(score).all():
        fail("judgements", "scores that are finite numbers", f"others of {score.dtype}", remedy)
    return first, second, score.astype(np.float64)


def _recalls(
    similarity: Matrix, ids: Ids, gold: Iterable[tuple[int, int]], ks: Sequence[int], name: str
) -> dict[str, float]:
    check_matrix("similarity", similarity)
    ks = check_ks(ks)
    if tuple(similarity.shape) != (len(ids), len(ids)):
        fail(
            "similarity", f"shape {(len(ids), len(ids))}", tuple(similarity.shape), "give every item against every item"
        )
    pairs = np.array(sorted(set(gold)), dtype=np.int64).reshape(-1, 2)
    target = gold_targets(similarity, pairs[:, 0], pairs[:, 1], query="image")
    (above,), _ = count_above(similarity, slice(None), slice(None), [target], [])
    # The query stands in its own row, and is taken out of the count where it is above the gold item.
    places = np.arange(len(ids))
    own = pick(similarity, places, places)
    ranks = 1 + above - ((own > target.score) | ((own == target.score) & (places < target.item)))
    ranks = ranks[target.asked()]
    figures = {f"cxc_r{k}_{name}": share for k, share in shares_within(ranks, ks).items()}
    return figures | {f"cxc_empty_{name}": float(len(ids) - len(ranks))}
