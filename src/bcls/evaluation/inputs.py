"""Shared code of the metrics: input validation, block-wise reading of matrices, orders and top items of rows.

A matrix is a numpy array or a torch tensor on any device. Every block is converted to float32 where this is exact and
to float64 otherwise. Ties are always broken in favor of the lower index.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import fail
from bcls._core.extras import cpu_count

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

Matrix: TypeAlias = "NDArray[Any] | torch.Tensor"
Floats: TypeAlias = NDArray[np.floating[Any]]
Ids: TypeAlias = NDArray[np.int64]
Values: TypeAlias = NDArray[np.float64]
#: Maps blocks ``(Q, n)`` of each matrix, for Q queries, the ids of the queries and those of the n items to ``(F, Q)``
#: values.
QueryMetric: TypeAlias = Callable[..., Values]

#: Elements that one thread processes at a time; a few megabytes with all intermediate arrays.
BLOCK = 1 << 16
# Devices on which metrics are computed in place; tensors on other devices are copied to the CPU block by block.
_IN_PLACE_DEVICES = ("cuda",)
# If k is above 1/8 of the row length, sorting the whole row is as fast as a selection followed by a sort.
_SORT_FROM = 8


def is_tensor(value: object) -> "TypeIs[torch.Tensor]":
    """Whether ``value`` is a torch tensor; does not import torch, since a tensor exists only if torch is loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def computes_in_place(tensor: "torch.Tensor") -> bool:
    """Whether metrics of this tensor are computed on its own device."""
    return tensor.device.type in _IN_PLACE_DEVICES


def check_matrix(argument: str, value: Matrix) -> Matrix:
    """Check that ``value`` is a non-empty matrix of real numbers. Its values are checked when they are read.

    Args:
        argument: Name of the argument in error messages.
        value: ``(N, C)`` array or tensor.

    Returns:
        ``value``, unchanged.

    Raises:
        ValueError: If it is not an array or tensor, not two-dimensional, empty, or not of real numbers.

    Example:
        >>> check_matrix("similarity", np.zeros(3))
        Traceback (most recent call last):
        ...
        ValueError: `similarity`: expected a matrix (images, captions), got shape (3,); give one row per image ...
    """
    expected = "a matrix (images, captions)"
    if not is_tensor(value) and not isinstance(value, np.ndarray):
        fail(argument, expected, type(value).__name__, "give a numpy array or a torch tensor")
    shape = tuple(value.shape)
    if len(shape) != 2:
        fail(argument, expected, f"shape {shape}", "give one row per image and one column per caption")
    if 0 in shape:
        fail(argument, f"{expected} with at least one row and one column", f"shape {shape}", "do not leave it empty")
    real = not value.is_complex() if is_tensor(value) else value.dtype.kind in "fiub"
    if not real:
        fail(argument, "real numbers", f"dtype {value.dtype}", "convert it to float32")
    return value


def check_labels(similarity: Matrix, labels: Matrix, argument: str = "relevance") -> None:
    """Check that scores and labels are matrices of the same shape.

    Raises:
        ValueError: If not; the message recognizes transposed labels.
    """
    check_matrix("similarity", similarity)
    check_matrix(argument, labels)
    shape, got = tuple(similarity.shape), tuple(labels.shape)
    if shape != got:
        hint = "transpose it: rows are images" if shape == got[::-1] else "give one label for each score"
        fail(argument, f"the shape of `similarity`, {shape}", got, hint)


def as_array(argument: str, value: object) -> NDArray[Any]:
    """Convert a list, array or tensor to a numpy array.

    Args:
        argument: Name of the argument in error messages.
        value: Numbers or strings.

    Returns:
        An array of numbers or strings. Floating-point tensors narrower than float32 are widened to float32.

    Raises:
        ValueError: If rows differ in length, or there are values that are neither numbers nor strings.

    Example:
        >>> as_array("groups", [[1, 2], [3]])
        Traceback (most recent call last):
        ...
        ValueError: `groups`: expected numbers or names, all of one kind, got [[1, 2], [3]]; give an array, a tensor ...
    """
    try:
        if is_tensor(value):
            tensor = value.detach().cpu()
            narrow = tensor.is_floating_point() and tensor.element_size() < 4
            array: NDArray[Any] = (tensor.float() if narrow else tensor).numpy()
        else:
            array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        array = np.empty(0, dtype=object)
    if array.dtype.hasobject:
        hint = "give an array, a tensor or a list of these"
        fail(argument, "numbers or names, all of one kind", repr(value), hint)
    return array


