"""Metrics of ECCV Caption, CxC and COCO on the MS-COCO 5K test split.

The ground truth of :func:`eccv` ships with the package ``eccv_caption``. :func:`cxc_text_text` and
:func:`cxc_image_image` take the human ratings of Crisscrossed Captions (CxC).
"""

import functools
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from bcls._core.errors import fail
from bcls._core.extras import require
from bcls.evaluation.inputs import Ids, Matrix, Values, as_array, blocks, check_matrix, id_differences, take, top_items
from bcls.evaluation.recall import Targets, check_ks, count_above, gold_targets, shares_within

#: Relevant items of each query, by id.
Gold: TypeAlias = Mapping[int, Iterable[int]]
#: Two arrays of ids and one of ratings.
Pairs: TypeAlias = tuple[Ids, Ids, Values]

_FOLDS = 5
_KS = (1, 5, 10)
# Elements of queries whose top items are found at a time: a few megabytes.
_BLOCK = 1 << 20
# Ratings, on the scale from 0 to 5, from which two captions or two images count as the same (Parekh et al., 2021).
_TEXT, _IMAGE = 3.0, 2.5


def eccv(similarity: Matrix, image_ids: object, caption_ids: object) -> dict[str, float]:
    r"""Compute all metrics of ECCV Caption, and the recalls of COCO 1K, COCO 5K and CxC.

    .. math::
        mAP@R = \frac{1}{R} \sum_{p=1}^{R} [\pi(p) \in G_q] \frac{|\{\pi(1), \dots, \pi(p)\} \cap G_q|}{p}, \qquad
        RP = \frac{|\{\pi(1), \dots, \pi(R)\} \cap G_q|}{R}

    where :math:`\pi` orders the gallery of query q by score, equal scores with the lower index first, :math:`G_q`
    are its relevant items and :math:`R = |G_q|`; averaged over the queries that have relevant items. Recalls are those
    of :func:`recalls`, with the relevant items of each collection. The values equal those of the package
    ``eccv_caption``, times 100, whose ground truth is used; no row is sorted for them.

    Args:
        similarity: ``(5000, 25000)`` scores, array or tensor.
        image_ids: ``(5000,)`` COCO id of the image of each row, in any order.
        caption_ids: ``(25000,)`` COCO id of the caption of each column, in any order.

    Returns:
        Percentages ``eccv_map_at_r``, ``eccv_rprecision``, ``eccv_r1``, ``coco_1k_r1``, ``_r5``, ``_r10``,
        ``coco_5k_r1`` ..., ``cxc_r1`` ..., each with the suffixes ``_i2t`` and ``_t2i``. COCO 1K is the mean over
        the five folds.

    Raises:
        ValueError: If ids are unknown, missing or repeated (the message counts and lists them), if the matrix is
            transposed or of another size, or if a score is not finite.
        MissingExtraError: If ``eccv_caption`` is not installed.

    Example:
        >>> eccv(np.zeros((3, 2)), [1, 2], [5, 6, 7])
        Traceback (most recent call last):
        ...
        ValueError: `similarity`: expected shape (2, 3) of 2 images and 3 captions, got (3, 2); it is transposed: ...
    """
    check_matrix("similarity", similarity)
    image_list, caption_list = as_ids("image_ids", image_ids), as_ids("caption_ids", caption_ids)
    shape, got = (len(image_list), len(caption_list)), tuple(similarity.shape)
    if shape != got:
        hint = "it is transposed: give similarity.T" if got == shape[::-1] else "give one id for each row and column"
        fail("similarity", f"shape {shape} of {shape[0]} images and {shape[1]} captions", got, hint)
    truth = load_truth()
    images, captions = check_coco_ids(image_list, caption_list)

    targets: dict[str, list[Targets]] = {"i2t": [], "t2i": []}
    for name in ("coco", "cxc"):
        pairs = truth.pairs[name, "i2t"]
        targets["i2t"].append(gold_targets(similarity, images(pairs[:, 0]), captions(pairs[:, 1]), query="image"))
        pairs = truth.pairs[name, "t2i"]
        targets["t2i"].append(gold_targets(similarity, images(pairs[:, 1]), captions(pairs[:, 0]), query="caption"))
    # One pass over the matrix for both collections and both directions; this also checks that all values are finite.
    ranks = count_above(similarity, slice(None), slice(None), targets["i2t"], targets["t2i"])
    shares: dict[str, list[float]] = {}
    for direction, counts in zip(("i2t", "t2i"), ranks, strict=True):
        for name, target, count in zip(("coco_5k", "cxc"), targets[direction], counts, strict=True):
            _add_recalls(shares, name, direction, count[target.exists()])
    for fold_images, fold_captions in truth.folds():
        rows, columns = np.sort(images(fold_images)), np.sort(captions(fold_captions))
        by_image, by_caption = count_above(similarity, rows, columns, targets["i2t"][:1], targets["t2i"][:1])
        _add_recalls(shares, "coco_1k", "i2t", by_image[0])
        _add_recalls(shares, "coco_1k", "t2i", by_caption[0])
    metrics = {key: sum(values) / len(values) for key, values in shares.items()}
    i2t, t2i = truth.pairs["eccv", "i2t"], truth.pairs["eccv", "t2i"]
    found = precisions(similarity, images(i2t[:, 0]), captions(i2t[:, 1]), "i2t")
    found |= precisions(similarity, captions(t2i[:, 0]), images(t2i[:, 1]), "t2i")
    return metrics | {f"eccv_{key}": value for key, value in found.items()}


