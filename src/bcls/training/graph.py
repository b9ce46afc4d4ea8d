"""A step as a CUDA graph: recorded once for each shape of a batch, then replayed with one call.

A small model's step is a few hundred kernels of microseconds each, and starting them one by one takes far longer than
they run. A graph starts them all at once. The numbers are those of the ordinary step: dropout draws from the same
seeds, and losses skip only the look at their input, which :mod:`bcls.training.watch` makes up for.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bcls._padded import Padded
from bcls.training.batch import Batch
from bcls.training.config import TrainConfig

Step = Callable[[Batch], dict[str, Tensor]]
#: Ordinary steps before a shape is recorded, so that kernels are chosen and the optimiser has its state.
_BEFORE = 3


def why_not(config: TrainConfig, device: torch.device, processes: int) -> str | None:
    """Why the steps of a run cannot be recorded; ``None`` where they can.

    Example:
        >>> why_not(TrainConfig(), torch.device("cpu"), 1)
        'it needs a CUDA device'
    """
    if device.type != "cuda":
        return "it needs a CUDA device"
    if processes > 1:
        return "it works in one process only"
    if config.accumulate > 1:
        return "it does not go with --accumulate"
    if config.precision == "fp16":
        return "the scaler of fp16 decides on the host"
    return None


class RecordedStep:
    """Takes steps: ordinary ones at first, then replays of a recording of the same step.

    Args:
        step: The ordinary step.
        optimizer: Its optimiser; the learning rates become tensors, which a recording can read.
    """

    def __init__(self, step: Step, optimizer: torch.optim.Optimizer) -> None:
        self._step = step
        self._seen: dict[Any, int] = {}
        self._recorded: dict[Any, tuple[torch.cuda.CUDAGraph, Batch, dict[str, Tensor]]] = {}
        self._pool: Any = None
        for group in optimizer.param_groups:
            device = group["params"][0].device
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device)
            group["capturable"] = True
        self._optimizer = optimizer

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """One step of the optimiser; see :func:`bcls.training.loop.step_once`."""
        shape = _shape(batch)
        if shape in self._recorded:
            graph, held, values = self._recorded[shape]
            _copy(batch, held)
            graph.replay()
            return values
        self._seen[shape] = self._seen.get(shape, 0) + 1
        if self._seen[shape] <= _BEFORE:
            return self._step(batch)
        return self._record(shape, batch)

    def _record(self, shape: Any, batch: Batch) -> dict[str, Tensor]:
        held = batch.map(torch.clone)
        graph = torch.cuda.CUDAGraph()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, pool=self._pool):
            values = self._step(held)
        self._pool = graph.pool()
        self._recorded[shape] = graph, held, values
        graph.replay()  # recording does not run anything
        return values


def _shape(batch: Batch) -> Any:
    return tuple((part.shape, part.dtype) for part in batch.tensors())


def _copy(source: Batch, target: Batch) -> None:
    for new, old in zip(source.tensors(), target.tensors(), strict=True):
        old.copy_(new)


def widened(texts: Padded, step: int = 4) -> Padded:
    """Captions padded to a multiple of ``step`` words: few shapes, so that few recordings serve all batches.

    Example:
        >>> widened(Padded(torch.ones(2, 5, dtype=torch.int64), torch.tensor([5, 3]))).values.shape
        torch.Size([2, 8])
    """
    if texts.lengths is None:
        return texts
    more = -texts.values.shape[1] % step
    return Padded(torch.nn.functional.pad(texts.values, (0, more)), texts.lengths)
