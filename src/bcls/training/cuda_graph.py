"""An optimizer step as a CUDA graph: recorded once for each batch shape, then replayed with one call.

A small model's step consists of a few hundred kernels of microseconds each, and launching them one by one takes far
longer than running them. A graph launches them all at once. The values are those of the ordinary step: dropout draws
from the same seeds, and losses skip only the check of their input, which :class:`bcls.training.metrics_log.StepMonitor`
makes up for.

All recordings use the memory of the largest one. A smaller step finds room in the segments of a larger one but not the
other way round, so the first recording of a larger shape discards the others, which are recorded again when needed.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from bcls.training.config import TrainConfig
from bcls.training.loader import IndexBatch
from bcls.training.metrics_log import log_line

#: Ordinary steps before a shape is recorded, so that kernels are chosen and the optimizer has its state.
_WARMUP = 3


def graph_obstacle(config: TrainConfig, device: torch.device, processes: int) -> str | None:
    """Why the steps of a run cannot be recorded; ``None`` if they can.

    Example:
        >>> graph_obstacle(TrainConfig(), torch.device("cpu"), 1)
        'it needs a CUDA device'
    """
    obstacles = {
        "it needs a CUDA device": device.type != "cuda",
        "it works in one process only": processes > 1,
        "it cannot be combined with --accumulate": config.accumulate > 1,
        "it cannot be combined with --micro-batch": config.micro_batch > 0,
        "it cannot be combined with --streaming": config.streaming,
        "it cannot be combined with --precision fp16, whose scaler decides on the host": config.precision == "fp16",
    }
    return next((obstacle for obstacle, applies in obstacles.items() if applies), None)


class GraphedStep:
    """Takes steps: ordinary ones at first, then replays of a recording of the same step.

    Args:
        step: The ordinary step.
        optimizer: Its optimizer; the learning rates become tensors, which a recording can read.
    """

    def __init__(self, step: Callable[[IndexBatch], dict[str, Tensor]], optimizer: torch.optim.Optimizer) -> None:
        self._step = step
        self._seen: dict[Any, int] = {}
        self._recorded: dict[Any, tuple[torch.cuda.CUDAGraph, IndexBatch, dict[str, Tensor]]] = {}
        self._pool: Any = None
        self._disabled = False
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for group in optimizer.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(group["params"][0].device)
            group["capturable"] = True
        self._optimizer = optimizer

    def __call__(self, batch: IndexBatch) -> dict[str, Tensor]:
        """Take one optimizer step; see :func:`bcls.training.train.train_step`."""
        if batch.shape in self._recorded:
            graph, inputs, values = self._recorded[batch.shape]
            for new, old in zip(batch.tensors(), inputs.tensors(), strict=True):
                old.copy_(new)
            graph.replay()
            return values
        self._seen[batch.shape] = self._seen.get(batch.shape, 0) + 1
        if self._disabled or self._seen[batch.shape] <= _WARMUP:
            return self._step(batch)
        try:
            return self._record(batch)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            # A loss or a model that reads a value during the step cannot be recorded; it trains without recording.
            self._disabled = True
            reason = str(error).splitlines()[0]
            log_line(f"note: this step cannot be captured as a CUDA graph and runs without one ({reason})")
            self._optimizer.zero_grad(set_to_none=True)
            self._reset_generator()
            return self._step(batch)

    def _record(self, batch: IndexBatch) -> dict[str, Tensor]:
        if all(_size(batch) > _size(inputs) for _, inputs, _ in self._recorded.values()):
            torch.cuda.synchronize()
            self._recorded.clear()
            self._pool = None
            torch.cuda.empty_cache()
        inputs = batch.clone()
        graph = torch.cuda.CUDAGraph()
        self._optimizer.zero_grad(set_to_none=True)
        # `torch.cuda.graph` would also collect garbage each time, which takes longer than an epoch.
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                values = self._step(inputs)
            except BaseException:
                with suppress(RuntimeError):  # the first error is the one to report
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(self._stream)
        self._pool = graph.pool()
        self._recorded[batch.shape] = graph, inputs, values
        graph.replay()  # recording does not run anything
        return values

    def _reset_generator(self) -> None:
        """Record something else: a failed recording leaves torch's random generator in capture mode."""
        with torch.cuda.stream(self._stream):
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            torch.zeros(1, device=self._stream.device)
            graph.capture_end()


def _size(batch: IndexBatch) -> int:
    """Words of a batch, padding included."""
    pairs, width = batch.shape
    return pairs * (width or 1)
