"""Choice of the backend: Triton kernels on NVIDIA GPUs (or in Triton's interpreter), plain torch elsewhere."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bcls.losses._torch.engine import TorchEngine

if TYPE_CHECKING:
    from bcls.losses._triton.engine import TritonEngine

#: Types of scores that the kernels can read; float64 does not fit into a key.
PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
_WITHOUT_KERNELS: ContextVar[bool] = ContextVar("without_kernels", default=False)


def engine_for(device: torch.device) -> "TorchEngine | TritonEngine":
    """The fastest backend that runs on a device."""
    return _triton_engine() if triton_runs_on(device) else TorchEngine(device)


@cache
def _triton_engine() -> "TritonEngine":
    from bcls.losses._triton.engine import TritonEngine  # importing Triton takes a second

    return TritonEngine()


def triton_runs_on(device: torch.device) -> bool:
    """Whether Triton kernels run on tensors of this device."""
    if device.type == "cuda":
        return _triton_is_installed()
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and _triton_is_installed()


@cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@contextmanager
def without_kernels() -> Iterator[None]:
    """Compute all losses in plain torch, on every device: for second derivatives, or for comparison.

    Example:
        >>> with without_kernels():
        ...     can_fuse(torch.zeros(2, 2))
        False
    """
    before = _WITHOUT_KERNELS.set(True)
    try:
        yield
    finally:
        _WITHOUT_KERNELS.reset(before)


def can_fuse(similarity: Tensor) -> bool:
    """Whether the fused kernels can compute a loss of this matrix.

    They need a device with Triton and at most 32 bits. ``torch.compile``, ``torch.func`` and
    :func:`without_kernels` use the plain losses.

    Example:
        >>> can_fuse(torch.zeros(2, 2, dtype=torch.float64))
        False
    """
    return similarity.dtype in PRECISIONS and triton_runs_on(similarity.device) and kernels_allowed(similarity)


def defers_checks(similarity: Tensor) -> bool:
    """Whether the device checks the values of this matrix, so that errors are raised by a later call."""
    return similarity.device.type == "cuda" and triton_runs_on(similarity.device) and kernels_allowed(similarity)


def kernels_allowed(similarity: Tensor) -> bool:
    """Whether kernels may be used for this matrix: not while tracing and not inside :func:`without_kernels`."""
    return (
        not _WITHOUT_KERNELS.get()
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(similarity)
    )