def check_coco_ids(image_ids: Ids, caption_ids: Ids) -> tuple[Callable[[Ids], Ids], Callable[[Ids], Ids]]:
    """Check that :func:`eccv` accepts the ids of a split; returns functions that map ids to rows and to columns.

    Raises:
        ValueError: If ids are unknown, missing or repeated.
        MissingExtraError: If ``eccv_caption`` is not installed.
    """
    truth = load_truth()
    images = positions("image_ids", image_ids, truth.images(), truth.captions)
    return images, positions("caption_ids", caption_ids, truth.captions, truth.images())


def cxc_text_text(
    similarity: Matrix, caption_ids: object, image_of_caption: object, judgements: Pairs, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, float]:
    r"""Compute recall at K from caption to caption.

    .. math::
        R@K = \frac{100}{|Q|} \sum_{q \in Q} [\min_{g \in G_q} \mathrm{rank}_q(g) \le K]

    where :math:`G_q` are the other captions of the same image and the captions rated 3 or more with q, in either order
    of the pair. The query itself is not in its gallery. Equal scores rank the lower index first.

    Args:
        similarity: ``(C, C)`` scores, queries in rows, array or tensor.
        caption_ids: ``(C,)`` COCO ids of the captions.
        image_of_caption: ``(C,)`` integers that are equal for captions of the same image.
        judgements: Two arrays of ids and one of ratings, as :func:`bcls.data.read_cxc` reads ``sts_test.csv``.
        ks: The cut-offs K.

    Returns:
        Percentages ``cxc_r{k}_t2t``, and the number of queries without a relevant item, which are left out,
        ``cxc_empty_t2t``.

    Raises:
        ValueError: If the matrix is not square, ids are missing, the judgements are not three arrays of equal length,
            or a score is not finite.

    Example:
        >>> judgements = np.array([7]), np.array([9]), np.array([4.0])
        >>> similarity = np.array([[1.0, 0.2, 0.3], [0.2, 1.0, 0.4], [0.3, 0.4, 1.0]])
        >>> cxc_text_text(similarity, [7, 8, 9], [0, 0, 1], judgements, ks=(1,))
        {'cxc_r1_t2t': 33.3..., 'cxc_empty_t2t': 0.0}
    """
    owner = as_ids("image_of_caption", image_of_caption)
    ids = as_ids("caption_ids", caption_ids)
    if len(owner) != len(ids):
        fail("image_of_caption", f"{len(ids)} integers, one per caption", len(owner), "give the image of each caption")
    order = np.argsort(owner, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(owner[order])) + 1)
    siblings = [(int(a), int(b)) for group in groups for a in group for b in group if a != b]
    gold = _rated_pairs("caption_ids", ids, judgements, _TEXT)
    return _same_kind_recalls(similarity, ids, [*gold, *siblings], ks, "t2t")


def cxc_image_image(
    similarity: Matrix, image_ids: object, judgements: Pairs, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, float]:
    """Compute recall at K from image to image, as :func:`cxc_text_text` does from caption to caption.

    Relevant items are the images rated 2.5 or more with the query, in either order of the pair.

    Args:
        similarity: ``(N, N)`` scores, queries in rows, array or tensor.
        image_ids: ``(N,)`` COCO ids of the images.
        judgements: Two arrays of ids and one of ratings, as :func:`bcls.data.read_cxc` reads ``sis_test.csv``.
        ks: The cut-offs K.

    Returns:
        Percentages ``cxc_r{k}_i2i``, and the number of queries without a relevant item, which are left out,
        ``cxc_empty_i2i``.

    Raises:
        ValueError: If the matrix is not square, ids are missing, or a score is not finite.

    Example:
        >>> judgements = np.array([7, 7]), np.array([9, 8]), np.array([4.0, 1.0])
        >>> similarity = np.array([[1.0, 0.2, 0.3], [0.2, 1.0, 0.4], [0.3, 0.4, 1.0]])
        >>> cxc_image_image(similarity, [7, 8, 9], judgements, ks=(1,))
        {'cxc_r1_i2i': 50.0, 'cxc_empty_i2i': 1.0}
    """
    ids = as_ids("image_ids", image_ids)
    return _same_kind_recalls(similarity, ids, _rated_pairs("image_ids", ids, judgements, _IMAGE), ks, "i2i")


