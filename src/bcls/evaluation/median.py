"""The rank of the best gold item of each query, and the median and the mean of these ranks."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bcls.evaluation._inputs import Matrix, check_image_of_caption, check_matrix
from bcls.evaluation._ranks import count_above, gold_targets


class QueryRanks(NamedTuple):
    """Ranks from 1 on; 0 for an image without captions, which is no query."""

    #: ``(N,)`` rank of the best caption of each image.
    i2t: NDArray[np.int64]
    #: ``(C,)`` rank of the image of each caption.
    t2i: NDArray[np.int64]


def shares_within(ranks: NDArray[np.int64], ks: Iterable[int]) -> dict[int, float]:
    """Compute the percentage of ranks that are at most K, for each K; rank 0 is no query, and of none it is nan.

    Example:
        >>> shares_within(np.array([1, 3, 0, 7, 2]), (1, 5))
        {1: 25.0, 5: 75.0}
    """
    asked = ranks[ranks > 0]
    return {k: 100.0 * int(np.count_nonzero(asked <= k)) / len(asked) if len(asked) else float("nan") for k in ks}


def recalls_of_ranks(folds: Sequence[QueryRanks], ks: Sequence[int]) -> dict[str, float]:
    """Compute what :func:`bcls.evaluation.recalls` gives, from the ranks of each fold.

    Example:
        >>> recalls_of_ranks([QueryRanks(np.array([1, 2]), np.array([1, 1, 2, 3]))], (1,))
        {'i2t_r1': 50.0, 't2i_r1': 50.0, 'rsum': 100.0}
    """
    figures: dict[str, float] = {}
    for direction, name in enumerate(QueryRanks._fields):
        shares = [shares_within(fold[direction], ks) for fold in folds]
        figures |= {f"{name}_r{k}": sum(one[k] for one in shares) / len(folds) for k in ks}
    return figures | {"rsum": sum(figures.values())}


def query_ranks(similarity: Matrix, image_of_caption: object) -> QueryRanks:
    r"""Compute the rank of the best gold item of every query, what recalls and tests between models are made of.

    .. math::
        \mathrm{rank}_q = 1 + \min_{g \in G_q} |\{j : s_{qj} > s_{qg} \text{ or } s_{qj} = s_{qg}, j < g\}|

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor, any scale.
        image_of_caption: ``(C,)`` integers, the row of each caption's image.

    Returns:
        ``(N,)`` ranks of the images and ``(C,)`` of the captions, ``i2t`` and ``t2i``; 0 for an image without captions.

    Raises:
        ValueError: If shapes or indices do not fit together, or a score is not finite.

    Example:
        >>> query_ranks(np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2]]), [0, 1, 1])
        QueryRanks(i2t=array([1, 2]), t2i=array([1, 1, 2]))
    """
    check_matrix("similarity", similarity)
    owner = check_image_of_caption(image_of_caption, *similarity.shape)
    captions = np.arange(len(owner))
    of_images = gold_targets(similarity, owner, captions, query="image")
    of_captions = gold_targets(similarity, owner, captions, query="caption")
    (i2t,), (t2i,) = count_above(similarity, slice(None), slice(None), [of_images], [of_captions])
    return QueryRanks(np.where(of_images.asked(), i2t + 1, 0), t2i + 1)


def median_rank(similarity: Matrix, image_of_caption: object) -> dict[str, float]:
    """Compute the median and the mean rank of the best gold item, over the queries of each direction.

    The median is rounded down, as in the tables of the field.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor, any scale.
        image_of_caption: ``(C,)`` integers, the row of each caption's image; an image without captions is no query.

    Returns:
        ``i2t_median_rank``, ``i2t_mean_rank``, ``t2i_median_rank`` and ``t2i_mean_rank``, 1 for a gold item in front.

    Raises:
        ValueError: If shapes or indices do not fit together, or a score is not finite.

    Example:
        >>> median_rank(np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2]]), [0, 1, 1])
        {'i2t_median_rank': 1.0, 'i2t_mean_rank': 1.5, 't2i_median_rank': 1.0, 't2i_mean_rank': 1.33...}
    """
    i2t, t2i = query_ranks(similarity, image_of_caption)
    figures = {}
    for direction, ranks in (("i2t", i2t[i2t > 0]), ("t2i", t2i)):
        figures[f"{direction}_median_rank"] = float(np.floor(np.median(ranks)))
        figures[f"{direction}_mean_rank"] = float(ranks.mean())
    return figures
