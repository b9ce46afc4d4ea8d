"""A fixed number of torch threads: sums are split between them, so their number shows in the last bits.

Run blocks of work in this process, or on Ray.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy.typing as npt

from bcls._core.errors import check_choice, check_number, check_whole, fail


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Use so many torch threads inside, and as many as before again after; no change with ``None``.

    Example:
        >>> import torch
        >>> with torch_threads(1):
        ...     torch.get_num_threads()
        1
    """
    import torch

    before = torch.get_num_threads()
    if count is not None and count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


Block = TypeVar("Block")
#: Computes one block.
Worker: TypeAlias = Callable[[Block], npt.NDArray[Any]]
#: Builds a worker; it is sent to other processes, so it is a function of a module or a ``functools.partial`` of one.
Start: TypeAlias = Callable[[], Worker[Block]]


@runtime_checkable
class Ahead(Protocol):
    """A worker with threads of its own, which may begin with a block before the last one is done."""

    def ahead(self, block: Any) -> None:
        """Begin with a block; the call with it comes later."""

    def close(self) -> None:
        """Drop what was begun; no call comes after."""


#: Where blocks can run.
ENGINES = ("local", "ray")


def run_blocks(
    blocks: Sequence[Block],
    start: Start[Block],
    *,
    engine: str = "local",
    address: str | None = None,
    workers: int = 1,
    threads: int | None = None,
    gpus: float = 0.0,
) -> Generator[tuple[int, npt.NDArray[Any]], None, None]:
    """Compute blocks of work and give the results as they come.

    A worker is built once and sees whole blocks, each alone and with a fixed number of torch threads, so a block's
    result is the same, byte for byte, whichever engine and worker computes it on the same kind of machine.

    Args:
        blocks: What a worker is called with, one after another; small, and picklable for ``"ray"``.
        start: Builds a worker. It is called in the process that works, and may load a model there. A worker that is
            also :class:`Ahead` is told of the next block before it is called with one.
        engine: ``"local"`` works in this process, in order. ``"ray"`` is a Ray Data job (extra ``jobs``): workers are
            actors, and results come in the order in which they are done.
        address: A Ray cluster, such as ``"auto"`` or ``"ray://head:10001"``, on whose machines this library is
            installed. Without it ``"ray"`` starts one on this machine and stops it in the end.
        workers: How many actors work at a time, for ``"ray"``.
        threads: Torch threads of a worker; as many as this process has when left out.
        gpus: GPUs that an actor needs, for ``"ray"``.

    Yields:
        The number of a block, from 0, and its result. Close it to stop early; what was begun is dropped.

    Raises:
        ValueError: An argument is wrong, or a worker's process died. What a worker raises is raised here as well, with
            either engine.
        MissingExtraError: Ray is not installed.

    Example:
        >>> import functools, numpy as np
        >>> for number, rows in run_blocks([[1, 2], [3]], functools.partial(functools.partial, np.multiply, 2)):
        ...     print(number, rows)
        0 [2 4]
        1 [6]
    """
    check_choice("engine", engine, ENGINES)
    check_whole("workers", workers, least=1)
    check_number("gpus", gpus, "0 for none", low=0)
    if threads is not None:
        check_whole("threads", threads, least=1)
    if engine == "local":
        if workers != 1:
            fail("workers", 'one with engine="local"', workers, 'use engine="ray" for more')
        if address is not None:
            fail("address", 'none with engine="local"', repr(address), 'use engine="ray" for a cluster')
        return _local(blocks, start, threads)
    from bcls.features.ray import run_on_ray

    return run_on_ray(blocks, start, address, workers, threads, gpus)


def _local(
    blocks: Sequence[Block], start: Start[Block], threads: int | None
) -> Generator[tuple[int, npt.NDArray[Any]], None, None]:
    if not len(blocks):
        return
    with torch_threads(threads):
        work = start()
    early: object = work
    try:
        for number, block in enumerate(blocks):
            with torch_threads(threads):
                if isinstance(early, Ahead):
                    for near in blocks[number : number + 2]:
                        early.ahead(near)
                result = work(block)
            yield number, result
    finally:
        if isinstance(early, Ahead):
            early.close()
