"""Confidence intervals, paired tests between models, and correlation with human ratings.

All intervals and tests resample whole images with all of their captions or ratings, since these are not independent.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import bcls.evaluation.inputs as inputs
from bcls._core.errors import check_choice, check_number, check_whole, fail
from bcls._core.extras import cpu_count
from bcls.evaluation.inputs import Floats, Ids, Matrix, Values, as_array
from bcls.evaluation.kendall import concordance
from bcls.evaluation.recall import check_ks, query_ranks, recalls_from_ranks

# Numbers drawn at a time, 2 MB: with arrays of 32 MB the tests take 1.5 to 2 times as long.
_BLOCK = 1 << 18


def add_intervals(metrics: dict[str, float], samples: Values, confidence: float) -> dict[str, float]:
    """Add ``_low`` and ``_high`` to each metric: percentiles of its column of resamples, without nans.

    Example:
        >>> add_intervals({"tau": 0.5}, np.arange(101.0)[:, None], 0.5)
        {'tau': 0.5, 'tau_low': 25.0, 'tau_high': 75.0}
    """
    inside = check_number("confidence", confidence, "the usual one is 0.95", above=0)
    if inside >= 1:
        fail("confidence", "a number below 1", confidence, "the usual one is 0.95")
    out: dict[str, float] = {}
    for (name, value), column in zip(metrics.items(), samples.T, strict=True):
        kept = column[~np.isnan(column)]
        ends = np.quantile(kept, [(1 - inside) / 2, (1 + inside) / 2]) if kept.size else (np.nan, np.nan)
        out |= {name: value, f"{name}_low": float(ends[0]), f"{name}_high": float(ends[1])}
    return out


def check_values(argument: str, value: object) -> Values:
    """Check that ``value`` is a list of finite numbers.

    Example:
        >>> check_values("scores", [1, 2])
        array([1., 2.])
    """
    array = as_array(argument, value)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "fiub":
        fail(argument, "a list of numbers", f"shape {array.shape}, dtype {array.dtype}", "give one for each query")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        fail(argument, "finite numbers", f"{array[bad[0]]} in row {bad[0]}", "leave such rows out of both lists")
    return array.astype(np.float64)


def check_groups(groups: object, rows: int) -> tuple[Ids, int]:
    """Number the groups from 0 and count them; without groups every row is a group.

    Example:
        >>> check_groups(["b", "a", "b"], 3)
        (array([1, 0, 1]), 2)
    """
    if groups is None:
        return np.arange(rows), rows
    array = as_array("groups", groups)
    if array.shape != (rows,):
        expected = f"{rows} names or numbers, the image of each row"
        fail("groups", expected, f"shape {array.shape}", "give one for each row")
    names, place = np.unique(array, return_inverse=True)
    return place, len(names)


def draws(count: int, resamples: int, seed: int) -> Iterator[Values]:
    """Draw ``count`` of ``count`` with replacement and yield how often each was drawn, in blocks of resamples."""
    rng = np.random.default_rng(check_whole("seed", seed, least=0))
    for part in inputs.blocks(check_whole("resamples", resamples, least=1), _BLOCK // count):
        rows = part.stop - part.start
        drawn = rng.integers(count, size=(rows, count)) + count * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float64)


def coins(count: int, resamples: int, seed: int) -> Iterator[Values]:
    """Draw ``count`` signs, 1 or -1, in blocks of resamples; independent of :func:`draws` with the same seed."""
    rng = np.random.default_rng([seed, 1])
    for part in inputs.blocks(resamples, _BLOCK // count):
        yield rng.choice(np.array([-1.0, 1.0]), size=(part.stop - part.start, count))


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

    where :math:`w_i^{(b)}` is how often image i was drawn in resample b, and :math:`h_i` of its :math:`n_i` queries
    are hits: the image itself, or its captions, which are drawn with it because they are not independent. The gallery
    does not change.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor, any scale.
        image_of_caption: ``(C,)`` integers, the row of each caption's image.
        ks: The cut-offs K.
        resamples: The number of resamples.
        confidence: The share of resamples inside the interval.
        seed: Seed of the draws.

    Returns:
        ``i2t_r{k}``, ``t2i_r{k}`` and ``rsum`` as in :func:`recalls`, and each with ``_low`` and ``_high``.

    Raises:
        ValueError: If shapes, indices or ``ks`` do not match, or a score is not finite.

    Example:
        >>> similarity = np.eye(20) + np.random.default_rng(0).random((20, 20))
        >>> metrics = recall_intervals(similarity, range(20), ks=(1,), resamples=200)
        >>> metrics["i2t_r1_low"] <= metrics["i2t_r1"] <= metrics["i2t_r1_high"]
        True
    """
    inputs.check_matrix("similarity", similarity)
    ks = check_ks(ks)
    owner = inputs.check_image_of_caption(image_of_caption, *similarity.shape)
    ranks = query_ranks(similarity, owner)
    images = similarity.shape[0]
    hits = [*(ranks.i2t <= k for k in ks), *(np.bincount(owner, ranks.t2i <= k, minlength=images) for k in ks)]
    sizes = [np.ones(images)] * len(ks) + [np.bincount(owner, minlength=images)] * len(ks)
    # An image without captions is not a query in either direction. It is not drawn, so every resample has queries.
    queries = ranks.i2t > 0
    top, bottom = np.array(hits, dtype=np.float64)[:, queries], np.array(sizes, dtype=np.float64)[:, queries]
    drawn = [100.0 * (w @ top.T) / (w @ bottom.T) for w in draws(top.shape[1], resamples, seed)]
    samples = np.concatenate(drawn)
    samples = np.column_stack([samples, samples.sum(axis=1)])
    return add_intervals(recalls_from_ranks([ranks], ks), samples, confidence)


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

    With ``"permutation"`` the two models are swapped at random in each of T trials, for all queries of an image
    together, and p is the share of :math:`|d^{(t)}|` that reach :math:`|d|`. With ``"bootstrap"`` images are drawn
    with their queries, and p is twice the smaller share of :math:`d^{(t)}` on one side of 0. The interval is the
    bootstrap interval in both cases.

    Args:
        a: ``(Q,)`` values of one model, such as hits (``query_ranks(...).t2i <= 1``) or average precisions.
        b: ``(Q,)`` values of the other model for the same queries.
        groups: ``(Q,)`` integers, the image of each query; without it all queries are independent.
        method: ``"permutation"`` or ``"bootstrap"``.
        resamples: T, the number of resamples.
        confidence: The share of resamples inside the interval.
        seed: Seed of the draws.

    Returns:
        ``difference`` of the means, a minus b, its ``difference_low`` and ``difference_high``, and ``p_value``.

    Raises:
        ValueError: If the lengths differ, a value is not finite, or an option is invalid.

    Example:
        >>> metrics = paired_test([1, 1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0, 0])
        >>> metrics["difference"], metrics["p_value"] < 0.05
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
        # Swapping the models of an image changes the sign of its summed difference.
        signs = np.concatenate([s @ gaps for s in coins(count, resamples, seed)]) / len(first)
        # A little less than |d|, since sums in another order differ in their last digits.
        reached = np.count_nonzero(np.abs(signs) >= abs(difference) * (1 - 1e-12))
        p_value = (1 + int(reached)) / (1 + resamples)
    else:
        p_value = _two_sided(samples, 0.0)
    return add_intervals({"difference": difference}, samples[:, None], confidence) | {"p_value": p_value}


