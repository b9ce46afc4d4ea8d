"""Normalised discounted cumulative gain, with graded labels, for every query of both directions."""

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_choice, check_whole, fail
from bcls.evaluation._inputs import Floats, Matrix
from bcls.evaluation._order import top_items
from bcls.evaluation._queries import by_query, check_labels, mean

# Two to a higher power, added up over a gallery, comes near the end of float64.
_HIGHEST = 1000.0


def ndcg(
    similarity: Matrix, relevance: Matrix, k: int | None = None, *, negative: str = "refuse", empty: str = "skip"
) -> dict[str, float]:
    r"""Compute the mean over queries of the normalised discounted cumulative gain, with two gains.

    .. math::
        \mathrm{nDCG} = \frac{\sum_{p=1}^{k} g(r_{\pi(p)}) / \log_2(p + 1)}{\sum_{p=1}^{k} g(r_{\sigma(p)}) /
        \log_2(p + 1)}, \qquad g(r) = r \text{ or } 2^r - 1

    where :math:`\pi` orders the items of a query by score, and :math:`\sigma` by label. Without ``k`` a query is cut
    at the number of its items with a label above 0. With the linear gain this is the definition of Wray et al. (On
    Semantic Similarity in Video Retrieval, 2021); the exponential gain has keys of its own. Equal scores rank the
    lower index first.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        relevance: ``(N, C)`` labels of the same pairs, array or tensor.
        k: The cut, the same for all queries; a gallery with fewer items is taken whole.
        negative: What to do about labels below 0, for which a gain makes no sense: ``"refuse"`` raises, ``"clip"``
            makes them 0, ``"shift"`` takes :math:`(1 + r) / 2` of every label, for cosines.
        empty: What to do about a query without a label above 0: ``"skip"`` leaves it out of the mean, ``"zero"``
            gives it 0.

    Returns:
        ``i2t_ndcg`` and ``t2i_ndcg`` and their mean ``ndcg``, from 0 to 1; the same with ``ndcg_exp``, the
        exponential gain; ``i2t_empty`` and ``t2i_empty``, how many queries had no label above 0. The mean of nothing
        is nan.

    Raises:
        ValueError: If the two are not matrices of one shape, a value is not finite, a label is below 0 (below -1 with
            ``"shift"``) or above 1000, or an option is unknown.

    Example:
        >>> similarity = np.array([[0.9, 0.3, 0.1], [0.2, 0.8, 0.5]])
        >>> relevance = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]])
        >>> figures = ndcg(similarity, relevance)
        >>> round(figures["i2t_ndcg"], 4), figures["t2i_ndcg"], round(figures["i2t_ndcg_exp"], 4)
        (0.8801, 1.0, 0.8964)
    """
    check_labels(similarity, relevance)
    check_choice("negative", negative, ("refuse", "clip", "shift"))
    check_choice("empty", empty, ("skip", "zero"))
    cut = None if k is None else check_whole("k", k, least=1)

    def rows(scores: Floats, labels: Floats, part: slice) -> NDArray[np.float64]:
        _check_range(labels, part, negative)
        return _gains(scores, _as_gains(labels, negative), cut)

    def columns(scores: Floats, labels: Floats, _part: slice) -> NDArray[np.float64]:
        return _gains(scores, _as_gains(labels, negative), cut)

    i2t, t2i = by_query(rows, columns, similarity, relevance)
    figures = {}
    for place, name in enumerate(("ndcg", "ndcg_exp")):
        for direction, values in (("i2t", i2t[place]), ("t2i", t2i[place])):
            figures[f"{direction}_{name}"] = mean(np.nan_to_num(values) if empty == "zero" else values)
        figures[name] = (figures[f"i2t_{name}"] + figures[f"t2i_{name}"]) / 2
    none = {"i2t_empty": np.isnan(i2t[0]), "t2i_empty": np.isnan(t2i[0])}
    return figures | {key: float(np.count_nonzero(which)) for key, which in none.items()}


def _check_range(labels: Floats, part: slice, negative: str) -> None:
    lowest = {"refuse": 0.0, "clip": -np.inf, "shift": -1.0}[negative]
    outside = (labels < lowest) | (labels > _HIGHEST)
    if outside.any():
        row = int(np.flatnonzero(outside.any(axis=1))[0])
        value = labels[row][outside[row]][0]
        remedy = 'negative="shift" maps cosines to 0..1, negative="clip" makes labels below 0 zero'
        if value > _HIGHEST:
            remedy = "divide the labels by a constant: 2 to such a power is beyond float64"
        expected = f"labels from {lowest:g} to {_HIGHEST:g}"
        fail("relevance", expected, f"{value:g} in row {part.start + row}", remedy)


def _as_gains(labels: Floats, negative: str) -> NDArray[np.float64]:
    wide = labels.astype(np.float64)
    return (1.0 + wide) / 2.0 if negative == "shift" else np.maximum(wide, 0.0)


def _gains(scores: Floats, labels: NDArray[np.float64], cut: int | None) -> NDArray[np.float64]:
    """Compute both kinds, ``(2, Q)``, of Q queries given as rows; nan where no label is above 0."""
    queries, items = scores.shape
    positive = np.count_nonzero(labels > 0, axis=1)
    cuts = positive if cut is None else np.full(queries, min(cut, items))
    depth = max(1, int(cuts.max()))
    # A query that is cut earlier than the block's deepest one has no weight from there on.
    weights = (np.arange(depth) < cuts[:, None]) / np.log2(np.arange(depth) + 2.0)
    found = np.take_along_axis(labels, top_items(scores, depth), axis=1)
    ideal = -np.sort(-labels, axis=1)[:, :depth]
    values = np.full((2, queries), np.nan)
    for place, (mine, top) in enumerate(((found, ideal), (_exponential(found), _exponential(ideal)))):
        best = (top * weights).sum(axis=1)
        np.divide((mine * weights).sum(axis=1), best, out=values[place], where=best > 0)
    return values


def _exponential(labels: NDArray[np.float64]) -> NDArray[np.float64]:
    gains: NDArray[np.float64] = np.expm1(labels * np.log(2.0))
    return gains
