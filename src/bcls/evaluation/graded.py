"""Metrics against graded labels: nDCG, coherent score, normalized caption score, plausible-match R-precision."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import bcls.evaluation.inputs as inputs
from bcls._core.errors import check_choice, check_whole, fail
from bcls.evaluation.inputs import Floats, Ids, Matrix, Values
from bcls.evaluation.kendall import taus
from bcls.evaluation.recall import check_ks

# The sum of 2 to a higher power over a gallery would come near the limit of float64.
_HIGHEST = 1000.0


def ndcg(
    similarity: Matrix, relevance: Matrix, k: int | None = None, *, negative: str = "refuse", empty: str = "skip"
) -> dict[str, float]:
    r"""Compute the mean over queries of the normalized discounted cumulative gain, with two gains.

    .. math::
        \mathrm{nDCG} = \frac{\sum_{p=1}^{k} g(r_{\pi(p)}) / \log_2(p + 1)}{\sum_{p=1}^{k} g(r_{\sigma(p)}) /
        \log_2(p + 1)}, \qquad g(r) = r \text{ or } 2^r - 1

    where :math:`\pi` orders the items of a query by score, and :math:`\sigma` by label. Without ``k`` a query is cut
    at the number of its items with a label above 0. With the linear gain this is the definition of Wray et al. (On
    Semantic Similarity in Video Retrieval, 2021); the exponential gain has separate keys. Equal scores rank the
    lower index first.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        relevance: ``(N, C)`` labels of the same pairs, array or tensor.
        k: The cut-off, the same for all queries; smaller galleries are used whole.
        negative: Treatment of labels below 0, for which a gain is not defined: ``"refuse"`` raises, ``"clip"``
            sets them to 0, ``"shift"`` replaces every label by :math:`(1 + r) / 2`, for cosines.
        empty: Treatment of a query without a label above 0: ``"skip"`` leaves it out of the mean, ``"zero"`` counts
            it as 0.

    Returns:
        ``i2t_ndcg`` and ``t2i_ndcg`` and their mean ``ndcg``, from 0 to 1; the same with ``ndcg_exp``, the
        exponential gain; ``i2t_empty`` and ``t2i_empty``, the number of queries without a label above 0. The mean
        over no queries is nan.

    Raises:
        ValueError: If the two are not matrices of the same shape, a value is not finite, a label is below 0 (below -1
            with ``"shift"``) or above 1000, or an option is unknown.

    Example:
        >>> similarity = np.array([[0.9, 0.3, 0.1], [0.2, 0.8, 0.5]])
        >>> relevance = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]])
        >>> metrics = ndcg(similarity, relevance)
        >>> round(metrics["i2t_ndcg"], 4), metrics["t2i_ndcg"], round(metrics["i2t_ndcg_exp"], 4)
        (0.8801, 1.0, 0.8964)
    """
    inputs.check_labels(similarity, relevance)
    check_choice("negative", negative, ("refuse", "clip", "shift"))
    check_choice("empty", empty, ("skip", "zero"))
    cut = None if k is None else check_whole("k", k, least=1)

    def gains(scores: Floats, labels: Floats, queries: Ids, _items: Ids) -> Values:
        _check_range(labels, queries, negative)
        wide = labels.astype(np.float64)
        return _gains(scores, (1.0 + wide) / 2.0 if negative == "shift" else np.maximum(wide, 0.0), cut)

    i2t, t2i = inputs.by_query(gains, similarity=similarity, relevance=relevance)
    metrics = _means_and_undefined(("ndcg", "ndcg_exp"), i2t, t2i, "empty", as_zero=empty == "zero")
    return metrics | {name: (metrics[f"i2t_{name}"] + metrics[f"t2i_{name}"]) / 2 for name in ("ndcg", "ndcg_exp")}


def _means_and_undefined(
    names: Sequence[str], i2t: Values, t2i: Values, undefined: str, *, as_zero: bool
) -> dict[str, float]:
    """Average over the queries, those without a value left out or as zero, and count these."""
    counts = {f"i2t_{undefined}": np.isnan(i2t[0]), f"t2i_{undefined}": np.isnan(t2i[0])}
    if as_zero:
        i2t, t2i = np.nan_to_num(i2t), np.nan_to_num(t2i)
    metrics = inputs.direction_means(names, i2t, t2i)
    return metrics | {key: float(np.count_nonzero(which)) for key, which in counts.items()}


def _check_range(labels: Floats, rows: Ids, negative: str) -> None:
    lowest = {"refuse": 0.0, "clip": -np.inf, "shift": -1.0}[negative]
    outside = (labels < lowest) | (labels > _HIGHEST)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        value = labels[row, column]
        hint = 'negative="shift" maps cosines to 0..1, negative="clip" sets labels below 0 to 0'
        if value > _HIGHEST:
            hint = "divide the labels by a constant: 2 to such a power is beyond float64"
        expected = f"labels from {lowest:g} to {_HIGHEST:g}"
        fail("relevance", expected, f"{value:g} in row {rows[row]}", hint)


def _gains(scores: Floats, labels: Values, cut: int | None) -> Values:
    """Compute nDCG with both gains, ``(2, Q)``, of Q queries given as rows; nan where no label is above 0."""
    queries, items = scores.shape
    positive = np.count_nonzero(labels > 0, axis=1)
    cuts = positive if cut is None else np.full(queries, min(cut, items))
    depth = max(1, int(cuts.max()))
    # Positions beyond a query's own cut-off have weight 0.
    weights = (np.arange(depth) < cuts[:, None]) / np.log2(np.arange(depth) + 2.0)
    found = np.take_along_axis(labels, inputs.top_items(scores, depth), axis=1)
    ideal = -np.sort(-labels, axis=1)[:, :depth]
    values = np.full((2, queries), np.nan)
    exponential = [np.expm1(gains * np.log(2.0)) for gains in (found, ideal)]
    for place, (mine, top) in enumerate(((found, ideal), exponential)):
        best = (top * weights).sum(axis=1)
        np.divide((mine * weights).sum(axis=1), best, out=values[place], where=best > 0)
    return values


def coherent_score(similarity: Matrix, relevance: Matrix, k: int, *, undefined: str = "skip") -> dict[str, float]:
    r"""Compute the mean over queries of tau-b between scores and labels of the K items with the highest scores.

    .. math::
        CS@K = \frac{1}{|Q|} \sum_{q \in Q} \tau_b(s_q[T_q], r_q[T_q])

    where :math:`T_q` are the first K items of query q, equal scores with the lower index first. This is the score of
    the ladder loss (Zhou et al., 2020), there computed with one caption per image, see :func:`one_per_image`. With K
    the whole gallery it is the tau-b of :func:`kendall`.

    A query has no tau-b if the scores or the labels of its K items are all equal; with K = 1 no query has one.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        relevance: ``(N, C)`` labels of the same pairs, array or tensor, any scale.
        k: The number of items of each query, at most the smaller of N and C.
        undefined: Treatment of a query without tau-b: ``"skip"`` leaves it out of the mean, ``"zero"`` counts it as 0.

    Returns:
        ``i2t_cs{k}`` and ``t2i_cs{k}``, and the number of queries without tau-b, ``i2t_undefined`` and
        ``t2i_undefined``. The mean over no queries is nan.

    Raises:
        ValueError: If the two are not matrices of the same shape, a value is not finite, or an option is invalid.

    Example:
        >>> similarity = np.array([[0.9, 0.3, 0.1], [0.2, 0.8, 0.5], [0.1, 0.4, 0.7]])
        >>> relevance = np.array([[1.0, 0.1, 0.4], [0.2, 1.0, 0.6], [0.2, 0.3, 0.9]])
        >>> coherent_score(similarity, relevance, k=3)
        {'i2t_cs3': 0.77..., 't2i_cs3': 0.93..., 'i2t_undefined': 0.0, 't2i_undefined': 0.0}
    """
    inputs.check_labels(similarity, relevance)
    check_choice("undefined", undefined, ("skip", "zero"))
    first, shape = check_whole("k", k, least=1), tuple(similarity.shape)
    if first > min(shape):
        fail("k", f"at most {min(shape)}, the smaller gallery of a matrix {shape}", first, "lower it")

    def top_taus(scores: Floats, labels: Floats, *_ids: Ids) -> Values:
        top = inputs.top_items(scores, first)
        return taus(np.take_along_axis(scores, top, axis=1), np.take_along_axis(labels, top, axis=1))[1:]

    i2t, t2i = inputs.by_query(top_taus, similarity=similarity, relevance=relevance)
    return _means_and_undefined([f"cs{first}"], i2t, t2i, "undefined", as_zero=undefined == "zero")


def one_per_image(image_of_caption: object, images: int, which: int = 0) -> Ids:
    """Choose one caption per image, for metrics that are defined on as many captions as images.

    Args:
        image_of_caption: ``(C,)`` integers, the row of each caption's image.
        images: N, the number of images.
        which: The position of the caption among those of its image, in the order of the columns.

    Returns:
        ``(N,)`` columns, in the order of the images, so that ``similarity[:, columns]`` is square.

    Raises:
        ValueError: If an image has no such caption.

    Example:
        >>> one_per_image([0, 0, 1, 2, 2, 1], images=3)
        array([0, 2, 3])
    """
    count, place = check_whole("images", images, least=1), check_whole("which", which, least=0)
    value = inputs.as_array("image_of_caption", image_of_caption)
    owner = inputs.check_image_of_caption(value, count, len(value) if value.ndim else 0)
    sizes = np.bincount(owner, minlength=count)
    short = np.flatnonzero(sizes <= place)
    if short.size:
        got = f"image {short[0]} with {sizes[short[0]]} ({short.size} such images)"
        fail("image_of_caption", f"at least {place + 1} captions per image", got, "leave these images out")
    # A stable sort groups the captions by image and keeps their order.
    columns: Ids = np.argsort(owner, kind="stable")[np.cumsum(sizes) - sizes + place]
    return columns


# As in the authors' code: a query whose whole gallery has value 0 gets 0, and nothing is divided by zero.
_EPSILON = 1e-10


def ncs(
    similarity: Matrix,
    metric: Matrix,
    image_of_caption: object,
    ks: Sequence[int] = (1, 5, 10, 20, 30),
    *,
    include_gold: bool = False,
) -> dict[str, float]:
    r"""Compute the normalized caption score at K of both directions.

    .. math::
        NCS@K = \frac{100}{|Q|} \sum_{q \in Q} \frac{\sum_{p \le K} m_{\pi(p)}}{\sum_{p \le K} m_{\sigma(p)} +
        K \epsilon}

    where :math:`m` are the values of a captioning metric (CIDEr or SPICE), :math:`\pi` orders the items of a query by
    score and :math:`\sigma` by metric, and :math:`\epsilon = 10^{-10}` (Biten et al., Is an Image Worth Five
    Sentences, 2022). Items of the query's own image are left out of both orders, since the score measures what lies
    beyond the binary labels.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        metric: ``(N, C)`` values, none below 0, of each caption against the references of each image.
        image_of_caption: ``(C,)`` integers, the row of each caption's image.
        ks: The cut-offs K. A query with fewer items uses all of its items.
        include_gold: Keep the items of the query's own image in both orders.

    Returns:
        Percentages ``i2t_ncs{k}`` and ``t2i_ncs{k}`` for each K. A query without items is left out; the mean
        over no queries is nan.

    Raises:
        ValueError: If shapes, indices or ``ks`` do not match, a value is not finite, or the metric is below 0.

    Example:
        >>> similarity = np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2], [0.1, 0.2, 0.7]])
        >>> metric = np.array([[9.0, 0.5, 2.0], [1.0, 8.0, 3.0], [2.0, 4.0, 9.0]])
        >>> ncs(similarity, metric, [0, 1, 2], ks=(1,))
        {'i2t_ncs1': 77.7..., 't2i_ncs1': 72.2...}
    """
    inputs.check_labels(similarity, metric, "metric")
    images, captions = similarity.shape
    owner = inputs.check_image_of_caption(image_of_caption, images, captions)
    ks = check_ks(ks)

    def ratios(scores: Floats, values: Floats, queries: Ids, items: Ids) -> Values:
        if values.min() < 0:
            row = int(np.flatnonzero((values < 0).any(axis=1))[0])
            hint = "shift the metric first: a share of a negative sum is not defined"
            fail("metric", "values not below 0", f"{values[row].min():g} in row {queries[row]}", hint)
        removed = (queries[:, None] == items) & (not include_gold)
        depth = min(max(ks), len(items))
        top = inputs.top_items(np.where(removed, -np.inf, scores), depth)
        found = np.take_along_axis(np.where(removed, 0.0, values), top, axis=1)
        best = -np.sort(-np.where(removed, 0.0, values).astype(np.float64), axis=1)[:, :depth]
        left = len(items) - np.count_nonzero(removed, axis=1)
        out = np.full((len(ks), len(scores)), np.nan)
        for place, k in enumerate(ks):
            # Removed items have value 0 and come last, so they add nothing; only the count excludes them.
            count = np.minimum(k, left)
            ideal = best[:, :k].sum(axis=1) + _EPSILON * count
            np.divide(found[:, :k].sum(axis=1, dtype=np.float64), ideal, out=out[place], where=count > 0)
        return out

    i2t, t2i = inputs.by_query(ratios, owner, similarity=similarity, metric=metric)
    metrics = {f"i2t_ncs{k}": 100.0 * inputs.mean(values) for k, values in zip(ks, i2t, strict=True)}
    return metrics | {f"t2i_ncs{k}": 100.0 * inputs.mean(values) for k, values in zip(ks, t2i, strict=True)}


class _Variant(NamedTuple):
    radii: tuple[int, ...]
    drop_unlabelled: bool
    omit_own: bool
    depth: int | None


_VARIANTS = {
    "pcme": _Variant((0, 1, 2), drop_unlabelled=True, omit_own=False, depth=None),
    "eccv": _Variant((2,), drop_unlabelled=False, omit_own=True, depth=None),
    "eccv50": _Variant((2,), drop_unlabelled=False, omit_own=True, depth=50),
}


def pmrp(similarity: Matrix, image_of_caption: object, codes: object, variant: str) -> dict[str, float]:
    r"""Compute the plausible-match R-precision of both directions.

    Three variants are in use, whose values cannot be compared with each other.

    .. math::
        RP_q = \frac{|\{\pi(1), \dots, \pi(R)\} \cap M_q|}{R}, \qquad
        M_q = \{j : \mathrm{Hamming}(c_q, c_j) \le \zeta\}, \qquad R = |M_q|

    where :math:`c` are the classes of objects in an image, a caption has those of its image, and :math:`\pi` orders
    the gallery of q by score, equal scores with the lower index first. An image without any class is unlabelled.

    - ``"pcme"`` (Chun et al., 2021): the mean over :math:`\zeta` = 0, 1, 2; unlabelled images and their captions are
      neither queries nor gallery items.
    - ``"eccv"`` (the package ``eccv_caption``): :math:`\zeta` = 2; the query's own image or captions are not
      matches; unlabelled images are not queries but stay in the gallery.
    - ``"eccv50"`` (Chun et al., 2022): the same with R at most 50.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        image_of_caption: ``(C,)`` integers, the row of each caption's image.
        codes: ``(N, L)`` 0 or 1: which of L classes are in each image.
        variant: ``"pcme"``, ``"eccv"`` or ``"eccv50"``.

    Returns:
        Percentages ``i2t_pmrp_{variant}`` and ``t2i_pmrp_{variant}``, over the queries with a match (and
        the radii at which they have one), and ``pmrp_unlabelled``, the number of images without a class. The mean
        over no queries is nan.

    Raises:
        ValueError: If shapes or indices do not match, codes are not 0 or 1, or a score is not finite.

    Example:
        >>> codes = np.array([[1, 0, 0, 0], [0, 1, 1, 1]])
        >>> pmrp(np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2]]), [0, 1, 1], codes, "pcme")
        {'i2t_pmrp_pcme': 75.0, 't2i_pmrp_pcme': 66.6..., 'pmrp_unlabelled': 0.0}
    """
    inputs.check_matrix("similarity", similarity)
    images, captions = similarity.shape
    owner = inputs.check_image_of_caption(image_of_caption, images, captions)
    bits = _check_codes(codes, images)
    rules = _VARIANTS[check_choice("variant", variant, _VARIANTS)]
    labelled: NDArray[np.bool_] = bits.sum(axis=1) > 0

    def r_precisions(scores: Floats, queries: Ids, items: Ids) -> Values:
        kept = labelled[items] | (not rules.drop_unlabelled)
        return _r_precisions(scores[:, kept], bits, queries, items[kept], rules)

    i2t, t2i = inputs.by_query(r_precisions, owner, similarity=similarity)
    metrics = {f"i2t_pmrp_{variant}": 100.0 * inputs.mean(i2t), f"t2i_pmrp_{variant}": 100.0 * inputs.mean(t2i)}
    return metrics | {"pmrp_unlabelled": float(np.count_nonzero(~labelled))}


def _check_codes(value: object, images: int) -> NDArray[np.float32]:
    codes = inputs.as_array("codes", value)
    if codes.ndim != 2 or len(codes) != images:
        expected = f"a matrix of {images} rows, one per image"
        fail("codes", expected, f"shape {codes.shape}", "give the classes of each image")
    if not np.isin(codes, (0, 1)).all():
        fail("codes", "0 or 1", "other values", "give 1 for a class that is in the image, else 0")
    return codes.astype(np.float32)


def _r_precisions(scores: Floats, bits: NDArray[np.float32], queries: Ids, items: Ids, rules: _Variant) -> Values:
    """Compute a row of values for each radius, nan where a query has no match; queries and items are image rows."""
    out = np.full((len(rules.radii), len(queries)), np.nan)
    kept = np.flatnonzero(bits[queries].any(axis=1))
    if not (len(kept) and len(items)):
        return out
    mine, sizes = bits[queries[kept]], bits.sum(axis=1)
    distance = (mine.sum(axis=1)[:, None] + sizes - 2 * (mine @ bits.T))[:, items]
    order = inputs.top_items(scores[kept], len(items))
    for place, radius in enumerate(rules.radii):
        match = distance <= radius
        match &= bits[items].any(axis=1)
        if rules.omit_own:
            match &= queries[kept, None] != items
        count = match.sum(axis=1)
        size = count if rules.depth is None else np.minimum(count, rules.depth)
        found = np.take_along_axis(match, order, axis=1) & (np.arange(len(items)) < size[:, None])
        out[place, kept] = np.divide(found.sum(axis=1), size, out=np.full(len(kept), np.nan), where=size > 0)
    return out
