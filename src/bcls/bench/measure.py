"""Time and memory of one step, on a CUDA device or a CPU.

Rivals take turns in one run and the median counts, so that a busy moment hits all of them. On a CUDA device the clock
is the device's own (events), and memory is what torch allocates there; on a CPU it is what torch's profiler sees.
"""

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

#: One step of a rival.
Run = Callable[[], object]
#: Counted steps of a turn.
COUNTED = 3


def step(loss: Callable[..., Tensor], leaves: tuple[Tensor, ...], *others: Tensor) -> tuple[Tensor, ...]:
    """Forward and backward: the value and the gradients of ``leaves``.

    Example:
        >>> step(lambda a, b: (a * b).sum(), (torch.ones(2, requires_grad=True),), torch.full((2,), 3.0))
        (tensor(6.), tensor([3., 3.]))
    """
    value = loss(*leaves, *others)
    return value.detach(), *torch.autograd.grad(value, leaves)


def milliseconds(run: Run, device: torch.device) -> float:
    """Time of one step, until the device is done."""
    if device.type != "cuda":
        started = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - started)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    start.record()
    run()
    stop.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(stop))


def medians(rivals: Mapping[str, Run], device: torch.device, repeats: int) -> dict[str, float]:
    """Median milliseconds of each rival, taking turns.

    Each round has its own order, and a turn begins with a step that does not count: no rival always pays for the caches
    that the one before has emptied.

    Args:
        rivals: Steps by name.
        device: Where they run.
        repeats: Turns of each, of as many counted steps as :data:`COUNTED`; the first steps of all, which may compile,
            do not count.
    """
    for run in rivals.values():
        run(), run()
    times: dict[str, list[float]] = {name: [] for name in rivals}
    order, shuffled = list(rivals), random.Random(0)
    for _ in range(repeats):
        shuffled.shuffle(order)
        for name in order:
            rivals[name]()
            times[name] += [milliseconds(rivals[name], device) for _ in range(COUNTED)]
    return {name: statistics.median(values) for name, values in times.items()}


def megabytes(run: Run, device: torch.device, kept: int = 0) -> float:
    """Peak of memory above what is there before, less the ``kept`` bytes that the result takes.

    Args:
        run: One step.
        device: Where it runs.
        kept: Bytes of the gradients.
    """
    peak = _peak_on_cuda(run, device) if device.type == "cuda" else _peak_on_cpu(run)
    return (peak - kept) / 1e6


def _peak_on_cuda(run: Run, device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def _peak_on_cpu(run: Run) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would write a line for every start and stop
    from torch.profiler import ProfilerActivity, profile

    run()  # what is made once and kept is no part of a step
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = run()
    del result
    changes: list[Any] = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        peak = max(peak, held)
    return peak


def difference(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> float:
    """Largest relative difference of the values, and of the gradients in norm.

    Example:
        >>> round(difference((torch.tensor(1.0), torch.ones(2)), (torch.tensor(1.0), torch.tensor([1.0, 2.0]))), 3)
        0.447
    """
    return max(float((one - other).norm() / other.norm()) for one, other in zip(ours, theirs, strict=True))
