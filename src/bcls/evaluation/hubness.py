"""Hubness: a few items that come first for many queries, and many that come first for none."""

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_whole, fail
from bcls.evaluation._inputs import Matrix, check_matrix, read_rows, to_floats
from bcls.evaluation._order import top_items
from bcls.evaluation._queries import BLOCK, all_parts


def hubness(similarity: Matrix, k: int = 10) -> dict[str, float]:
    r"""Compute the skewness of the k-occurrences of both galleries, with their extremes.

    .. math::
        S = \frac{\frac{1}{n} \sum_j (O_j - \bar O)^3}{\bigl(\frac{1}{n} \sum_j (O_j - \bar O)^2\bigr)^{3/2}}, \qquad
        O_j = |\{q : j \in T_q\}|

    where :math:`T_q` are the first k items of query q, equal scores with the lower index first (Radovanović et al.,
    2010). 0 is even; text-image galleries with hubs have several units.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        k: How many items of each query, at most the smaller of N and C.

    Returns:
        For images as queries and captions as gallery ``i2t_skew{k}``, ``i2t_most{k}``, the highest occurrence, and
        ``i2t_never{k}``, the percentage of captions that no image has among its first k; for captions as queries the
        same with ``t2i``. The skewness is nan where all occurrences are equal.

    Raises:
        ValueError: If ``similarity`` is no matrix of finite numbers, or ``k`` does not fit.

    Example:
        >>> hubness(np.array([[0.9, 0.5, 0.1], [0.8, 0.5, 0.2], [0.7, 0.1, 0.2]]), k=1)
        {'i2t_skew1': 0.70..., 'i2t_most1': 3.0, 'i2t_never1': 66.6..., 't2i_skew1': 0.0, ...}
    """
    check_matrix("similarity", similarity)
    images, captions = similarity.shape
    first = check_whole("k", k, least=1)
    if first > min(images, captions):
        fail("k", f"at most {min(images, captions)}, the smaller gallery", first, "lower it")

    def rows(part: slice) -> NDArray[np.float64]:
        return top_items(read_rows("similarity", similarity, part), first).T.astype(np.float64)

    def columns(part: slice) -> NDArray[np.float64]:
        return top_items(np.ascontiguousarray(to_floats(similarity[:, part]).T), first).T.astype(np.float64)

    i2t = all_parts(rows, images, BLOCK // captions)
    t2i = all_parts(columns, captions, BLOCK // images)
    return _figures("i2t", i2t, captions, first) | _figures("t2i", t2i, images, first)


def _figures(direction: str, top: NDArray[np.float64], items: int, k: int) -> dict[str, float]:
    occurrence = np.bincount(top.astype(np.int64).ravel(), minlength=items).astype(np.float64)
    gap = occurrence - occurrence.mean()
    spread = float((gap**2).mean())
    return {
        f"{direction}_skew{k}": float((gap**3).mean()) / spread**1.5 if spread > 0 else float("nan"),
        f"{direction}_most{k}": float(occurrence.max()),
        f"{direction}_never{k}": 100.0 * float(np.mean(occurrence == 0)),
    }