def hierarchical_test(
    a: object, b: object, *, resamples: int = 10000, confidence: float = 0.95, seed: int = 0
) -> dict[str, float]:
    r"""Test whether two training methods differ, from several training seeds of each on the same images.

    .. math::
        d^{(t)} = \frac{1}{N} \sum_i w_i^{(t)} \left( \frac{1}{S_a} \sum_s u_s^{(t)} a'_{si}
            - \frac{1}{S_b} \sum_s v_s^{(t)} b'_{si} \right), \qquad
        a'_{si} = \bar a_i + \sqrt{\frac{S_a}{S_a - 1}} (a_{si} - \bar a_i)

    A hierarchical bootstrap: each resample t draws seeds of a and of b independently and the same images for both,
    with replacement; u, v and w are how often each was drawn. The factor corrects the variance of a bootstrap of few
    seeds, which is too small by :math:`(S - 1) / S`. The p-value is twice the smaller share of resamples on one side of
    0. With one seed of each it covers images only.

    Args:
        a: ``(S_a, N)`` values of one method for each seed and image.
        b: ``(S_b, N)`` values of the other one for the same images.
        resamples: The number of resamples.
        confidence: The share of resamples inside the interval.
        seed: Seed of the draws.

    Returns:
        ``difference`` of the means, a minus b, its ``difference_low`` and ``difference_high``, and ``p_value``.

    Raises:
        ValueError: If the shapes do not match, or a value is not finite.

    Example:
        >>> metrics = hierarchical_test([[2.0, 3.0, 2.0], [2.0, 2.0, 3.0]], [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
        >>> round(metrics["difference"], 2), metrics["p_value"] < 0.05
        (1.67, True)
    """
    drawn: list[list[Values]] = []
    means: list[float] = []
    tables = [as_array(name, values) for name, values in (("a", a), ("b", b))]
    for number, (name, table) in enumerate(zip("ab", tables, strict=True)):
        if table.ndim != 2 or table.shape[1:] != tables[0].shape[1:]:
            hint = "give a row for each seed and a column for each image"
            fail(name, "a table of seeds and images, as `a`", f"shape {table.shape}", hint)
        seeds, images = table.shape
        values = check_values(name, table.ravel()).reshape(seeds, images)
        center = values.mean(axis=0)
        spread = center + (values - center) * np.sqrt(seeds / max(seeds - 1, 1))
        source = np.random.default_rng([seed, 2 + number])
        parts = []
        for w in draws(images, resamples, seed):
            times = source.multinomial(seeds, [1 / seeds] * seeds, size=len(w))
            parts.append(((w @ spread.T) * times).sum(axis=1) / (seeds * images))
        drawn.append(parts)
        means.append(float(values.mean()))
    samples = np.concatenate(drawn[0]) - np.concatenate(drawn[1])
    # Sums of equal values differ in their last digits.
    near = 1e-12 * max(float(np.abs(table).max()) for table in tables)
    metrics = add_intervals({"difference": means[0] - means[1]}, samples[:, None], confidence)
    return metrics | {"p_value": _two_sided(samples, near)}


