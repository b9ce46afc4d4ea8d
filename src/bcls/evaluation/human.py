"""Agreement between scores and what people said, with intervals that know which rows belong together."""

from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_whole, fail
from bcls.evaluation._inputs import Floats, cores
from bcls.evaluation._resample import add_intervals, check_groups, check_values
from bcls.evaluation.kendall import concordance

Codes: TypeAlias = NDArray[np.int64]

_NAMES = ("tau_b", "tau_c", "pearson", "spearman")


def human_correlation(
    scores: object,
    ratings: object,
    groups: object = None,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, float]:
    r"""Compute Kendall's tau-b and tau-c, Pearson's and Spearman's correlation, with bootstrap intervals.

    .. math::
        \tau_b = \frac{C - D}{\sqrt{(P - T_s)(P - T_r)}}, \qquad \tau_c = \frac{2 (C - D)}{n^2 (m - 1) / m}

    where of the :math:`P` pairs of the n rows :math:`C` are ordered alike, :math:`D` the other way round,
    :math:`T_s` and :math:`T_r` have equal scores or ratings, and m is the smaller number of different values. Tau-c
    is what CLIPScore prints for Flickr8k-Expert, tau-b for CrowdFlower.

    Rows about one photo are not independent. With ``groups`` whole photos are drawn, not rows; without it intervals
    come out too narrow. They run from percentile to percentile of the resamples that have the figure.

    Args:
        scores: ``(n,)`` scores of a model, array, tensor or list.
        ratings: ``(n,)`` what people said about the same rows.
        groups: ``(n,)`` names or numbers, the image of each row.
        resamples: How many times rows or groups are drawn; 0 for no intervals.
        confidence: The share of resamples inside the interval.
        seed: Of the draws.

    Returns:
        ``tau_b``, ``tau_c``, ``pearson`` and ``spearman``, each with ``_low`` and ``_high`` unless ``resamples`` is 0,
        and ``rows`` and ``groups``, how many there are. A figure is nan where all scores or all ratings are equal.

    Raises:
        ValueError: If the lengths differ, or a value is not finite; the row is named.

    Example:
        >>> human_correlation([0.1, 0.4, 0.3, 0.9], [1, 2, 2, 4], resamples=0)
        {'tau_b': 0.91..., 'tau_c': 0.93..., 'pearson': 0.99..., 'spearman': 0.94..., 'rows': 4.0, 'groups': 4.0}
    """
    model, people = check_values("scores", scores), check_values("ratings", ratings)
    if len(model) != len(people):
        fail("ratings", f"as many as `scores`, {len(model)}", len(people), "give one rating for each score")
    place, count = check_groups(groups, len(model))
    times = check_whole("resamples", resamples, least=0)
    # The order of the values is found once: places among the different values are all that ranks need.
    codes = [np.unique(values, return_inverse=True)[1] for values in (model, people)]
    figures = dict(zip(_NAMES, _correlations(model, people, *codes), strict=True))
    if times:
        order = np.argsort(place, kind="stable")
        sizes = np.bincount(place, minlength=count)
        starts = np.cumsum(sizes) - sizes

        def one(source: np.random.Generator) -> list[float]:
            drawn = source.integers(count, size=count)
            rows = order[_runs(starts[drawn], sizes[drawn])]
            return _correlations(model[rows], people[rows], codes[0][rows], codes[1][rows])

        # A generator for each resample, so that the result does not depend on the number of threads.
        sources = np.random.default_rng(check_whole("seed", seed, least=0)).spawn(times)
        with ThreadPoolExecutor(cores()) as pool:
            figures = add_intervals(figures, np.array(list(pool.map(one, sources))), confidence)
    return figures | {"rows": float(len(model)), "groups": float(count)}


def _runs(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """List ``start, start + 1, ...`` of each run behind each other.

    Example:
        >>> _runs(np.array([5, 0]), np.array([2, 3]))
        array([5, 6, 0, 1, 2])
    """
    before = np.cumsum(sizes) - sizes
    places: NDArray[np.int64] = np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
    return places


def _correlations(
    model: NDArray[np.float64], people: NDArray[np.float64], model_code: Codes, people_code: Codes
) -> list[float]:
    """Compute the four of them, from values and from their places among the different values; nan without any."""
    model_ranks, model_values = _mean_ranks(model_code)
    people_ranks, people_values = _mean_ranks(people_code)
    fewer = min(model_values, people_values)
    if fewer == 1:
        return [float("nan")] * len(_NAMES)
    rows = len(model)
    pairs = rows * (rows - 1) // 2
    (net,), (equal_scores,), (equal_ratings,) = concordance(_as_floats(model_code), _as_floats(people_code))
    tau_b = net / (np.sqrt(float(pairs - equal_scores)) * np.sqrt(float(pairs - equal_ratings)))
    tau_c = 2 * net / (rows**2 * (fewer - 1) / fewer)
    values = [tau_b, tau_c, _pearson(model, people), _pearson(model_ranks, people_ranks)]
    return [float(np.clip(value, -1.0, 1.0)) for value in values]


def _as_floats(codes: Codes) -> Floats:
    """Make a row of floats in the same order: of float32, which sort fast, where these are exact."""
    return codes[None].astype(np.float32 if codes.max() < 1 << 24 else np.float64)


def _mean_ranks(codes: Codes) -> tuple[NDArray[np.float64], int]:
    """Rank the values, equal ones with the mean of their ranks, and count the different ones."""
    sizes = np.bincount(codes)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[codes], int(np.count_nonzero(sizes))


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    # Scaled first, so that the squares of very large and of very small numbers are still numbers.
    x, y = x - x.mean(), y - y.mean()
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))
