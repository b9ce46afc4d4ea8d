"""What processes have to agree on, and how they part."""

import time

import torch
import torch.distributed as dist
from torch import nn

#: Seconds, hundreds of times what a thread needs.
_MOMENT = 0.2


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


def hang_up() -> None:
    """End the talk between processes, where there is one: the last thing that a program does.

    A thread of gloo lets go of the last tensors a moment after they have arrived, and needs the interpreter for it.
    Where that is going down already the process aborts, and a run that is whole ends as one that failed.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        # Destroying a group does not wait for its threads where a wrapped model has been part of it.
        time.sleep(_MOMENT)
