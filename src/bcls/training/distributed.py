"""What processes have to agree on, and how they part.

Codes of all processes in each process, with gradients.

Every process scores the whole batch and computes the whole loss. The gradient of a gathered code is then added up over
the processes, W times the right one where there are W, and the average that DistributedDataParallel takes of the
weights' gradients makes it right again. Weights used after the gathering (scores of cross attention, a temperature)
have the whole gradient in each process, and the average leaves it as it is. So W processes with B/W pairs each learn
what one with B pairs learns. Labels and image ids need no gathering: the plan of the epoch is known to all.
"""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from bcls.models.padded import Padded

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


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes, ctx.rank = sizes, dist.get_rank()
        # Processes may hold one item more or less; collectives want equal shapes.
        filled = own.new_zeros((max(sizes), *own.shape[1:]))
        filled[: len(own)] = own
        parts = [torch.empty_like(filled) for _ in sizes]
        dist.all_gather(parts, filled)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous().clone()
        dist.all_reduce(gradient)
        start = sum(ctx.sizes[: ctx.rank])
        return gradient[start : start + ctx.sizes[ctx.rank]], None


def gather_codes(codes: Padded, sizes: list[int]) -> Padded:
    """The codes of all processes, in the order of their ranks; padded to the longest of any.

    Args:
        codes: Those of this process: vectors ``(b, D)`` or sequences ``(b, L, D)`` with or without lengths.
        sizes: How many items each process has; one entry where there is one process, and nothing happens.
    """
    if len(sizes) == 1:
        return codes
    values = codes.values
    if values.ndim > 2:
        longest = torch.tensor([values.shape[1]], device=values.device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        missing = int(longest) - values.shape[1]
        if missing:
            values = functional.pad(values, (0, 0) * (values.ndim - 2) + (0, missing))
    gathered: Tensor = _Gather.apply(values, sizes)  # type: ignore[no-untyped-call]
    lengths = codes.lengths
    if lengths is None and values.ndim > 2 and values.shape[1] != codes.values.shape[1]:
        lengths = torch.full((len(values),), codes.values.shape[1], device=values.device)
    if values.ndim > 2:
        # Whether lengths are needed must be agreed on: one process may have full rows where another has padding.
        needed = torch.tensor([lengths is not None], dtype=torch.int64, device=values.device)
        dist.all_reduce(needed, op=dist.ReduceOp.MAX)
        if not int(needed):
            return Padded(gathered)
        if lengths is None:
            lengths = torch.full((len(values),), values.shape[1], device=values.device)
        return Padded(gathered, _gather_plain(lengths, sizes))
    return Padded(gathered, None if lengths is None else _gather_plain(lengths, sizes))


def _gather_plain(own: Tensor, sizes: list[int]) -> Tensor:
    with torch.no_grad():
        gathered: Tensor = _Gather.apply(own, sizes)  # type: ignore[no-untyped-call]
        return gathered
