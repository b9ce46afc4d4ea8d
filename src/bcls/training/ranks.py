"""What processes have to agree on."""

import torch
import torch.distributed as dist
from torch import nn


def agree(answer: bool, device: torch.device) -> bool:
    """The main process's answer, in every process."""
    if not (dist.is_available() and dist.is_initialized()):
        return answer
    told = torch.tensor([answer], dtype=torch.int64, device=device)
    dist.broadcast(told, src=0)
    return bool(told.item())


def average_gradients(module: nn.Module, processes: int) -> None:
    """Average the gradients of a module that no wrapper looks after: the loss, with its temperature.

    Every process computes the whole loss, so they are equal but for rounding, and stay so.
    """
    if processes == 1:
        return
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= processes
