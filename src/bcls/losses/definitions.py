"""Definitions that all backends share: tolerances, windows over the labels, settings of the fused losses, input checks.

Reading values of a CUDA tensor from the host waits until the GPU has finished all earlier work. Therefore the kernels
check the values and write what they find into host memory; the next call of any loss, or :func:`check_now`, raises it.
"""

import math
from functools import lru_cache, reduce
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from bcls._core.errors import check_number, fail

#: Tolerance at the edges of windows, so that a label of 0.3 in float32 lies on the edge 0.3.
EDGE = 1e-6
#: Labels this close to 1 mark the same caption: cosines of equal captions round to 0.9999999.
SAME = 1e-4
#: How far labels may lie outside [-1, 1] through rounding.
ROUNDING = 1e-4
#: Upper limit for the number of windows; with more, the sum is equal to its limit (beta=0) in practice.
MAX_WINDOWS = 20_000
LOG2_E = math.log2(math.e)


def check_alpha(alpha: float) -> float:
    """Check the width of the windows (or the relaxation of the dense loss), in [0, 2)."""
    hint = "the paper uses 0.2, the standard deviation of the similarities between captions of one image"
    alpha = check_number("alpha", alpha, hint, low=0)
    if alpha >= 2:
        fail("alpha", "a number below 2, the width of the labels' range", alpha, hint)
    return alpha


def check_stride(alpha: float, beta: float) -> None:
    """Check that ``beta``, which is above 0, gives between 1 and :data:`MAX_WINDOWS` windows."""
    if (2 - alpha) / beta >= MAX_WINDOWS + 1:
        hint = "bcls.losses.KendallWindowLoss with beta=0 computes the exact limit, at a lower cost"
        fail("beta", f"a stride with at most {MAX_WINDOWS} windows", beta, hint)
    if window_count(alpha, beta) < 1:
        fail("beta", f"at most 2 - alpha = {2 - alpha:g}, so that one window fits", beta, "the paper uses 0.1")


def window_count(alpha: float, beta: float) -> int:
    """The number of windows of the paper, M = (2 - alpha) / beta, rounded down.

    Example:
        >>> window_count(0.2, 0.1)
        18
    """
    return math.floor((2 - alpha) / beta + 1e-9)


class SoftNegatives(NamedTuple):
    """Settings of the binary term, ``scale * sum of [soft maximum - own + margin]_+`` over both directions (L_T-SN)."""

    margin: float = 0.2  #: between the score of the matching pair and the soft maximum of the negatives
    gamma: float = 50.0  #: hardness of the log-sum-exp
    average: bool = False  #: whether ``log(number of negatives) / gamma`` is subtracted
    scale: float = 1.0  #: factor of the sum: 1 for the equation of the paper, 1 / B for the mean

    @property
    def sharpness(self) -> float:
        """``gamma`` for powers of 2 instead of e, which are faster to compute."""
        return self.gamma * LOG2_E


class Windows(NamedTuple):
    """Settings of the continuous term, ``scale * sum of [hardest negative - hardest positive]_+`` over W windows."""

    alpha: float  #: width of a window
    beta: float  #: stride
    valid_only: bool  #: whether to divide by the number of non-empty windows of the anchor instead of W
    scale: float  #: factor of the sum: 1 for the sum of the paper, 1 / B for the mean, times the weight of the term

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of windows, W."""
        return window_count(self.alpha, self.beta)


class LossSettings(NamedTuple):
    """The terms to compute; None for a term that is not wanted."""

    soft: SoftNegatives | None
    windows: Windows | None


def sliding_windows(alpha: float = 0.2, beta: float = 0.1, *, valid_only: bool = False, scale: float = 1.0) -> Windows:
    """The windows of L_K-SW-HS: ``[-1 + m beta, -1 + m beta + alpha]``, m = 1 .. M, M = floor((2 - alpha) / beta).

    Args:
        alpha: Width of a window, in [0, 2).
        beta: Stride, above 0.
        valid_only: Divide by the number of non-empty windows of the anchor instead of M.
        scale: Factor of the sum.

    Raises:
        ValueError: If no window or more than 20,000 windows fit, or a number is out of range.

    Example:
        >>> sliding_windows().count
        18
    """
    alpha = check_alpha(alpha)
    beta = check_number("beta", beta, "the paper uses 0.1", above=0)
    check_stride(alpha, beta)
    return Windows(alpha, beta, valid_only, check_number("scale", scale, "use 1 for the sum, 1 / B for the mean"))


@lru_cache(maxsize=64)
def window_tensors(windows: Windows, device: torch.device) -> tuple[Tensor, Tensor]:
    """Edges and weights on a device. Cached: the copy takes longer than the whole loss of a small batch.

    Returns:
        float64 ``(1 + tolerance, 1 / beta, alpha / beta)``, and the weight of each window, ``(W,)``.
    """
    edges = torch.tensor([1 + EDGE, 1 / windows.beta, windows.alpha / windows.beta], dtype=torch.float64)
    weights = torch.full((windows.count,), 1.0 if windows.valid_only else 1 / windows.count)
    return edges.to(device), weights.to(device)


#: Kinds of values that are not finite, in the order in which kernels number them.
KINDS = ("nan", "inf", "-inf")
#: Entries of a report: whether there is one, the first bad cell of the similarities and of the labels (-1 for none),
#: lowest and highest label, number of columns.
WORDS = 6
#: Each is a tensor, and the same memory as a NumPy array, of which a number is read more quickly.
_REPORTS: dict[torch.device, tuple[Tensor, Any]] = {}


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
    if device not in _REPORTS:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        report = torch.zeros(WORDS, dtype=torch.float64, pin_memory=device.type == "cuda")
        _REPORTS[device] = report, report.numpy()
    return _REPORTS[device][0]


def raise_reported(device: torch.device) -> None:
    """Raise what kernels on a device have reported, once; does not wait if there is no report.

    Raises:
        ValueError: If an earlier call got NaN, infinity or labels out of range.
    """
    if device not in _REPORTS or not _REPORTS[device][1][0]:
        return
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            return  # the first call after the capture raises it
        torch.cuda.synchronize(device)  # so that the report is complete
    report, _ = _REPORTS[device]
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
        "similarity": "check for a diverged model, or a zero vector normalized without epsilon",
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
