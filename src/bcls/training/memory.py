"""Free memory of a device, and whether data may be kept there during a run."""

from pathlib import Path

import psutil
import torch

#: Share of the free memory that one kind of data may take.
_SHARE = 0.25
#: Only Linux has this file.
_LIMIT = Path("/sys/fs/cgroup/memory.max")


def fits_in_memory(size: int, device: torch.device) -> bool:
    """Whether data of ``size`` bytes may stay on a device during the whole run.

    Example:
        >>> fits_in_memory(1000, torch.device("cpu"))
        True
    """
    return size < _SHARE * free_bytes(device)


def free_bytes(device: torch.device) -> int:
    """Memory that a process can allocate on a device; on the CPU at most the memory limit of the container.

    The file cache counts as free.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    limit = _LIMIT.read_text(encoding="ascii").strip() if _LIMIT.is_file() else ""
    return min(free, int(limit)) if limit.isdigit() else free