class Truth(NamedTuple):
    """Relevant pairs by id, ``(P, 2)`` each, query and item: ``pairs["cxc", "i2t"]`` has rows of image and caption."""

    pairs: Mapping[tuple[str, str], Ids]
    #: All captions, in the order that defines the five folds of COCO 1K, and the image of each.
    captions: Ids
    image_of_caption: Ids

    @classmethod
    def build(cls, gold: Mapping[tuple[str, str], Gold], captions: Iterable[int]) -> "Truth":
        """Build it from dicts of items; the image of a caption is that of COCO."""
        order = np.fromiter(captions, dtype=np.int64)
        owner = gold["coco", "t2i"]
        images = np.array([next(iter(owner[int(caption)])) for caption in order], dtype=np.int64)
        pairs = {}
        for name, items in gold.items():
            listed = {(int(query), int(item)) for query, answers in items.items() for item in answers}
            pairs[name] = np.array(sorted(listed), dtype=np.int64).reshape(-1, 2)
        return cls(pairs, order, images)

    def images(self) -> Ids:
        """The ids of all images, each once."""
        return np.unique(self.image_of_caption)

    def folds(self) -> list[tuple[Ids, Ids]]:
        """The image ids and the caption ids of each of the five folds."""
        parts = zip(np.split(self.image_of_caption, _FOLDS), np.split(self.captions, _FOLDS), strict=True)
        return [(np.unique(images), captions) for images, captions in parts]


@functools.cache
def load_truth() -> Truth:
    """Read the ground truth that ships with ``eccv_caption``.

    Raises:
        MissingExtraError: If that package is not installed.
    """
    with warnings.catch_warnings(action="ignore"):
        # It warns that a faster JSON reader is missing, which these small files do not need.
        package = require("eccv_caption", "eval", "the ground truth of ECCV Caption, CxC and COCO 5K")
    folder = Path(str(package.__file__)).parent / "data"
    gold: dict[tuple[str, str], Gold] = {}
    for name, file in {"coco": "original", "cxc": "cxc", "eccv": "eccv"}.items():
        for direction, ending in (("i2t", "image_to_caption"), ("t2i", "caption_to_image")):
            text = (folder / f"{file}_{ending}.json").read_text(encoding="utf-8")
            gold[name, direction] = {int(query): items for query, items in json.loads(text).items()}
    return Truth.build(gold, np.load(folder / "coco_test_ids.npy", allow_pickle=False))


def positions(argument: str, ids: Ids, known: Ids, others: Ids) -> Callable[[Ids], Ids]:
    """Make a function that maps ids to rows or columns of a matrix.

    Args:
        argument: Name of the ids in error messages.
        ids: The ids of the rows or columns: those of the test split, each once, in any order.
        known: The ids of the test split.
        others: The ids of the other kind, to recognize swapped arguments.
    """
    expected = f"the {len(known)} {argument.removesuffix('_ids')} ids of the COCO 5K test split, each once"
    if ids.size and np.isin(ids, others).all() and not np.isin(ids, known).all():  # some ids are of both kinds
        hint = "rows are images: swap the ids, transpose the matrix"
        fail(argument, expected, f"{len(ids)} ids of the other kind", hint)
    wrong = id_differences(ids.tolist(), known.tolist())
    if wrong:
        fail(argument, expected, ", ".join(wrong), "evaluate the whole split with the ids of its files")
    order = np.argsort(ids)
    return lambda wanted: order[np.searchsorted(ids, wanted, sorter=order)]


def as_ids(argument: str, value: object) -> Ids:
    """Check that ``value`` is a list, an array or a tensor of integers.

    Example:
        >>> as_ids("image_ids", range(3))
        array([0, 1, 2])
    """
    ids = as_array(argument, value)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        fail(argument, "a list of integers", f"shape {ids.shape}, dtype {ids.dtype}", "give the ids of COCO's files")
    return ids.astype(np.int64)


def _add_recalls(shares: dict[str, list[float]], name: str, direction: str, above: Ids) -> None:
    for k, share in shares_within(above + 1, _KS).items():
        shares.setdefault(f"{name}_r{k}_{direction}", []).append(share)


