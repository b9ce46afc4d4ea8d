"""What a loss refuses in its input, said at once where values can be read, and one call later where that would wait.

On a CUDA device a look at the values from the host waits until the device has done everything before. So the kernels
look, write what they find into memory of the host, and the next call of any loss, or :func:`check_now`, raises it.
"""

import math
from functools import reduce
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from bcls._core.errors import fail
from bcls.kernels._arrivals import arrivals
from bcls.kernels._launch import launch, looks
from bcls.kernels.engines import allowed, elsewhere, runs_triton

#: How far labels may lie outside [-1, 1] through rounding.
ROUNDING = 1e-4
#: What stands in a cell that is not a finite number.
KINDS = ("nan", "inf", "-inf")
#: Of a report: whether there is one, the first bad cell of the similarities and of the labels (-1 for none), lowest and
#: highest label, columns.
WORDS = 6
#: Programs that look at a matrix, and columns that one of them looks at once.
_PROGRAMS, _WIDTH = 2048, 1024


class _Words(NamedTuple):
    tensor: Tensor
    array: "np.ndarray[tuple[int], np.dtype[np.float64]]"  #: the same memory


_REPORTS: dict[torch.device, _Words] = {}


def check_now() -> None:
    """Wait for the devices and refuse what earlier calls of the losses met on them.

    On a CUDA device with Triton the losses do not wait to see whether their input is finite and labels lie in [-1, 1]:
    the call after the one that had them raises. Call this where it is to be known at once: after the last step, before
    a checkpoint, or after every step while looking for the first bad one. Elsewhere every call has raised its own.

    Raises:
        ValueError: If an earlier call met NaN, infinity or labels out of range.

    Example:
        >>> check_now()
    """
    for device in list(_REPORTS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        refuse_earlier(device)


def defers(similarity: Tensor) -> bool:
    """Whether the values of this matrix are looked at by the device, and refused later."""
    return similarity.device.type == "cuda" and runs_triton(similarity.device) and allowed(similarity)


def report_on(device: torch.device) -> Tensor | None:
    """Where kernels on a device report to, memory that both sides reach; None where a graph is captured before it."""
    words = _REPORTS.get(device)
    if words is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        tensor = torch.zeros(WORDS, dtype=torch.float64, pin_memory=device.type == "cuda")
        words = _REPORTS[device] = _Words(tensor, tensor.numpy())
    return words.tensor


def refuse_earlier(device: torch.device) -> None:
    """Raise what kernels on a device have reported, once; nothing is waited for where there is nothing.

    Raises:
        ValueError: If an earlier call met NaN, infinity or labels out of range.
    """
    words = _REPORTS.get(device)
    if words is None or not words.array[0]:
        return
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            return  # the call after the capture says so
        torch.cuda.synchronize(device)  # the report is whole
    _, cell, cell_label, low, high, columns = words.array.tolist()
    words.array[:] = 0
    for argument, where in (("similarity", int(cell)), ("relevance", int(cell_label))):
        if where >= 0:
            row, column = divmod(where // 4, int(columns))
            refuse_not_finite(argument, KINDS[where % 4], row, column, " in an earlier call")
    refuse_range(low, high, " in an earlier call")


def refuse_not_finite(argument: str, value: str, row: int, column: int, when: str = "") -> NoReturn:
    """Refuse a matrix with a number that is not finite."""
    remedy = {
        "similarity": "look for a diverged model or a zero vector normalised without epsilon",
        "relevance": "look for an empty caption in the label encoder's input",
    }[argument]
    fail(argument, "finite numbers", f"{value} at row {row}, column {column}{when}", remedy)


def refuse_range(low: float, high: float, when: str = "") -> NoReturn:
    """Refuse labels out of range."""
    remedy = "rescale them (cosines need unit vectors; for CIDEr-like scales use SAMLoss)"
    fail("relevance", "labels in [-1, 1]", f"values from {low:.6g} to {high:.6g}{when}", remedy)


def check_tensor(argument: str, value: object) -> None:
    """Check that ``value`` is a tensor."""
    if not isinstance(value, Tensor):
        fail(argument, "a torch.Tensor", type(value).__name__, "convert it with torch.as_tensor")


def check_values(similarity: Tensor, relevance: Tensor | None, *, bounded: bool = True) -> float:
    """Refuse what is not finite and labels out of range, at once: on a device this waits.

    Args:
        similarity: ``(B, B)`` floating point.
        relevance: ``(B, B)`` floating point, or None.
        bounded: Whether the labels must lie in [-1, 1].

    Returns:
        The lowest label, or -1 where there is none or values cannot be read, as inside ``torch.compile``.

    Raises:
        ValueError: If a number is not finite or a label is out of range.
    """
    given = {"similarity": similarity, "relevance": relevance}
    matrices = {argument: matrix for argument, matrix in given.items() if matrix is not None}
    extremes = _read_extremes(*matrices.values())
    if extremes is None:
        return -1.0
    for (argument, matrix), (low, high) in zip(matrices.items(), extremes, strict=True):
        if not math.isfinite(low) or not math.isfinite(high):
            row, column = (~torch.isfinite(matrix)).nonzero()[0].tolist()
            refuse_not_finite(argument, str(matrix[row, column].item()), row, column)
    if relevance is None:
        return -1.0
    low, high = extremes[1]
    if bounded and (low < -1 - ROUNDING or high > 1 + ROUNDING):
        refuse_range(low, high)
    return max(low, -1.0)


def at_least_float32(matrix: Tensor) -> Tensor:
    """The matrix in float32, or float64 as it is."""
    return matrix if matrix.dtype == torch.float64 else matrix.float()


def is_planned(matrix: Tensor) -> bool:
    """Whether steps are only written down now, by torch.compile or as a CUDA graph: no value can be read."""
    return torch.compiler.is_compiling() or is_recorded(matrix)


def is_recorded(matrix: Tensor) -> bool:
    """Whether steps are written down as a CUDA graph."""
    return matrix.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _read_extremes(*matrices: Tensor) -> list[tuple[float, float]] | None:
    """Smallest and largest value of each matrix in one reading; None where values cannot be read."""
    if is_planned(matrices[0]):
        return None
    extremes = [bound for matrix in matrices for bound in torch.aminmax(at_least_float32(matrix.detach()))]
    # The widest type: rounded to a narrower one, a label would move over an edge or become infinite.
    widest = reduce(torch.promote_types, (bound.dtype for bound in extremes))
    together = torch.stack([bound.to(widest) for bound in extremes]).cpu()  # one wait for the device
    try:
        bounds = [bound.item() for bound in together]
    except RuntimeError:  # inside torch.func.vmap
        return None
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def look(similarity: Tensor, relevance: Tensor | None, *, bounded: bool = True) -> None:
    """Have the device look at the values of two matrices, in one launch that nobody waits for.

    Args:
        similarity: ``(B, B)`` on a device of Triton's.
        relevance: ``(B, B)``, or None.
        bounded: Whether the labels must lie in [-1, 1].
    """
    from bcls.kernels._triton_values import look_at_values

    if elsewhere(similarity):
        with torch.cuda.device_of(similarity):  # type: ignore[no-untyped-call]
            return look(similarity, relevance, bounded=bounded)
    (rows, columns), device = similarity.shape, similarity.device
    programs, report = min(rows, _PROGRAMS), report_on(device)
    notes = torch.empty(2 * programs, dtype=torch.int64, device=device)
    bounds = torch.empty(2 * programs, device=device)
    whole = (rows, columns, *similarity.stride(), *((0, 0) if relevance is None else relevance.stride()))
    constants = (relevance is not None, bounded and relevance is not None, _WIDTH, _WIDTH // 4)
    key = ("look", device, looks(similarity), looks(relevance), report is None, whole, constants)
    arguments = (similarity, relevance, notes, bounds, arrivals(device), report, *whole, *constants)
    return launch(look_at_values, programs, arguments, key, warps=4)
