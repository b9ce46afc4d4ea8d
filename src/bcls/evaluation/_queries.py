"""The loop that the graded figures share: all queries of both directions, in blocks, on all cores."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls.evaluation._inputs import Floats, Matrix, blocks, check_matrix, cores, read_rows, to_floats

#: Takes scores and labels ``(Q, n)`` of Q queries, and the place of the queries; gives ``(F, Q)`` values.
Figures: TypeAlias = Callable[[Floats, Floats, slice], NDArray[np.float64]]

# Elements that one thread works on at once: a few megabytes with everything made from them.
BLOCK = 1 << 16


def check_labels(similarity: Matrix, labels: Matrix, argument: str = "relevance") -> None:
    """Check that scores and labels are matrices of one shape, and say so where the labels lie the other way round."""
    check_matrix("similarity", similarity)
    check_matrix(argument, labels)
    shape, got = tuple(similarity.shape), tuple(labels.shape)
    if shape != got:
        remedy = "transpose it: rows are images" if shape == got[::-1] else "give one label for each score"
        fail(argument, f"the shape of `similarity`, {shape}", got, remedy)


def by_query(
    i2t: Figures, t2i: Figures, similarity: Matrix, labels: Matrix, argument: str = "relevance", block: int = BLOCK
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute values for each query, rows in the first direction and columns in the second.

    Args:
        i2t: What to compute for images as queries; called from several threads.
        t2i: The same for captions as queries.
        similarity: ``(N, C)`` checked matrix of scores.
        labels: ``(N, C)`` checked matrix of labels.
        argument: What the caller calls the labels.
        block: Elements that one thread works on at once.

    Returns:
        ``(F, N)`` and ``(F, C)`` values.

    Raises:
        ValueError: If a value is not finite; the first such row is named.
    """
    images, captions = similarity.shape

    def rows(part: slice) -> NDArray[np.float64]:
        return i2t(read_rows("similarity", similarity, part), read_rows(argument, labels, part), part)

    def columns(part: slice) -> NDArray[np.float64]:
        # Already found to be finite, row by row, in the other direction.
        return t2i(to_floats(similarity[:, part]).T, to_floats(labels[:, part]).T, part)

    return all_parts(rows, images, block // captions), all_parts(columns, captions, block // images)


def all_parts(values: Callable[[slice], NDArray[np.float64]], queries: int, step: int) -> NDArray[np.float64]:
    """Compute values of all queries, in blocks of ``step`` and on all cores, and put them together."""
    parts = list(blocks(queries, max(1, step)))
    # Threads, for the sorts that take the time run outside the interpreter's lock. In order, so that the first bad
    # row is the one that is reported.
    with ThreadPoolExecutor(min(cores(), len(parts))) as pool:
        return np.concatenate(list(pool.map(values, parts)), axis=1)


def mean(values: NDArray[np.float64]) -> float:
    """Average the values that are there; the mean of nothing is nan.

    Example:
        >>> mean(np.array([1.0, np.nan, 2.0])), mean(np.array([np.nan]))
        (1.5, nan)
    """
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if kept.size else float("nan")
