"""Input validation: finite scores, labels in range, and errors that a GPU reports later.

Reading values of a CUDA tensor from the host waits until the GPU has finished all earlier work. Therefore the kernels
check the values and write what they find into host memory; the next call of any loss, or :func:`check_now`, raises it.
"""

import math
from functools import reduce
from typing import NoReturn

import torch
from torch import Tensor

from bcls._core import fail
from bcls.losses.windows import ROUNDING

#: Kinds of values that are not finite, in the order in which kernels number them.
KINDS = ("nan", "inf", "-inf")
#: Entries of a report: whether there is one, the first bad cell of the similarities and of the labels (-1 for none),
#: lowest and highest label, number of columns.
WORDS = 6


_REPORTS: dict[torch.device, Tensor] = {}


def check_now() -> None:
    """Wait for the GPU and raise the errors of earlier loss calls.

    On a CUDA device with Triton a loss does not wait to learn whether its input is finite and its labels lie in
    [-1, 1]: the next call raises the error. Use this function to get the error immediately: after the last step,
    before a checkpoint is written, or after every step while searching for the first bad one. On other devices every
    call raises its own errors.

    Raises:
        ValueError: If an earlier call got NaN, infinity or labels out of range.

    Example:
        >>> check_now()
    """
    for device in list(_REPORTS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        raise_reported(device)


def report_on(device: torch.device) -> Tensor | None:
    """Host memory that kernels of a device report to; None if it would have to be created during a graph capture."""
    report = _REPORTS.get(device)
    if report is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        report = torch.zeros(WORDS, dtype=torch.float64, pin_memory=device.type == "cuda")
        _REPORTS[device] = report
    return report


def raise_reported(device: torch.device) -> None:
    """Raise what kernels on a device have reported, once; does not wait if there is no report.

    Raises:
        ValueError: If an earlier call got NaN, infinity or labels out of range.
    """
    report = _REPORTS.get(device)
    if report is None or not report.numpy()[0]:
        return
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            return  # the first call after the capture raises it
        torch.cuda.synchronize(device)  # so that the report is complete
    _, cell, cell_label, low, high, columns = report.tolist()
    report.zero_()
    for argument, where in (("similarity", int(cell)), ("relevance", int(cell_label))):
        if where >= 0:
            row, column = divmod(where // 4, int(columns))
            fail_not_finite(argument, KINDS[where % 4], row, column, " in an earlier call")
    fail_range(low, high, " in an earlier call")


def fail_not_finite(argument: str, value: str, row: int, column: int, when: str = "") -> NoReturn:
    """Raise the error for a value that is not finite."""
    hint = {
        "similarity": "check for a diverged model, or a zero vector normalised without epsilon",
        "relevance": "check for an empty caption in the input of the label encoder",
    }[argument]
    fail(argument, "finite numbers", f"{value} at row {row}, column {column}{when}", hint)


def fail_range(low: float, high: float, when: str = "") -> NoReturn:
    """Raise the error for labels out of range."""
    hint = "rescale them (cosines need unit vectors; for scales such as CIDEr's use SAMLoss)"
    fail("relevance", "labels in [-1, 1]", f"values from {low:.6g} to {high:.6g}{when}", hint)


def check_tensor(argument: str, value: object) -> None:
    """Check that ``value`` is a tensor."""
    if not isinstance(value, Tensor):
        fail(argument, "a torch.Tensor", type(value).__name__, "convert it with torch.as_tensor")


def is_integer(tensor: Tensor) -> bool:
    """Whether a tensor has an integer type; bool does not count."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def check_values(similarity: Tensor, relevance: Tensor | None, *, bounded: bool = True) -> float:
    """Check that all values are finite and labels are in range, now: on a GPU this waits.

    Inside ``torch.compile`` and ``torch.func.vmap`` values cannot be read and are not checked.

    Args:
        similarity: ``(B, B)`` floating point.
        relevance: ``(B, B)`` floating point, or None.
        bounded: Whether the labels must lie in [-1, 1].

    Returns:
        The lowest label, or -1 without labels or if values cannot be read.

    Raises:
        ValueError: If a number is not finite or a label is out of range.
    """
    matrices = {"similarity": similarity} | ({} if relevance is None else {"relevance": relevance})
    extremes = _read_extremes(*matrices.values())
    for (argument, matrix), (low, high) in zip(matrices.items(), extremes, strict=False):
        if not math.isfinite(low) or not math.isfinite(high):
            row, column = (~torch.isfinite(matrix)).nonzero()[0].tolist()
            fail_not_finite(argument, str(matrix[row, column].item()), row, column)
        if bounded and argument == "relevance" and (low < -1 - ROUNDING or high > 1 + ROUNDING):
            fail_range(low, high)
    return -1.0 if relevance is None or not extremes else max(extremes[1][0], -1.0)


def at_least_float32(matrix: Tensor) -> Tensor:
    """The matrix in float32; float64 stays float64."""
    return matrix if matrix.dtype == torch.float64 else matrix.float()


def is_traced(matrix: Tensor) -> bool:
    """Whether operations are only recorded, by torch.compile or as a CUDA graph, so that no value can be read."""
    return torch.compiler.is_compiling() or is_captured(matrix)


def is_captured(matrix: Tensor) -> bool:
    """Whether operations are recorded as a CUDA graph."""
    return matrix.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _read_extremes(*matrices: Tensor) -> list[tuple[float, float]]:
    """Minimum and maximum of each matrix, read together; empty if values cannot be read."""
    if is_traced(matrices[0]):
        return []
    extremes = [bound for matrix in matrices for bound in torch.aminmax(at_least_float32(matrix.detach()))]
    # In the widest type: rounded to a narrower one, a label could cross an edge or become infinite.
    widest = reduce(torch.promote_types, (bound.dtype for bound in extremes))
    together = torch.stack([bound.to(widest) for bound in extremes]).cpu()  # waits for the device once
    try:
        bounds = [bound.item() for bound in together]
    except RuntimeError:  # inside torch.func.vmap
        return []
    return list(zip(bounds[::2], bounds[1::2], strict=True))
