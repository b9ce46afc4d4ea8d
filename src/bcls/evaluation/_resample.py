"""Draws with replacement, and the checks of what is drawn."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_number, check_whole, fail
from bcls.evaluation._inputs import as_array

# Draws that are held at once.
_BLOCK = 1 << 22


def add_intervals(figures: dict[str, float], samples: NDArray[np.float64], confidence: float) -> dict[str, float]:
    """Put ``_low`` and ``_high`` behind each figure: percentiles of its column of resamples, nans left out.

    Example:
        >>> add_intervals({"tau": 0.5}, np.arange(101.0)[:, None], 0.5)
        {'tau': 0.5, 'tau_low': 25.0, 'tau_high': 75.0}
    """
    inside = check_number("confidence", confidence, "the usual one is 0.95", above=0)
    if inside >= 1:
        fail("confidence", "a share below 1", confidence, "the usual one is 0.95")
    out: dict[str, float] = {}
    for (name, value), column in zip(figures.items(), samples.T, strict=True):
        kept = column[~np.isnan(column)]
        ends = np.quantile(kept, [(1 - inside) / 2, (1 + inside) / 2]) if kept.size else (np.nan, np.nan)
        out |= {name: value, f"{name}_low": float(ends[0]), f"{name}_high": float(ends[1])}
    return out


def check_values(argument: str, value: object) -> NDArray[np.float64]:
    """Check that ``value`` is a list of finite numbers, and name the first that is not.

    Example:
        >>> check_values("scores", [1, 2])
        array([1., 2.])
    """
    array = as_array(argument, value)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "fiub":
        fail(argument, "a list of numbers", f"shape {array.shape}, dtype {array.dtype}", "give one for each query")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        fail(argument, "finite numbers", f"{array[bad[0]]} in row {bad[0]}", "leave such rows out on both sides")
    return array.astype(np.float64)


def check_groups(groups: object, rows: int) -> tuple[NDArray[np.int64], int]:
    """Number the groups from 0 on, and count them; without groups every row is one.

    Example:
        >>> check_groups(["b", "a", "b"], 3)
        (array([1, 0, 1]), 2)
    """
    if groups is None:
        return np.arange(rows), rows
    array = as_array("groups", groups)
    if array.shape != (rows,):
        fail(
            "groups", f"{rows} names or numbers, the image of each row", f"shape {array.shape}", "give one for each row"
        )
    names, place = np.unique(array, return_inverse=True)
    return place, len(names)


def draws(count: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Draw ``count`` of ``count`` with replacement, and say how often each came, in blocks of resamples."""
    rng = np.random.default_rng(check_whole("seed", seed, least=0))
    left = check_whole("resamples", resamples, least=1)
    step = max(1, _BLOCK // count)
    while left:
        rows = min(step, left)
        left -= rows
        drawn = rng.integers(count, size=(rows, count)) + count * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float64)


def coins(count: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Draw ``count`` signs, 1 or -1, in blocks of resamples; independent of :func:`draws` with the same seed."""
    rng = np.random.default_rng([seed, 1])
    step = max(1, _BLOCK // count)
    for start in range(0, resamples, step):
        yield rng.choice(np.array([-1.0, 1.0]), size=(min(step, resamples - start), count))
