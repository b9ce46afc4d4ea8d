"""How much memory there is to hold things in."""

import os
from pathlib import Path

import torch

#: Share of the free memory that one kind of data may take.
_SHARE = 0.25
#: Linux alone has these.
_MEMINFO, _LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def free_bytes(device: torch.device) -> int:
    """Memory that a process could have on a device now; on the CPU no more than the limit of a container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limit = _words(_LIMIT)
    free = _available()
    return min(free, int(limit[0])) if limit and limit[0].isdigit() else free


def _available() -> int:
    """What the kernel would give away, the disk's cache included; half of all memory where it does not say."""
    words = _words(_MEMINFO)
    if "MemAvailable:" in words:
        return 1024 * int(words[words.index("MemAvailable:") + 1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _words(path: Path) -> list[str]:
    """Words of one of the kernel's files; none where there is no such file."""
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def fits(size: int, device: torch.device) -> bool:
    """Whether so many bytes may be kept on a device throughout a run.

    Example:
        >>> fits(1000, torch.device("cpu"))
        True
    """
    return size < _SHARE * free_bytes(device)
