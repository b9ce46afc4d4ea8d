"""How this process gives memory back: not at once.

A network on a CPU asks for tens of megabytes for each layer and frees them again. The C library hands such blocks back
to the system, which then clears every page when they are asked for the next time: up to two thirds of the time of a
network goes there.
"""

import ctypes
import os
import sys

#: Blocks up to this size stay with the process.
_KEPT = 1 << 30
#: Numbers of glibc's `mallopt`, with the variables by which processes started from here are told the same.
_SETTINGS = {-3: "MALLOC_MMAP_THRESHOLD_", -1: "MALLOC_TRIM_THRESHOLD_"}


def keep_freed_memory() -> bool:
    """Let this process and those that it starts keep freed memory; whether the C library takes it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, such as musl
        return False
    taken = True
    for number, name in _SETTINGS.items():
        if name not in os.environ:  # somebody's own setting stands
            os.environ[name] = str(_KEPT)
            taken = bool(mallopt(number, _KEPT)) and taken
    return taken
