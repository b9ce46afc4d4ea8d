r"""From a similarity to a score between 0 and 1 that means the same for every model and every index."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bcls._checks import fail

#: From this score on, a result is said to fit.
FITS = 0.5
_STEPS = 65
#: Share of the wide curve in a distribution.
_WIDE = 0.02


@dataclass(frozen=True)
class Calibration:
    r"""Compares a similarity with those of right results and of the best wrong ones.

    .. math:: score(s) = \frac{P(S_{right} \le s)}{P(S_{right} \le s) + P(S_{wrong} > s)}

    ``right`` are similarities of results that are right, ``wrong`` those of the *best* result, out of the whole index,
    for queries that nothing in it answers; the size of the index is in there. The score grows with s. It is 0.5 where
    as many right results lie below s as wrong ones lie above it (the equal error rate), near 0 where wrong results
    reach easily, near 1 where they hardly ever do. Both distributions are kept as quantiles and are straight lines
    between them, with a short slope beyond both ends so that the order is kept there too.

    Attributes:
        right: Quantiles of the similarities of right results, from the lowest to the highest.
        wrong: Quantiles of the best similarities of wrong results.
        origin: Where they come from, ``"captions"`` or ``"texts"`` or ``"photos"``.

    Example:
        >>> scores = Calibration([0.4, 0.6, 0.8], [0.1, 0.2, 0.5], "captions")
        >>> [round(float(one), 2) for one in scores([0.0, 0.1, 0.45, 0.7, 0.9])]
        [0.0, 0.0, 0.59, 1.0, 1.0]
    """

    right: list[float]
    wrong: list[float]
    origin: str

    def __post_init__(self) -> None:
        for name in ("right", "wrong"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or (np.diff(values) < 0).any():
                fail(name, "quantiles in rising order", getattr(self, name), "fit the calibration again")

    def __call__(self, similarity: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Scores of similarities, in the same shape."""
        values = np.asarray(similarity, dtype=np.float64)
        right = _below(values, self.right)
        wrong = 1 - _below(values, self.wrong)
        return right / (right + wrong)


def fit(right: npt.ArrayLike, wrong: npt.ArrayLike, origin: str) -> Calibration:
    """Take the quantiles of two samples.

    Args:
        right: Similarities of right results, at least one.
        wrong: Best similarities of wrong ones, at least one.
        origin: What the samples are.

    Example:
        >>> fit([0.5], [0.1, 0.2], "texts").right[0]
        0.5
    """
    samples = [np.asarray(sample, dtype=np.float64) for sample in (right, wrong)]
    low, high = ([round(float(one), 6) for one in np.quantile(one, np.linspace(0, 1, _STEPS))] for one in samples)
    return Calibration(low, high, origin)


def _below(values: npt.NDArray[np.float64], quantiles: list[float]) -> npt.NDArray[np.float64]:
    """Share of a distribution below each value: never quite 0 or 1, and rising everywhere."""
    points = np.asarray(quantiles, dtype=np.float64)
    shares = np.linspace(0, 1, len(points)) if len(points) > 1 else np.array([0.5])
    half = max(float(points[-1] - points[0]) / 2, 0.025)
    inside = np.interp(values, points, shares)
    # A wide curve (Cauchy's) counts a little, which lends the ends their slope.
    curve = 0.5 + np.arctan((values - (points[0] + points[-1]) / 2) / half) / np.pi
    return np.asarray((1 - _WIDE) * inside + _WIDE * curve)
