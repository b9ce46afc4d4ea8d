"""What the figures accept: matrices of numpy or torch, read block by block, with the first bad row named.

Orders and first places of many rows at once, with ties broken as the figures break them: lower index first.

The loop that the graded figures share: all queries of both directions, in blocks, on all cores.
"""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import fail

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

Matrix: TypeAlias = "NDArray[Any] | torch.Tensor"
Floats: TypeAlias = NDArray[np.floating[Any]]

_REAL_KINDS = "fiub"
_COUNTED_THERE = ("cuda",)


def is_tensor(value: object) -> "TypeIs[torch.Tensor]":
    """Tell a torch tensor without importing torch: nobody can hold one who has not imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def check_matrix(argument: str, value: Matrix) -> Matrix:
    """Check that ``value`` is a non-empty matrix of real numbers; its values are checked when they are read.

    Args:
        argument: Name of the argument, for the message.
        value: ``(N, C)`` array or tensor.

    Returns:
        ``value`` itself.

    Raises:
        ValueError: If it is no array or tensor, is not two-dimensional, is empty or holds no real numbers.

    Example:
        >>> check_matrix("similarity", np.zeros(3))
        Traceback (most recent call last):
        ...
        ValueError: `similarity`: expected a matrix (images, captions), got shape (3,); give one row an image ...
    """
    expected = "a matrix (images, captions)"
    if not is_tensor(value) and not isinstance(value, np.ndarray):
        fail(argument, expected, type(value).__name__, "give a numpy array or a torch tensor")
    shape = tuple(value.shape)
    if len(shape) != 2:
        fail(argument, expected, f"shape {shape}", "give one row an image and one column a caption")
    if 0 in shape:
        fail(argument, f"{expected} with at least one row and one column", f"shape {shape}", "give it some items")
    real = not value.is_complex() if is_tensor(value) else value.dtype.kind in _REAL_KINDS
    if not real:
        fail(argument, "real numbers", f"dtype {value.dtype}", "convert it to float32")
    return value


def as_array(argument: str, value: object) -> NDArray[Any]:
    """Bring a list, an array or a tensor of any kind to numpy.

    Args:
        argument: Name of the argument, for the message.
        value: Numbers, or names.

    Returns:
        An array of numbers or text; a tensor's floats are float32 where numpy may not have their kind.

    Raises:
        ValueError: If rows differ in length, or there are things that are neither numbers nor text.

    Example:
        >>> as_array("groups", [[1, 2], [3]])
        Traceback (most recent call last):
        ...
        ValueError: `groups`: expected numbers or names, all of one kind, got [[1, 2], [3]]; give an array, a tensor ...
    """
    expected, remedy = "numbers or names, all of one kind", "give an array, a tensor or a list of these"
    try:
        if is_tensor(value):
            tensor = value.detach().cpu()
            narrow = tensor.is_floating_point() and tensor.element_size() < 4
            array: NDArray[Any] = (tensor.float() if narrow else tensor).numpy()
        else:
            array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        fail(argument, expected, repr(value), remedy)
    if array.dtype.hasobject:
        fail(argument, expected, repr(value), remedy)
    return array


def counts_in_place(tensor: "torch.Tensor") -> bool:
    """Whether a tensor is on a device where the figures are counted; from others blocks are brought to the CPU."""
    return tensor.device.type in _COUNTED_THERE


def check_image_of_caption(value: object, images: int, captions: int) -> NDArray[np.int64]:
    """Check the image of each caption.

    Args:
        value: ``(C,)`` integers 0..N-1; array, tensor or sequence.
        images: N, the rows of the similarity matrix.
        captions: C, its columns.

    Returns:
        ``(C,)`` int64 array.

    Raises:
        ValueError: If there is not one integer 0..N-1 for each caption.

    Example:
        >>> check_image_of_caption([0, 0, 1], images=2, captions=3)
        array([0, 0, 1])
    """
    argument, expected = "image_of_caption", f"{captions} integers, the image of each caption"
    array = as_array(argument, value)
    if array.shape != (captions,):
        fail(argument, expected, f"shape {array.shape}", "give one for each column of `similarity`")
    if array.dtype.kind not in "iu":
        fail(argument, expected, f"dtype {array.dtype}", "give the row of the image in `similarity`")
    wrong = np.flatnonzero((array < 0) | (array >= images))
    if wrong.size:
        got = f"{array[wrong[0]]} at caption {wrong[0]}"
        fail(argument, f"integers 0 to {images - 1}", got, "give the row of the image in `similarity`")
    return array.astype(np.int64)


def to_floats(block: Matrix) -> Floats:
    """Bring a block to the CPU as float32 where that is exact, else as float64, so that no order is lost."""
    if is_tensor(block):
        wide = block.element_size() > (4 if block.is_floating_point() else 2)
        tensor = block.detach().cpu()
        floats: Floats = (tensor.double() if wide else tensor.float()).numpy()
        return floats
    target = np.float32 if np.can_cast(block.dtype, np.float32) else np.float64
    return block.astype(target, copy=False)


def read_rows(argument: str, matrix: Matrix, rows: slice) -> Floats:
    """Read a block of rows as floats.

    Args:
        argument: Name of the argument, for the message.
        matrix: ``(N, C)`` checked matrix.
        rows: Which rows.

    Returns:
        ``(rows, C)`` float32 or float64 array.

    Raises:
        ValueError: If a value is NaN or infinite; the first such row is named.
    """
    block = to_floats(matrix[rows])
    # The two extremes carry any NaN or infinity along and need no mask of the block's size.
    if not (np.isfinite(block.min()) and np.isfinite(block.max())):
        row = int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
        value = block[row][~np.isfinite(block[row])][0]
        fail(argument, "finite numbers", f"{value} in row {rows.start + row}", "look for a division by zero before it")
    return block


def take(matrix: Matrix, ids: NDArray[np.int64], axis: int) -> Floats:
    """Read some rows (axis 0) or columns (axis 1) as floats, without a check of the values.

    Example:
        >>> take(np.array([[1, 2, 3], [4, 5, 6]]), np.array([2, 0]), axis=1)
        array([[3., 1.],
               [6., 4.]])
    """
    if is_tensor(matrix):
        import torch

        return to_floats(matrix.index_select(axis, torch.from_numpy(ids).to(matrix.device)))
    return to_floats(matrix[ids] if axis == 0 else matrix[:, ids])


def blocks(length: int, step: int) -> Iterator[slice]:
    """Cut ``range(length)`` into consecutive slices of at most ``step``.

    Example:
        >>> list(blocks(5, 2))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def cores() -> int:
    """Count the cores that this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
