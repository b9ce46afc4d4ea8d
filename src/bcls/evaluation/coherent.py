"""Coherent score: Kendall's tau among the items that a model puts first."""

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_choice, check_whole, fail
from bcls.evaluation._inputs import Floats, Matrix, as_array, check_image_of_caption
from bcls.evaluation._order import top_items
from bcls.evaluation._queries import by_query, check_labels, mean
from bcls.evaluation.kendall import taus


def coherent_score(similarity: Matrix, relevance: Matrix, k: int, *, undefined: str = "skip") -> dict[str, float]:
    r"""Compute the mean over queries of tau-b between scores and labels of the K items with the highest scores.

    .. math::
        CS@K = \frac{1}{|Q|} \sum_{q \in Q} \tau_b(s_q[T_q], r_q[T_q])

    where :math:`T_q` are the first K items of query q, equal scores with the lower index first. This is the score of
    the ladder loss (Zhou et al., 2020), there computed with one caption an image, see :func:`one_per_image`. With K
    the whole gallery it is the tau-b of :func:`kendall`.

    A query has no tau-b where the scores or the labels of its K items are all equal, and with K = 1 no query has one.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        relevance: ``(N, C)`` labels of the same pairs, array or tensor, any scale.
        k: How many items of each query, at most the smaller of N and C.
        undefined: What to do about a query without tau-b: ``"skip"`` leaves it out of the mean, ``"zero"`` gives it 0.

    Returns:
        ``i2t_cs{k}`` and ``t2i_cs{k}``, and how many queries had no tau-b: ``i2t_undefined`` and ``t2i_undefined``.
        The mean of nothing is nan.

    Raises:
        ValueError: If the two are not matrices of one shape, a value is not finite, or an option does not fit.

    Example:
        >>> similarity = np.array([[0.9, 0.3, 0.1], [0.2, 0.8, 0.5], [0.1, 0.4, 0.7]])
        >>> relevance = np.array([[1.0, 0.1, 0.4], [0.2, 1.0, 0.6], [0.2, 0.3, 0.9]])
        >>> coherent_score(similarity, relevance, k=3)
        {'i2t_cs3': 0.77..., 't2i_cs3': 0.93..., 'i2t_undefined': 0.0, 't2i_undefined': 0.0}
    """
    check_labels(similarity, relevance)
    check_choice("undefined", undefined, ("skip", "zero"))
    first, shape = check_whole("k", k, least=1), tuple(similarity.shape)
    if first > min(shape):
        fail("k", f"at most {min(shape)}, the smaller gallery of a matrix {shape}", first, "lower it")

    def top_taus(scores: Floats, labels: Floats, _part: slice) -> NDArray[np.float64]:
        top = top_items(scores, first)
        return taus(np.take_along_axis(scores, top, axis=1), np.take_along_axis(labels, top, axis=1))[1:]

    (i2t,), (t2i,) = by_query(top_taus, top_taus, similarity, relevance)
    figures = {}
    for direction, values in (("i2t", i2t), ("t2i", t2i)):
        figures[f"{direction}_cs{first}"] = mean(np.nan_to_num(values) if undefined == "zero" else values)
    none = {"i2t_undefined": np.isnan(i2t), "t2i_undefined": np.isnan(t2i)}
    return figures | {key: float(np.count_nonzero(which)) for key, which in none.items()}


def one_per_image(image_of_caption: object, images: int, which: int = 0) -> NDArray[np.int64]:
    """Choose one caption an image, for figures that are defined on as many captions as images.

    Args:
        image_of_caption: ``(C,)`` integers, the row of each caption's image.
        images: N, how many images there are.
        which: The place of the caption among those of its image, in the order of the columns.

    Returns:
        ``(N,)`` columns, in the order of the images, so that ``similarity[:, columns]`` is square.

    Raises:
        ValueError: If an image has no such caption.

    Example:
        >>> one_per_image([0, 0, 1, 2, 2, 1], images=3)
        array([0, 2, 3])
    """
    count, place = check_whole("images", images, least=1), check_whole("which", which, least=0)
    value = as_array("image_of_caption", image_of_caption)
    owner = check_image_of_caption(value, count, len(value) if value.ndim else 0)
    sizes = np.bincount(owner, minlength=count)
    short = np.flatnonzero(sizes <= place)
    if short.size:
        got = f"image {short[0]} with {sizes[short[0]]} ({short.size} such images)"
        fail("image_of_caption", f"at least {place + 1} captions an image", got, "leave these images out")
    # A stable sort puts the captions of an image together and keeps their order.
    columns: NDArray[np.int64] = np.argsort(owner, kind="stable")[np.cumsum(sizes) - sizes + place]
    return columns
