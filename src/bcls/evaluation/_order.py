"""Orders and first places of many rows at once, with ties broken as the figures break them: lower index first."""

import numpy as np
from numpy.typing import NDArray

from bcls.evaluation._inputs import Floats

# Above this share of the row a sort of the whole row is as cheap as a selection and a sort of what it selects.
_SORT_FROM = 8


def order_keys(values: Floats) -> NDArray[np.uint32]:
    """Map each row to unsigned integers that are ordered, and equal, exactly as its values are.

    Example:
        >>> order_keys(np.array([[0.5, -1.0, 0.5]]))
        array([[1, 0, 1]], dtype=uint32)
    """
    if values.dtype == np.float32:
        # The bits of positive floats are ordered as they are, those of negative ones backwards. Adding zero makes
        # -0.0, which equals 0.0, the same bits.
        bits = np.add(values, np.float32(0), order="C").view(np.int32)
        flip: NDArray[np.uint32] = (bits >> 31).view(np.uint32) | np.uint32(0x80000000)
        return bits.view(np.uint32) ^ flip
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    dense = np.zeros(values.shape, dtype=np.uint32)
    np.cumsum(ordered[:, 1:] != ordered[:, :-1], axis=1, out=dense[:, 1:])
    keys = np.empty_like(dense)
    np.put_along_axis(keys, order, dense, axis=1)
    return keys


def top_items(scores: Floats, k: int) -> NDArray[np.int64]:
    """Find the k highest items of each row, as ``argsort(-scores, kind="stable")[:, :k]`` does.

    Args:
        scores: ``(Q, n)`` scores, minus infinity allowed.
        k: How many, at most n.

    Returns:
        ``(Q, k)`` column indices, best first.

    Example:
        >>> top_items(np.array([[0.1, 0.7, 0.7, 0.3]]), 3)
        array([[1, 2, 3]])
    """
    queries, items = scores.shape
    if k * _SORT_FROM > items:
        keys = (~order_keys(scores)).astype(np.uint64) << np.uint64(32) | np.arange(items, dtype=np.uint64)
        keys.sort(axis=1)
        return (keys[:, :k] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    last = np.partition(scores, items - k, axis=1)[:, items - k, None]
    # At least k of each row, and more only where the last place is tied.
    line, column = np.divmod(np.flatnonzero(scores >= last), items)
    order = np.lexsort((column, -scores[line, column], line))
    starts = np.searchsorted(line, np.arange(queries))
    top: NDArray[np.int64] = column[order][starts[:, None] + np.arange(k)]
    return top
