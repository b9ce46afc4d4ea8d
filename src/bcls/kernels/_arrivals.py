"""A counter with which the programs of one launch find out who of them comes last."""

from functools import cache

import torch
from torch import Tensor


def arrivals(device: torch.device) -> Tensor:
    """A zero that the programs of a launch count up and the last one sets back.

    Launches on one stream come one after the other and share it. A captured graph may run on any stream: it gets its
    own, and sets it to zero itself.
    """
    if device.type != "cuda":
        return _counter(device, 0)
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(1, dtype=torch.int32, device=device)
    return _counter(device, torch.cuda.current_stream(device).cuda_stream)


@cache
def _counter(device: torch.device, stream: int) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=device)
