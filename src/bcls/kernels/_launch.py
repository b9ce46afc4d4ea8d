"""Launches without what Triton does anew for each: it binds, specialises and looks up some forty arguments by name.

A kernel is compiled for types, alignments and some values of its arguments. Where the caller vouches with a key that
these are as before, the compiled kernel is called at once, which takes a third of the time.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

#: Compiled kernels by key; forgotten when there are many, as where every batch has another size.
_COMPILED: dict[Hashable, Any] = {}
_MOST = 256
#: Kernels whose compiled form refused such a call, as in older Triton: it takes other arguments, and says so at once.
_REFUSED: set[Any] = set()


def launch(kernel: Any, programs: int, arguments: Sequence[object], key: Hashable, *, warps: int) -> None:
    """Start ``programs`` programs of a kernel.

    Args:
        kernel: A function of Triton's.
        programs: Their number.
        arguments: All of them, by position.
        key: Equal for two launches only where Triton would compile the same code for them.
        warps: Warps of a program.
    """
    compiled = _COMPILED.get(key)
    if compiled is not None:
        try:
            compiled[programs, 1, 1](*arguments)
        except TypeError:
            _REFUSED.add(kernel)
            del _COMPILED[key]
        else:
            return
    compiled = kernel[programs,](*arguments, num_warps=warps)
    if compiled is not None and kernel not in _REFUSED:  # None from the interpreter, which compiles nothing
        if len(_COMPILED) >= _MOST:
            _COMPILED.clear()
        _COMPILED[key] = compiled


def looks(tensor: Tensor | None) -> Hashable:
    """What Triton specialises on in a tensor."""
    return None if tensor is None else (tensor.dtype, tensor.data_ptr() % 16 == 0)
