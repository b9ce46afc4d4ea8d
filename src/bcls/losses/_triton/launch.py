"""Fast launches of Triton kernels, and the counter that identifies the last program of a launch.

Triton compiles a kernel for types, alignments and some values of its arguments, and on every launch it binds and
inspects about forty arguments. If the caller guarantees by a key that these are the same as before, the compiled
kernel is called directly, which takes a third of the time.
"""

from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

#: Compiled kernels by key; cleared when there are many, as happens if every batch has another size.
_COMPILED: dict[Hashable, Any] = {}
_MOST = 1024
#: Kernels whose compiled form rejected such a call: older versions of Triton expect other arguments.
_REFUSED: set[Any] = set()


def launch(kernel: Any, grid: tuple[int, ...], arguments: Sequence[object], key: Hashable, *, warps: int = 4) -> None:
    """Start the programs of a grid.

    Args:
        kernel: A function compiled by Triton.
        grid: Number of programs in each dimension.
        arguments: All arguments, by position.
        key: Equal for two launches only if Triton would compile the same code for them.
        warps: Warps of a program.
    """
    compiled = _COMPILED.get(key)
    if compiled is not None:
        try:
            compiled[*grid, 1, 1](*arguments)
        except TypeError:
            _REFUSED.add(kernel)
            del _COMPILED[key]
        else:
            return
    compiled = kernel[grid](*arguments, num_warps=warps)
    if compiled is not None and kernel not in _REFUSED:  # the interpreter compiles nothing and returns None
        if len(_COMPILED) >= _MOST:
            _COMPILED.clear()
        _COMPILED[key] = compiled


def signature(tensor: Tensor | None) -> Hashable:
    """The properties of a tensor that Triton specialises on."""
    return None if tensor is None else (tensor.dtype, tensor.data_ptr() % 16 == 0)


def arrivals(device: torch.device) -> Tensor:
    """A counter, initially 0, that the programs of a launch increment and the last one resets.

    Launches on one stream run one after the other and share it. A captured graph may run on any stream: it gets a
    counter of its own, and sets it to zero itself.
    """
    if device.type != "cuda":
        return _counter(device, 0)
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(1, dtype=torch.int32, device=device)
    # `torch.cuda.current_stream` creates an object, which takes longer than the lookup.
    return _counter(device, torch._C._cuda_getCurrentRawStream(device.index))


@cache
def _counter(device: torch.device, stream: int) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=device)
