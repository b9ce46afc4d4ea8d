"""A step as a CUDA graph: recorded once for each shape of a batch, then replayed with one call.

A small model's step is a few hundred kernels of microseconds each, and starting them one by one takes far longer than
they run. A graph starts them all at once. The numbers are those of the ordinary step: dropout draws from the same
seeds, and losses skip only the look at their input, which :mod:`bcls.training.console` makes up for.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from bcls.models.padded import Padded
from bcls.training.config import TrainConfig
from bcls.training.console import tell


class Recordable(Protocol):
    """A batch whose tensors can be exchanged for those of another of the same shape."""

    @property
    def shape(self) -> tuple[object, ...]:
        """What batches have in common that one recording serves."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """What differs from batch to batch."""
        ...

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same with every tensor changed."""
        ...


Inputs = TypeVar("Inputs", bound=Recordable)
#: Captions are padded to a multiple of so many words: few shapes, so that few recordings serve all batches.
STEP = 4
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


class RecordedStep(Generic[Inputs]):
    """Takes steps: ordinary ones at first, then replays of a recording of the same step.

    Args:
        step: The ordinary step.
        optimizer: Its optimiser; the learning rates become tensors, which a recording can read.
    """

    def __init__(self, step: Callable[[Inputs], dict[str, Tensor]], optimizer: torch.optim.Optimizer) -> None:
        self._step = step
        self._seen: dict[Any, int] = {}
        self._recorded: dict[Any, tuple[torch.cuda.CUDAGraph, Inputs, dict[str, Tensor]]] = {}
        self._pool: Any = None
        self._plain = False
        self._beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for group in optimizer.param_groups:
            device = group["params"][0].device
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device)
            group["capturable"] = True
        self._optimizer = optimizer

    def __call__(self, batch: Inputs) -> dict[str, Tensor]:
        """One step of the optimiser; see :func:`bcls.training.step.step_once`."""
        if batch.shape in self._recorded:
            graph, held, values = self._recorded[batch.shape]
            for new, old in zip(batch.tensors(), held.tensors(), strict=True):
                old.copy_(new)
            graph.replay()
            return values
        self._seen[batch.shape] = self._seen.get(batch.shape, 0) + 1
        if self._plain or self._seen[batch.shape] <= _BEFORE:
            return self._step(batch)
        try:
            return self._record(batch)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            # A loss or a model that looks at a value on the way cannot be recorded; it trains all the same.
            self._plain = True
            tell(f"note: this step cannot be recorded and is taken as it is ({str(error).splitlines()[0]})")
            self._optimizer.zero_grad(set_to_none=True)
            self._mend()
            return self._step(batch)

    def _record(self, batch: Inputs) -> dict[str, Tensor]:
        held = batch.map(torch.clone)
        graph = torch.cuda.CUDAGraph()
        self._optimizer.zero_grad(set_to_none=True)
        # `torch.cuda.graph` would also collect garbage and empty the cache, which takes longer than an epoch.
        here = torch.cuda.current_stream()
        self._beside.wait_stream(here)
        with torch.cuda.stream(self._beside):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                values = self._step(held)
            except BaseException:
                with suppress(RuntimeError):  # the recording is broken, and what broke it is worth more
                    graph.capture_end()
                raise
            graph.capture_end()
        here.wait_stream(self._beside)
        self._pool = graph.pool()
        self._recorded[batch.shape] = graph, held, values
        graph.replay()  # recording does not run anything
        return values

    def _mend(self) -> None:
        """Record something else: a recording that broke leaves the random generator of all runs in the middle of it."""
        with torch.cuda.stream(self._beside):
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            torch.zeros(1, device=self._beside.device)
            graph.capture_end()


def widened(texts: Padded) -> Padded:
    """Captions padded to a multiple of :data:`STEP` words.

    Example:
        >>> widened(Padded(torch.ones(2, 5, dtype=torch.int64), torch.tensor([5, 3]))).values.shape
        torch.Size([2, 8])
    """
    if texts.lengths is None:
        return texts
    more = -texts.values.shape[1] % STEP
    return Padded(torch.nn.functional.pad(texts.values, (0, more)), texts.lengths)
