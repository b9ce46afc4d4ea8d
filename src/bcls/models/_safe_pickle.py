"""Tensors out of a file that torch wrote with pickle, without running anything in it."""

import argparse
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bcls._checks import fail

#: How torch names what it will not call.
_CALLED = re.compile(r"GLOBAL (\w[\w.]*\.\w+)")
#: What numpy rebuilds a number with; it had another place before version 2.
_SCALAR = np.float64(0).__reduce__()[0]
#: Beside tensors and plain containers: the options, and numbers that numpy computed.
_ALLOWED: list[Any] = [
    argparse.Namespace,
    np.dtype,
    *{type(np.dtype(kind)) for kind in ("float64", "float32", "int64", "int32", "bool")},
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
]


def read_tensors(path: Path) -> Any:
    """Read a ``torch.save`` file, zip or older, onto the CPU.

    Raises:
        ValueError: There is no such file, it is damaged, or it holds something else than tensors, plain containers,
            numbers and an ``argparse.Namespace``; nothing of it has been run then.
    """
    if not path.is_file():
        fail(str(path), "a checkpoint file", "no such file", "check the path")
    try:
        with torch.serialization.safe_globals(_ALLOWED):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).split("\n", 1)[0]
        if named := _CALLED.search(str(error)):
            got = f"a call of {named[1]}"
            fail(str(path), "tensors and plain values", got, "such a file can run code: it was not read")
        fail(str(path), "a whole checkpoint file", reason, "copy the file again")
    except (RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError, IndexError, OSError) as error:
        reason = f"one that does not read ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
        fail(str(path), "a whole checkpoint file", reason, "copy the file again")