def precisions(similarity: Matrix, query: Ids, item: Ids, direction: str) -> dict[str, float]:
    """Compute mAP@R, R-precision and R@1 over the queries with relevant items, as in :func:`eccv`.

    Args:
        similarity: ``(N, C)`` scores.
        query: ``(P,)`` the query of each relevant pair: rows for ``"i2t"``, columns for ``"t2i"``.
        item: ``(P,)`` its relevant item.
        direction: ``"i2t"`` or ``"t2i"``.

    Returns:
        Percentages ``map_at_r``, ``rprecision`` and ``r1``, with the direction as suffix.

    Example:
        >>> precisions(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0, 1]), np.array([0, 1]), "i2t")
        {'map_at_r_i2t': 50.0, 'rprecision_i2t': 50.0, 'r1_i2t': 50.0}
    """
    items = similarity.shape[1 if direction == "i2t" else 0]
    queries, sizes = np.unique(query, return_counts=True)
    keys = np.sort(query * items + item)
    values = []
    for part in blocks(len(queries), _BLOCK // items):
        size = sizes[part, None]
        depth = min(int(size.max()), items)
        if direction == "i2t":
            scores = take(similarity, queries[part], slice(None))
        else:
            scores = np.ascontiguousarray(take(similarity, slice(None), queries[part]).T)
        top = top_items(scores, depth)
        places = queries[part, None] * items + top
        hits = keys[np.minimum(np.searchsorted(keys, places), len(keys) - 1)] == places
        hits &= np.arange(depth) < size
        precision = np.cumsum(hits, axis=1) / np.arange(1, depth + 1)
        values.append(np.stack([(precision * hits).sum(1) / size[:, 0], hits.sum(1) / size[:, 0], hits[:, 0]]))
    means: Values = 100.0 * np.concatenate(values, axis=1).mean(axis=1)
    names = ("map_at_r", "rprecision", "r1")
    return {f"{name}_{direction}": float(value) for name, value in zip(names, means, strict=True)}


def _rated_pairs(argument: str, ids: Ids, judgements: Pairs, threshold: float) -> list[tuple[int, int]]:
    """List the pairs rated at least ``threshold``, in both orders, by their positions."""
    place = {int(one): index for index, one in enumerate(ids)}
    if len(place) != len(ids):
        fail(argument, "each id once", f"{len(ids) - len(place)} repeated", "keep one of each")
    first, second, score = _check_judgements(judgements)
    named = np.union1d(first, second)
    missing = named[~np.isin(named, ids)]
    if missing.size:
        expected = f"the {len(named)} ids of the judgements"
        fail(argument, expected, f"{len(missing)} missing, such as {missing[0]}", "evaluate the whole split")
    alike = score >= threshold
    pairs = zip(first[alike].tolist(), second[alike].tolist(), strict=True)
    return [ends for a, b in pairs for ends in ((place[a], place[b]), (place[b], place[a])) if a != b]


def _check_judgements(judgements: Pairs) -> Pairs:
    expected, hint = "two arrays of ids and one of scores, of one length", "give the result of bcls.data.read_cxc"
    if not isinstance(judgements, Sequence) or len(judgements) != 3:
        fail("judgements", expected, type(judgements).__name__, hint)
    first, second = (as_ids("judgements", part) for part in judgements[:2])
    score = as_array("judgements", judgements[2])
    if score.ndim != 1 or not len(first) == len(second) == len(score):
        fail("judgements", expected, f"shapes {first.shape}, {second.shape} and {score.shape}", hint)
    if score.dtype.kind not in "fiu" or not np.isfinite(score).all():
        fail("judgements", "scores that are finite numbers", f"dtype {score.dtype} or values that are not finite", hint)
    return first, second, score.astype(np.float64)


def _same_kind_recalls(
    similarity: Matrix, ids: Ids, gold: Iterable[tuple[int, int]], ks: Sequence[int], name: str
) -> dict[str, float]:
    check_matrix("similarity", similarity)
    ks = check_ks(ks)
    shape = (len(ids), len(ids))
    if tuple(similarity.shape) != shape:
        fail("similarity", f"shape {shape}", tuple(similarity.shape), "give the scores of all items with all items")
    pairs = np.array(sorted(set(gold)), dtype=np.int64).reshape(-1, 2)
    target = gold_targets(similarity, pairs[:, 0], pairs[:, 1], query="image")
    (above,), _ = count_above(similarity, slice(None), slice(None), [target], [])
    # The query is in its own row: exclude it from the count where it ranks above the target.
    places = np.arange(len(ids))
    own = take(similarity, places, places)
    ranks = 1 + above - ((own > target.score) | ((own == target.score) & (places < target.item)))
    ranks = ranks[target.exists()]
    metrics = {f"cxc_r{k}_{name}": share for k, share in shares_within(ranks, ks).items()}
    return metrics | {f"cxc_empty_{name}": float(len(ids) - len(ranks))}