def check_image_of_caption(value: object, images: int, captions: int) -> Ids:
    """Check the image index of each caption.

    Args:
        value: ``(C,)`` integers 0..N-1; array, tensor or sequence.
        images: N, the number of rows of the similarity matrix.
        captions: C, the number of columns.

    Returns:
        ``(C,)`` int64 array.

    Raises:
        ValueError: If there is not exactly one integer 0..N-1 for each caption.

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
    """Copy a block to the CPU as float32 if this is exact, else as float64, so that the order is preserved."""
    if is_tensor(block):
        floats: Floats = to_tensor(block, "cpu").numpy()
        return floats
    target = np.float32 if np.can_cast(block.dtype, np.float32) else np.float64
    return block.astype(target, copy=False)


def to_tensor(block: Matrix, device: "torch.device | str") -> "torch.Tensor":
    """Move a block to a device, as floats of the type that :func:`to_floats` chooses."""
    import torch

    # A copy, since torch reads neither negative strides nor read-only memory.
    tensor = block.detach() if is_tensor(block) else torch.from_numpy(np.array(to_floats(block)))
    wide = tensor.element_size() > (4 if tensor.is_floating_point() else 2)
    return tensor.to(device).to(torch.float64 if wide else torch.float32)


def read_rows(argument: str, matrix: Matrix, rows: slice, floats: Callable[[Matrix], Any] = to_floats) -> Any:
    """Read a block of rows as floats.

    Args:
        argument: Name of the argument in error messages.
        matrix: ``(N, C)`` checked matrix.
        rows: The rows to read.
        floats: Converts the block to an array or a tensor of floats.

    Returns:
        ``(rows, C)`` float32 or float64.

    Raises:
        ValueError: If a value is NaN or infinite; the message names the first such row.
    """
    block = floats(matrix[rows])
    # NaN and infinity propagate to the extremes, so no mask of the size of the block is needed.
    if not (math.isfinite(block.min()) and math.isfinite(block.max())):
        array = to_floats(block)
        row, column = np.argwhere(~np.isfinite(array))[0]
        hint = "check for a division by zero"
        if array[row, column] == -np.inf:
            hint = "a ranking cut to its first items is not enough: give the scores of all pairs"
        fail(argument, "finite numbers", f"{array[row, column]} in row {rows.start + row}", hint)
    return block


def take(matrix: Matrix, rows: slice | Ids, columns: slice | Ids) -> Floats:
    """Read some rows or columns, or single elements if both are indices, as floats, without checking the values.

    Example:
        >>> take(np.array([[1, 2, 3], [4, 5, 6]]), slice(None), np.array([2, 0]))
        array([[3., 1.],
               [6., 4.]])
    """
    if is_tensor(matrix):
        import torch

        device = matrix.device
        places = [one if isinstance(one, slice) else torch.from_numpy(one).to(device) for one in (rows, columns)]
        return to_floats(matrix[*places])
    return to_floats(matrix[rows, columns])


def blocks(length: int, step: int) -> Iterator[slice]:
    """Split ``range(length)`` into consecutive slices of at most ``step``, and at least one item each.

    Example:
        >>> list(blocks(5, 2))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, step)
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def by_query(
    metric: QueryMetric,
    owner: Ids | None = None,
    /,
    *,
    block: int = BLOCK,
    floats: Callable[[Matrix], Any] = to_floats,
    **matrices: Matrix,
) -> tuple[Values, Values]:
    """Compute values for each query: rows for image to text, columns for text to image.

    Args:
        metric: Computes the values of some queries; called from several threads, first for images as queries.
        owner: ``(C,)`` the image of each caption, which is its id; otherwise the id of a caption is its column. The id
            of an image is its row.
        block: Elements that one thread processes at a time.
        floats: Converts a block to an array or a tensor of floats. Tensors are processed in this thread, on its
            stream.
        **matrices: ``(N, C)`` checked matrices of scores and labels, by the name that error messages use.

    Returns:
        ``(F, N)`` and ``(F, C)`` values.

    Raises:
        ValueError: If a value is not finite; the message names the first such row.
    """
    images, captions = next(iter(matrices.values())).shape
    rows, columns = np.arange(images), np.arange(captions) if owner is None else owner

    def i2t(part: slice) -> Values:
        return metric(
            *(read_rows(name, matrix, part, floats) for name, matrix in matrices.items()), rows[part], columns
        )

    def t2i(part: slice) -> Values:
        # All values were found to be finite in the other direction.
        return metric(*(floats(matrix[:, part]).T for matrix in matrices.values()), columns[part], rows)

    # Threads are enough: the sorts that take most of the time release the interpreter lock. Results are read in order,
    # so that the error of the first bad row is raised.
    with ThreadPoolExecutor(cpu_count()) as pool:
        apply: Callable[..., Iterator[Values]] = pool.map if floats is to_floats else map
        by_image = list(apply(i2t, blocks(images, block // captions)))
        by_caption = list(apply(t2i, blocks(captions, block // images)))
    return np.concatenate(by_image, axis=1), np.concatenate(by_caption, axis=1)


def direction_means(names: Sequence[str], i2t: Values, t2i: Values) -> dict[str, float]:
    """Average each of the ``(F, N)`` and ``(F, C)`` values over the queries that have one.

    Example:
        >>> direction_means(["tau"], np.array([[1.0, 2.0]]), np.array([[3.0, np.nan]]))
        {'i2t_tau': 1.5, 't2i_tau': 3.0}
    """
    sides = {"i2t": i2t, "t2i": t2i}
    return {f"{side}_{name}": mean(sides[side][place]) for place, name in enumerate(names) for side in sides}


def first_few(items: Sequence[object] | NDArray[Any]) -> str:
    """List the first three items, for an error message.

    Example:
        >>> first_few([7, 8]), first_few("abcd")
        ('7, 8', 'a, b, c, ...')
    """
    return ", ".join(str(one) for one in items[:3]) + (", ..." if len(items) > 3 else "")


def id_differences(ids: Iterable[object], expected: Iterable[object]) -> list[str]:
    """Count and list ids that are unknown, missing or repeated, for an error message.

    Example:
        >>> id_differences([1, 1, 7], [1, 2])
        ['1 unknown (7)', '1 missing (2)', '1 repeated (1)']
    """
    times, known = Counter(ids), dict.fromkeys(expected)
    lists = {
        "unknown": [one for one in times if one not in known],
        "missing": [one for one in known if one not in times],
    }
    lists["repeated"] = [one for one, count in times.items() if count > 1]
    return [f"{len(some)} {word} ({first_few(some)})" for word, some in lists.items() if some]


def mean(values: Values) -> float:
    """Average the values that are not nan; nan if there are none.

    Example:
        >>> mean(np.array([1.0, np.nan, 2.0])), mean(np.array([np.nan]))
        (1.5, nan)
    """
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if kept.size else float("nan")


def order_keys(values: Floats) -> NDArray[np.uint32]:
    """Map each row to unsigned integers that compare exactly as its values do.

    Example:
        >>> order_keys(np.array([[0.5, -1.0, 0.5]]))
        array([[1, 0, 1]], dtype=uint32)
    """
    if values.dtype == np.float32:
        # The bit patterns of positive floats are ordered as the floats are, those of negative floats in reverse.
        # Adding zero turns -0.0 into 0.0, which has other bits but is equal.
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


def top_items(scores: Floats, k: int) -> Ids:
    """Find the k highest items of each row, as ``argsort(-scores, kind="stable")[:, :k]`` does.

    Args:
        scores: ``(Q, n)`` scores; minus infinity is allowed.
        k: The number of items, at most n.

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
    # At least k items of each row, and more only if there are ties at the last position.
    line, column = np.divmod(np.flatnonzero(scores >= last), items)
    order = np.lexsort((column, -scores[line, column], line))
    starts = np.searchsorted(line, np.arange(queries))
    top: Ids = column[order][starts[:, None] + np.arange(k)]
    return top
