"""Distributed training: start and shutdown, agreement between processes, and gathering with gradients.

Every process scores the whole batch and computes the whole loss. The gradient of a gathered code is then summed over
the processes, W times the right one where there are W, and the average that DistributedDataParallel takes of the
weights' gradients corrects it. Weights used after the gathering (scores of cross attention, a temperature) have the
whole gradient in each process, and the average leaves it unchanged. So W processes with B/W pairs each learn what one
with B pairs learns. Labels and image ids need no gathering: every process knows the plan of the epoch.
"""

import time
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]
from torch import Tensor, nn

from bcls._core.errors import fail
from bcls.losses.streaming import BatchShare
from bcls.models.layers import Padded, widen
from bcls.training.config import TrainConfig

#: Seconds, hundreds of times what a thread needs to finish.
_GRACE = 0.2


def start_accelerator(config: TrainConfig) -> Accelerator:
    """The accelerator of a run, on the device and in the precision of the settings.

    Raises:
        ValueError: ``device`` is cuda and there is none.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        fail("device", "a machine with a CUDA device", "none", "use --device cpu or auto")
    # Several processes without a GPU communicate only if accelerate knows that they train on the CPU.
    cpu = config.device == "cpu" or not torch.accelerator.is_available()
    # An earlier run of this process may have had another precision or device.
    shared = AcceleratorState._shared_state
    if shared and (shared["_cpu"] != cpu or shared["_mixed_precision"] != config.precision):
        AcceleratorState._reset_state(reset_partial_state=shared["_cpu"] != cpu)
    return Accelerator(mixed_precision=config.precision, cpu=cpu)


def shutdown_distributed() -> None:
    """End the communication between processes, if there is any; the last call of a program.

    A thread of gloo releases the last tensors a moment after they have arrived, and needs the interpreter for it. If
    that is shutting down already, the process aborts, and a complete run ends as a failed one.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        # Destroying a group does not wait for its threads once a wrapped model has used it.
        time.sleep(_GRACE)


def any_process(answer: bool, device: torch.device, *, communicate: bool = True) -> bool:
    """Whether the answer of any process is yes; every process must call it at the same steps.

    Args:
        answer: This process's answer.
        device: Where tensors for the communication live.
        communicate: Ask the other processes now. Without it several processes answer no.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return answer
    if not communicate:
        return False
    return bool(_maximum(answer, device))


def average_gradients(module: nn.Module, processes: int) -> None:
    """Average the gradients of a module that DistributedDataParallel does not wrap: the loss, with its temperature.

    Every process computes the whole loss, so the gradients are equal up to rounding, and stay equal.
    """
    if processes == 1:
        return
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= processes


def gather_codes(codes: Padded, sizes: list[int]) -> Padded:
    """The codes of all processes, in the order of their ranks, padded to the longest.

    Args:
        codes: Codes of this process: vectors ``(b, D)`` or sequences ``(b, L, D)`` with or without lengths.
        sizes: Number of items of each process; with one entry the codes are returned unchanged.
    """
    if len(sizes) == 1:
        return codes
    values, lengths = codes.values, codes.lengths
    if values.ndim > 2:
        longest = _maximum(values.shape[1], values.device)
        # One process may have full rows where another has padding: they must agree whether lengths are needed.
        if _maximum(lengths is not None or values.shape[1] < longest, values.device):
            lengths = codes.full_lengths
        values = widen(values, longest)
    gathered: Tensor = _Gather.apply(values, sizes)  # type: ignore[no-untyped-call]
    if lengths is None:
        return Padded(gathered)
    with torch.no_grad():
        return Padded(gathered, _Gather.apply(lengths, sizes))  # type: ignore[no-untyped-call]


def _maximum(value: int, device: torch.device) -> int:
    largest = torch.tensor([value], dtype=torch.int64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, sizes: list[int]) -> Tensor:
        share = BatchShare(dist.group.WORLD, tuple(sizes), sum(sizes[: dist.get_rank()]))
        ctx.share, ctx.size = share, len(own)
        return share.gather(own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = ctx.share.all_reduce(gradients[0].contiguous().clone())
        return gradient[ctx.share.first :][: ctx.size], None
