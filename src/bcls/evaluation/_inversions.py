"""Inversions of many permutations at once, with numpy's own sorts doing the merging."""

import numpy as np
from numpy.typing import NDArray

# Runs this long are counted by comparing all their pairs: sorting anything shorter costs more in calls than in work.
_RUN = 8


def count_inversions(permutations: NDArray[np.int32]) -> NDArray[np.int64]:
    r"""Count the inversions of each row.

    .. math::
        I = |\{(i, j) : i < j, p_i > p_j\}|

    A merge sort from the bottom, one level for all rows together. Each level sorts blocks of two neighbouring runs
    that are marked in the lowest bit; the places where the left run lands tell how many of the right one passed it.

    Args:
        permutations: ``(R, n)`` distinct integers in each row, 0 to :math:`2^{30} - 1`.

    Returns:
        ``(R,)`` int64 counts.

    Example:
        >>> count_inversions(np.array([[0, 1, 2], [2, 0, 1], [2, 1, 0]], dtype=np.int32))
        array([0, 2, 3])
    """
    rows, length = permutations.shape
    keys = permutations << 1
    total = np.zeros(rows, dtype=np.int64)
    whole = length - length % _RUN
    runs, rest = keys[:, :whole].reshape(rows, -1, _RUN), keys[:, whole:]
    for gap in range(1, _RUN):
        total += np.count_nonzero(runs[:, :, :-gap] > runs[:, :, gap:], axis=(1, 2))
        total += np.count_nonzero(rest[:, :-gap] > rest[:, gap:], axis=1)
    width = _RUN
    while width < length:
        whole = length - length % (2 * width)
        if whole:
            pairs = keys[:, :whole].reshape(rows, -1, 2 * width)
            total += _merge(pairs, width)
            keys[:, :whole] = pairs.reshape(rows, whole)
        # What is left over holds at most one run that is whole and one that is not; a lone run waits for its level.
        if length - whole > width:
            total += _merge(keys[:, None, whole:], width)
        width *= 2
    return total


def _merge(pairs: NDArray[np.int32], width: int) -> NDArray[np.int64]:
    """Sort each block of a left run of ``width`` and a right run, in place, and count the inversions between them."""
    pairs &= -2
    pairs[:, :, :width] |= 1
    pairs.sort(axis=2)
    # A left key at place p with l left keys before it has p - l right keys before it. The l add up to 0 + 1 + ...
    left = (pairs & 1).sum(axis=1, dtype=np.int32)
    places: NDArray[np.int64] = left @ np.arange(pairs.shape[2], dtype=np.int64)
    places -= pairs.shape[1] * (width * (width - 1) // 2)
    return places
