"""Normalised caption score: how well a captioning metric likes what a model puts first."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls.evaluation._inputs import Floats, Matrix, check_image_of_caption
from bcls.evaluation._order import top_items
from bcls.evaluation._queries import by_query, check_labels, mean
from bcls.evaluation.recall import check_ks

# As in the public code of the score: a query whose whole gallery is worth nothing then has 0 and no division fails.
_EPSILON = 1e-10


def ncs(
    similarity: Matrix,
    metric: Matrix,
    image_of_caption: object,
    ks: Sequence[int] = (1, 5, 10, 20, 30),
    *,
    include_gold: bool = False,
) -> dict[str, float]:
    r"""Compute the normalised caption score at K of both directions.

    .. math::
        NCS@K = \frac{100}{|Q|} \sum_{q \in Q} \frac{\sum_{p \le K} m_{\pi(p)}}{\sum_{p \le K} m_{\sigma(p)} +
        K \epsilon}

    where :math:`m` are the values of a captioning metric (CIDEr or SPICE), :math:`\pi` orders the items of a query by
    score and :math:`\sigma` by metric, and :math:`\epsilon = 10^{-10}` (Biten et al., Is an Image Worth Five
    Sentences, 2022). Items of the query's own image are left out of both orders, for only what lies beyond the
    binary labels is to be measured.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        metric: ``(N, C)`` values, none below 0, of each caption against the references of each image.
        image_of_caption: ``(C,)`` integers, the row of each caption's image.
        ks: The cut-offs K. A query with fewer items takes those it has.
        include_gold: Keep the items of the query's own image in both orders.

    Returns:
        Percentages ``i2t_ncs{k}`` and ``t2i_ncs{k}`` for each K. A query without items is left out; the mean of
        nothing is nan.

    Raises:
        ValueError: If shapes, indices or ``ks`` do not fit together, a value is not finite, or the metric is below 0.

    Example:
        >>> similarity = np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2], [0.1, 0.2, 0.7]])
        >>> metric = np.array([[9.0, 0.5, 2.0], [1.0, 8.0, 3.0], [2.0, 4.0, 9.0]])
        >>> ncs(similarity, metric, [0, 1, 2], ks=(1,))
        {'i2t_ncs1': 77.7..., 't2i_ncs1': 72.2...}
    """
    check_labels(similarity, metric, "metric")
    images, captions = similarity.shape
    owner = check_image_of_caption(image_of_caption, images, captions)
    ks = check_ks(ks)

    def ratios(scores: Floats, values: Floats, gold: NDArray[np.bool_]) -> NDArray[np.float64]:
        items = scores.shape[1]
        removed = gold & (not include_gold)
        depth = min(max(ks), items)
        top = top_items(np.where(removed, -np.inf, scores), depth)
        found = np.take_along_axis(np.where(removed, 0.0, values), top, axis=1)
        best = -np.sort(-np.where(removed, 0.0, values).astype(np.float64), axis=1)[:, :depth]
        left = items - np.count_nonzero(removed, axis=1)
        out = np.full((len(ks), len(scores)), np.nan)
        for place, k in enumerate(ks):
            # What was removed is worth 0 and comes last, so that it adds nothing; only the count has to know.
            count = np.minimum(k, left)
            ideal = best[:, :k].sum(axis=1) + _EPSILON * count
            np.divide(found[:, :k].sum(axis=1, dtype=np.float64), ideal, out=out[place], where=count > 0)
        return out

    def rows(scores: Floats, values: Floats, part: slice) -> NDArray[np.float64]:
        if values.min() < 0:
            row = int(np.flatnonzero((values < 0).any(axis=1))[0])
            got = f"{values[row].min():g} in row {part.start + row}"
            fail("metric", "values not below 0", got, "a share of a negative sum means nothing; shift the metric first")
        return ratios(scores, values, owner == np.arange(part.start, part.stop)[:, None])

    def columns(scores: Floats, values: Floats, part: slice) -> NDArray[np.float64]:
        return ratios(scores, values, owner[part, None] == np.arange(images))

    i2t, t2i = by_query(rows, columns, similarity, metric, "metric")
    figures = {f"i2t_ncs{k}": 100.0 * mean(values) for k, values in zip(ks, i2t, strict=True)}
    return figures | {f"t2i_ncs{k}": 100.0 * mean(values) for k, values in zip(ks, t2i, strict=True)}
