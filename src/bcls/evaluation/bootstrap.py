"""How sure a figure is, and whether two models differ: resampling of images, each with all its captions."""

from collections.abc import Sequence

import numpy as np

from bcls._checks import check_choice, fail
from bcls.evaluation._inputs import Matrix, check_image_of_caption, check_matrix
from bcls.evaluation._resample import add_intervals, check_groups, check_values, coins, draws
from bcls.evaluation.median import query_ranks, recalls_of_ranks
from bcls.evaluation.recall import check_ks


def recall_intervals(
    similarity: Matrix,
    image_of_caption: object,
    ks: Sequence[int] = (1, 5, 10),
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, float]:
    r"""Compute percentile intervals of the recalls at K and of their sum.

    .. math::
        [Q_{(1 - c)/2}, Q_{(1 + c)/2}] \text{ of } R@K^{(b)} = \frac{100 \sum_i w_i^{(b)} h_i}{\sum_i w_i^{(b)} n_i}

    where :math:`w^{(b)}` says how often image i was drawn in resample b, and :math:`h_i` of its :math:`n_i` queries
    are hits: the image itself, or its captions, which are drawn with it because they are not independent. The gallery
    stays as it is.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor, any scale.
        image_of_caption: ``(C,)`` integers, the row of each caption's image.
        ks: The cut-offs K.
        resamples: How many times the images are drawn.
        confidence: The share of resamples inside the interval.
        seed: Of the draws.

    Returns:
        ``i2t_r{k}`` and ``t2i_r{k}`` and ``rsum`` as :func:`recalls` gives them, and each with ``_low`` and ``_high``.

    Raises:
        ValueError: If shapes, indices or ``ks`` do not fit together, or a score is not finite.

    Example:
        >>> similarity = np.eye(20) + np.random.default_rng(0).random((20, 20))
        >>> figures = recall_intervals(similarity, range(20), ks=(1,), resamples=200)
        >>> figures["i2t_r1_low"] <= figures["i2t_r1"] <= figures["i2t_r1_high"]
        True
    """
    check_matrix("similarity", similarity)
    ks = check_ks(ks)
    owner = check_image_of_caption(image_of_caption, *similarity.shape)
    ranks = query_ranks(similarity, owner)
    images = similarity.shape[0]
    hits = [*(ranks.i2t <= k for k in ks), *(np.bincount(owner, ranks.t2i <= k, minlength=images) for k in ks)]
    sizes = [np.ones(images)] * len(ks) + [np.bincount(owner, minlength=images)] * len(ks)
    # An image without captions has no query in either direction: as it is not drawn, no resample is without queries.
    asked = ranks.i2t > 0
    top, bottom = np.array(hits, dtype=np.float64)[:, asked], np.array(sizes, dtype=np.float64)[:, asked]
    drawn = [100.0 * (w @ top.T) / (w @ bottom.T) for w in draws(top.shape[1], resamples, seed)]
    samples = np.concatenate(drawn)
    samples = np.column_stack([samples, samples.sum(axis=1)])
    return add_intervals(recalls_of_ranks([ranks], ks), samples, confidence)


def paired_test(
    a: object,
    b: object,
    groups: object = None,
    *,
    method: str = "permutation",
    resamples: int = 10000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, float]:
    r"""Test whether two models differ, from their values on the same queries.

    .. math::
        d = \bar a - \bar b, \qquad p = \frac{1 + |\{t : |d^{(t)}| \ge |d|\}|}{1 + T}

    With ``"permutation"`` the two models change places at random in each of T trials, all queries of an image
    together, and p is the share of :math:`|d^{(t)}|` that reach :math:`|d|`. With ``"bootstrap"`` images are drawn
    with their queries, and p is twice the smaller share of :math:`d^{(t)}` on one side of 0. The interval is the
    bootstrap's in both.

    Args:
        a: ``(Q,)`` values of one model, such as hits (``query_ranks(...).t2i <= 1``) or average precisions.
        b: ``(Q,)`` values of the other model for the same queries.
        groups: ``(Q,)`` integers, the image of each query; without it every query is for itself.
        method: ``"permutation"`` or ``"bootstrap"``.
        resamples: T, how many times.
        confidence: The share of resamples inside the interval.
        seed: Of the draws.

    Returns:
        ``difference`` of the means, a less b, its ``difference_low`` and ``difference_high``, and ``p_value``.

    Raises:
        ValueError: If the lengths differ, a value is not finite, or an option does not fit.

    Example:
        >>> figures = paired_test([1, 1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0, 0])
        >>> figures["difference"], figures["p_value"] < 0.05
        (0.875, True)
    """
    check_choice("method", method, ("permutation", "bootstrap"))
    first, second = check_values("a", a), check_values("b", b)
    if len(first) != len(second):
        fail("b", f"as many values as `a`, {len(first)}", len(second), "give both models the same queries")
    place, count = check_groups(groups, len(first))
    gaps, sizes = np.bincount(place, first - second, minlength=count), np.bincount(place, minlength=count)
    difference = float(gaps.sum() / len(first))
    samples = np.concatenate([(w @ gaps) / (w @ sizes) for w in draws(count, resamples, seed)])
    if method == "permutation":
        # Each image swaps the models or does not: a sign before its summed difference.
        signs = np.concatenate([s @ gaps for s in coins(count, resamples, seed)]) / len(first)
        # A little less than |d|, for sums in another order differ in their last digits.
        reached = np.count_nonzero(np.abs(signs) >= abs(difference) * (1 - 1e-12))
        p_value = (1 + int(reached)) / (1 + resamples)
    else:
        sides = int(np.count_nonzero(samples <= 0)), int(np.count_nonzero(samples >= 0))
        p_value = min(1.0, 2 * (1 + min(sides)) / (1 + resamples))
    return add_intervals({"difference": difference}, samples[:, None], confidence) | {"p_value": p_value}
