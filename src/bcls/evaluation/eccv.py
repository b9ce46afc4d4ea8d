"""The figures of ECCV Caption, CxC and COCO on the MS-COCO 5K test split, all from one look at the matrix."""

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls.evaluation._coco_truth import Places, Truth, as_ids, load_truth
from bcls.evaluation._inputs import Floats, Matrix, blocks, check_matrix, take
from bcls.evaluation._order import top_items
from bcls.evaluation._ranks import count_above, gold_targets
from bcls.evaluation._targets import Ids, Targets
from bcls.evaluation.median import shares_within

_KS = (1, 5, 10)
# Elements of the queries that are looked at at once for their first items: a few megabytes.
_BLOCK = 1 << 20


def eccv(similarity: Matrix, image_ids: object, caption_ids: object) -> dict[str, float]:
    r"""Compute all figures of ECCV Caption, and the recalls of COCO 1K, COCO 5K and CxC.

    .. math::
        mAP@R = \frac{1}{R} \sum_{p=1}^{R} [\pi(p) \in G_q] \frac{|\{\pi(1), \dots, \pi(p)\} \cap G_q|}{p}, \qquad
        RP = \frac{|\{\pi(1), \dots, \pi(R)\} \cap G_q|}{R}

    where :math:`\pi` orders the gallery of query q by score, equal scores with the lower index first, :math:`G_q`
    are its gold items and :math:`R = |G_q|`; averaged over the queries that have gold items. Recalls are those of
    :func:`recalls`, with the gold items of each collection. The figures are those of the package ``eccv_caption``,
    times 100, whose ground truth is read; no row is sorted for them.

    Args:
        similarity: ``(5000, 25000)`` scores, array or tensor.
        image_ids: ``(5000,)`` COCO's id of the image of each row, in any order.
        caption_ids: ``(25000,)`` COCO's id of the caption of each column, in any order.

    Returns:
        Percentages ``eccv_map_at_r``, ``eccv_rprecision``, ``eccv_r1``, ``coco_1k_r1``, ``_r5``, ``_r10``,
        ``coco_5k_r1`` ..., ``cxc_r1`` ..., each with ``_i2t`` and with ``_t2i`` behind it. COCO 1K is the mean over
        the five folds.

    Raises:
        ValueError: If ids are unknown, missing or repeated, which are counted and shown, if the matrix is transposed
            or of another size, or if a score is not finite.
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
        remedy = "it is transposed: give similarity.T" if got == shape[::-1] else "give one id for each row and column"
        fail("similarity", f"shape {shape} of {shape[0]} images and {shape[1]} captions", got, remedy)
    truth = load_truth()
    images = Places("image_ids", image_list, truth.images(), truth.captions)
    captions = Places("caption_ids", caption_list, truth.captions, truth.images())
    return _figures(similarity, truth, images, captions)


def _figures(similarity: Matrix, truth: Truth, images: Places, captions: Places) -> dict[str, float]:
    """Compute them, for any ground truth."""
    targets: dict[str, list[Targets]] = {"i2t": [], "t2i": []}
    for name in ("coco", "cxc"):
        pairs = truth.pairs[name, "i2t"]
        targets["i2t"].append(gold_targets(similarity, images(pairs[:, 0]), captions(pairs[:, 1]), query="image"))
        pairs = truth.pairs[name, "t2i"]
        targets["t2i"].append(gold_targets(similarity, images(pairs[:, 1]), captions(pairs[:, 0]), query="caption"))
    # The whole matrix once, for both collections and both directions; this also finds what is not finite.
    ranks = count_above(similarity, slice(None), slice(None), targets["i2t"], targets["t2i"])
    shares: dict[str, list[float]] = {}
    for direction, counts in zip(("i2t", "t2i"), ranks, strict=True):
        for name, target, count in zip(("coco_5k", "cxc"), targets[direction], counts, strict=True):
            _add_recalls(shares, name, direction, count[target.asked()])
    for fold_images, fold_captions in truth.folds():
        rows, columns = _span(np.sort(images(fold_images))), _span(np.sort(captions(fold_captions)))
        by_image, by_caption = count_above(similarity, rows, columns, targets["i2t"][:1], targets["t2i"][:1])
        _add_recalls(shares, "coco_1k", "i2t", by_image[0])
        _add_recalls(shares, "coco_1k", "t2i", by_caption[0])
    figures = {key: sum(values) / len(values) for key, values in shares.items()}
    i2t, t2i = truth.pairs["eccv", "i2t"], truth.pairs["eccv", "t2i"]
    figures |= _precisions(similarity, images(i2t[:, 0]), captions(i2t[:, 1]), "i2t")
    figures |= _precisions(similarity, captions(t2i[:, 0]), images(t2i[:, 1]), "t2i")
    return figures


def _add_recalls(shares: dict[str, list[float]], name: str, direction: str, above: Ids) -> None:
    for k, share in shares_within(above + 1, _KS).items():
        shares.setdefault(f"{name}_r{k}_{direction}", []).append(share)


def _span(ids: Ids) -> slice | Ids:
    """Take neighbours as a slice, which reads them without a copy."""
    first, last = int(ids[0]), int(ids[-1])
    return slice(first, last + 1) if last - first + 1 == len(ids) else ids


def _precisions(similarity: Matrix, query: Ids, item: Ids, direction: str) -> dict[str, float]:
    """Compute mAP@R, R-precision and R@1 over the queries that have gold items, from their first R items alone."""
    items = similarity.shape[1 if direction == "i2t" else 0]
    asked, sizes = np.unique(query, return_counts=True)
    keys = np.sort(query * items + item)
    values = []
    for part in blocks(len(asked), max(1, _BLOCK // items)):
        size = sizes[part, None]
        depth = min(int(size.max()), items)
        top = top_items(_queries(similarity, asked[part], direction), depth)
        places = asked[part, None] * items + top
        hits = keys[np.minimum(np.searchsorted(keys, places), len(keys) - 1)] == places
        hits &= np.arange(depth) < size
        precision = np.cumsum(hits, axis=1) / np.arange(1, depth + 1)
        values.append(np.stack([(precision * hits).sum(1) / size[:, 0], hits.sum(1) / size[:, 0], hits[:, 0]]))
    means: NDArray[np.float64] = 100.0 * np.concatenate(values, axis=1).mean(axis=1)
    names = ("eccv_map_at_r", "eccv_rprecision", "eccv_r1")
    return {f"{name}_{direction}": float(value) for name, value in zip(names, means, strict=True)}


def _queries(similarity: Matrix, ids: Ids, direction: str) -> Floats:
    if direction == "i2t":
        return take(similarity, ids, axis=0)
    return np.ascontiguousarray(take(similarity, ids, axis=1).T)
