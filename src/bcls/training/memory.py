"""Free memory of a device, and whether data may be kept there during a run."""

import os
from pathlib import Path

import torch

#: Share of the free memory that one kind of data may take.
_SHARE = 0.25
#: Only Linux has these files.
_MEMINFO, _LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def fits_in_memory(size: int, device: torch.device) -> bool:
    """Whether data of ``size`` bytes may stay on a device during the whole run.

    Example:
        >>> fits_in_memory(1000, torch.device("cpu"))
        True
    """
    return size < _SHARE * free_bytes(device)


def free_bytes(device: torch.device) -> int:
    """Memory that a process can allocate on a device; on the CPU at most the memory limit of the container.

    The file cache counts as free. Where the kernel does not report free memory, it is half of all memory.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    fields = _fields(_MEMINFO)
    if "MemAvailable:" in fields:
        free = 1024 * int(fields[fields.index("MemAvailable:") + 1])
    else:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    limit = _fields(_LIMIT)
    return min(free, int(limit[0])) if limit and limit[0].isdigit() else free


def _fields(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").split() if path.is_file() else []
