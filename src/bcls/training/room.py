"""How much memory there is to hold things in."""

import os

import torch

#: Share of the free memory that one kind of data may take.
_SHARE = 0.25


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device now; of the machine for the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fits(size: int, device: torch.device) -> bool:
    """Whether so many bytes may be kept on a device throughout a run.

    Example:
        >>> fits(1000, torch.device("cpu"))
        True
    """
    return size < _SHARE * free_bytes(device)
