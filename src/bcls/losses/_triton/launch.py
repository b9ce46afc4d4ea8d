"""Fast launches of Triton kernels, and the counter that identifies the last program of a launch.

Triton compiles a kernel for types, alignments and some values of its arguments, and on every launch it binds and
inspects about forty arguments. If they are known from an earlier launch, the compiled kernel is called directly, which
takes a third of the time.
"""

from collections.abc import Hashable
from functools import cache
from typing import Any

import torch
from torch import Tensor

#: Compiled kernels by key; cleared when there are many, as happens if every batch has another size.
_COMPILED: dict[Hashable, Any] = {}
_MOST = 1024
#: Kernels whose compiled form rejected such a call: older versions of Triton expect other arguments.
_REFUSED: set[Any] = set()


def launch(
    kernel: Any,
    device: torch.device,
    grid: tuple[int, ...],
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[float, ...],
    **options: int,
) -> None:
    """Start the programs of a grid.

    Args:
        kernel: A function compiled by Triton, whose arguments are tensors, then numbers.
        device: The current device.
        grid: Number of programs in each dimension.
        tensors: Tensors, by position.
        numbers: Numbers and constants, by position.
        options: Options of the compiler, such as ``num_warps``; the same for equal numbers.
    """
    arguments = (*tensors, *numbers)
    # Triton compiles for the type of a tensor and whether its address is divisible by 16.
    kinds = [one if one is None else (one.dtype, one.data_ptr() % 16 == 0) for one in tensors]
    key = (kernel.__name__, device, numbers, *kinds)  # no two kernels have the same name
    compiled = _COMPILED.get(key)
    if compiled is not None:
        try:
            compiled[*grid, 1, 1](*arguments)
        except TypeError:
            _REFUSED.add(kernel)
            _COMPILED.pop(key, None)
        else:
            return
    compiled = kernel[grid](*arguments, **options)
    if compiled is not None and kernel not in _REFUSED:  # the interpreter compiles nothing and returns None
        if len(_COMPILED) >= _MOST:
            _COMPILED.clear()
        _COMPILED[key] = compiled


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
