"""Who does the work: Triton on an NVIDIA device (or in its interpreter), plain torch elsewhere."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import torch
from torch import Tensor

from bcls.kernels._parts import Engine

#: What a key has room for.
PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)


@lru_cache(maxsize=1)
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def runs_triton(device: torch.device) -> bool:
    """Whether Triton kernels run on tensors of this device."""
    if device.type == "cuda":
        return _triton_is_installed()
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and _triton_is_installed()


#: Whether :func:`without_kernels` is in force.
_WITHOUT: ContextVar[bool] = ContextVar("without_kernels", default=False)


@contextmanager
def without_kernels() -> Iterator[None]:
    """The losses of :mod:`bcls.losses` in plain torch, on every device: for a second derivative, or to compare.

    Example:
        >>> with without_kernels():
        ...     usable(torch.zeros(2, 2))
        False
    """
    before = _WITHOUT.set(True)
    try:
        yield
    finally:
        _WITHOUT.reset(before)


def usable(similarity: Tensor) -> bool:
    """Whether the fused kernels serve this matrix: on a device of Triton's, of at most 32 bits, outside tracing.

    Inside ``torch.compile`` and ``torch.func`` the plain losses are the right ones, and inside
    :func:`without_kernels`.

    Example:
        >>> usable(torch.zeros(2, 2, dtype=torch.float64))
        False
    """
    return similarity.dtype in PRECISIONS and runs_triton(similarity.device) and allowed(similarity)


def allowed(similarity: Tensor) -> bool:
    """Whether kernels may work on this matrix: outside tracing and :func:`without_kernels`."""
    return (
        not _WITHOUT.get()
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(similarity)
    )


def elsewhere(tensor: Tensor) -> bool:
    """Whether a tensor lies on another GPU than the current one, where Triton would launch its kernels."""
    return tensor.is_cuda and tensor.get_device() != torch.cuda.current_device()


def engine_for(device: torch.device) -> Engine:
    """The faster engine that runs on a device."""
    if runs_triton(device):
        from bcls.kernels._triton_engine import TritonEngine

        return TritonEngine()
    from bcls.kernels._torch_engine import TorchEngine

    return TorchEngine(device)