def _two_sided(samples: Values, near: float) -> float:
    """Twice the smaller share of resamples on one side of 0; those within ``near`` of it count on both."""
    fewer = min(np.count_nonzero(samples <= near), np.count_nonzero(samples >= -near))
    return min(1.0, 2 * (1 + int(fewer)) / (1 + len(samples)))


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Adjust p-values for their number, so that the chance of any false finding stays below the level (Holm, 1979).

    .. math::
        \tilde p_{(i)} = \max_{j \le i} \min(1, (m - j + 1) p_{(j)})

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for turn, place in enumerate(sorted(range(len(p_values)), key=lambda one: p_values[one])):
        highest = max(highest, min(1.0, (len(p_values) - turn) * p_values[place]))
        adjusted[place] = highest
    return adjusted


_NAMES = ("tau_b", "tau_c", "pearson", "spearman")


def human_correlation(
    scores: Any, ratings: Any, groups: Any = None, *, resamples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> dict[str, float]:
    r"""Compute Kendall's tau-b and tau-c, Pearson's and Spearman's correlation, with bootstrap intervals.

    .. math::
        \tau_b = \frac{C - D}{\sqrt{(P - T_s)(P - T_r)}}, \qquad \tau_c = \frac{2 (C - D)}{n^2 (m - 1) / m}

    where of the :math:`P` pairs of the n rows :math:`C` are ordered alike, :math:`D` differently,
    :math:`T_s` and :math:`T_r` have equal scores or ratings, and m is the smaller number of different values. Tau-c
    is what CLIPScore reports for Flickr8k-Expert, tau-b for CrowdFlower.

    Rows about the same photo are not independent. With ``groups`` whole photos are drawn instead of rows; without it
    the intervals are too narrow. They are percentile intervals over the resamples in which the metric is defined.

    Args:
        scores: ``(n,)`` scores of a model, array, tensor or list.
        ratings: ``(n,)`` human ratings of the same rows.
        groups: ``(n,)`` names or numbers, the image of each row.
        resamples: The number of resamples; 0 for no intervals.
        confidence: The share of resamples inside the interval.
        seed: Seed of the draws.

    Returns:
        ``tau_b``, ``tau_c``, ``pearson`` and ``spearman``, each with ``_low`` and ``_high`` unless ``resamples`` is 0,
        and the numbers of ``rows`` and ``groups``. A metric is nan if all scores or all ratings are equal.

    Raises:
        ValueError: If the lengths differ, or a value is not finite; the message names the row.

    Example:
        >>> human_correlation([0.1, 0.4, 0.3, 0.9], [1, 2, 2, 4], resamples=0)
        {'tau_b': 0.91..., 'tau_c': 0.93..., 'pearson': 0.99..., 'spearman': 0.94..., 'rows': 4.0, 'groups': 4.0}
    """
    model, human = check_values("scores", scores), check_values("ratings", ratings)
    if len(model) != len(human):
        fail("ratings", f"as many as `scores`, {len(model)}", len(human), "give one rating for each score")
    place, count = check_groups(groups, len(model))
    times = check_whole("resamples", resamples, least=0)
    # Sort once: ranks need only the position of each value among the distinct values.
    codes = [np.unique(values, return_inverse=True)[1] for values in (model, human)]
    metrics = dict(zip(_NAMES, _correlations(model, human, *codes), strict=True))
    if times:
        order = np.argsort(place, kind="stable")
        sizes = np.bincount(place, minlength=count)
        starts = np.cumsum(sizes) - sizes

        def one(source: np.random.Generator) -> list[float]:
            drawn = source.integers(count, size=count)
            rows = order[_runs(starts[drawn], sizes[drawn])]
            return _correlations(model[rows], human[rows], codes[0][rows], codes[1][rows])

        # One generator per resample, so that the result does not depend on the number of threads.
        sources = np.random.default_rng(check_whole("seed", seed, least=0)).spawn(times)
        with ThreadPoolExecutor(cpu_count()) as pool:
            metrics = add_intervals(metrics, np.array(list(pool.map(one, sources))), confidence)
    return metrics | {"rows": float(len(model)), "groups": float(count)}


def jackknife_values(scores: object, ratings: object, groups: object, metric: str) -> Values:
    r"""Distribute a correlation among the photos, so that photos can be resampled as values with a mean.

    .. math::
        v_i = n \tau - (n - 1) \tau_{-i}

    the jackknife's pseudo-values, with :math:`\tau_{-i}` the correlation without the rows of photo i.

    Args:
        scores: As in :func:`human_correlation`, as the next two.
        ratings: Human ratings of the same rows.
        groups: The image of each row.
        metric: A key of :func:`human_correlation`, such as ``"tau_c"``.

    Returns:
        ``(n,)`` values, one for each image, in the sorted order of ``groups``.
    """
    model, human = check_values("scores", scores), check_values("ratings", ratings)
    place, count = check_groups(groups, len(model))
    whole = human_correlation(model, human, resamples=0)[metric]

    def without(group: int) -> float:
        kept = place != group
        return human_correlation(model[kept], human[kept], resamples=0)[metric]

    return np.array([count * whole - (count - 1) * without(group) for group in range(count)])


def _runs(starts: Ids, sizes: Ids) -> Ids:
    """Concatenate ``start, start + 1, ...`` of each run.

    Example:
        >>> _runs(np.array([5, 0]), np.array([2, 3]))
        array([5, 6, 0, 1, 2])
    """
    before = np.cumsum(sizes) - sizes
    places: Ids = np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
    return places


def _correlations(model: Values, human: Values, model_code: Ids, human_code: Ids) -> list[float]:
    """Compute the four correlations from values and their positions among the distinct values; nan if undefined."""
    model_ranks, model_values = _mean_ranks(model_code)
    human_ranks, human_values = _mean_ranks(human_code)
    fewer = min(model_values, human_values)
    if fewer == 1:
        return [float("nan")] * len(_NAMES)
    rows = len(model)
    pairs = rows * (rows - 1) // 2
    (net,), (equal_scores,), (equal_ratings,) = concordance(_as_floats(model_code), _as_floats(human_code))
    tau_b = net / (np.sqrt(float(pairs - equal_scores)) * np.sqrt(float(pairs - equal_ratings)))
    tau_c = 2 * net / (rows**2 * (fewer - 1) / fewer)
    values = [tau_b, tau_c, _pearson(model, human), _pearson(model_ranks, human_ranks)]
    return [float(np.clip(value, -1.0, 1.0)) for value in values]


def _as_floats(codes: Ids) -> Floats:
    """Convert to a row of floats in the same order: float32, which sort faster, if this is exact."""
    return codes[None].astype(np.float32 if codes.max() < 1 << 24 else np.float64)


def _mean_ranks(codes: Ids) -> tuple[Values, int]:
    """Rank the values, ties with the mean of their ranks, and count the distinct values."""
    sizes = np.bincount(codes)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[codes], int(np.count_nonzero(sizes))


def _pearson(x: Values, y: Values) -> float:
    # Scaled first, so that squares of very large or very small numbers neither overflow nor underflow.
    x, y = x - x.mean(), y - y.mean()
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))
