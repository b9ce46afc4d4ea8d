"""Run blocks of work in this process or on Ray."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_choice, check_number, check_whole, fail, reason_of
from bcls._core.extras import require

Block = TypeVar("Block")
#: Computes one block.
Worker: TypeAlias = Callable[[Block], npt.NDArray[Any]]
#: Builds a worker. It is sent to other processes, so it is a module-level function or a ``functools.partial`` of one.
Start: TypeAlias = Callable[[], Worker[Block]]
#: Numbers of blocks with their results.
Results: TypeAlias = Generator[tuple[int, npt.NDArray[Any]], None, None]

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
) -> Results:
    """Compute blocks of work and yield the results as they become available.

    A worker is built once and computes one block at a time with a fixed number of torch threads. On the same kind of
    machine the result of a block has therefore the same bytes, whichever engine and worker computes it.

    Args:
        blocks: The arguments of the worker, one call for each; small, and picklable for ``"ray"``.
        start: Builds a worker, in the process that runs it. A worker with threads of its own may have methods
            ``prefetch(block)``, called with the next block before the worker is called with the current one, and
            ``close()``, called at the end to cancel the blocks that were started.
        engine: ``"local"`` runs in this process, in order. ``"ray"`` needs the extra ``jobs``: workers are actors, and
            results are yielded in the order in which they finish. If a node of the cluster is lost, its
            blocks are computed on the others.
        address: A Ray cluster, such as ``"auto"`` or ``"ray://head:10001"``, whose machines have this library
            installed. Without it ``"ray"`` starts a cluster on this machine and stops it at the end.
        workers: Number of actors, for ``"ray"``.
        threads: Torch threads of a worker; by default as many as this process has.
        gpus: GPUs that an actor needs, for ``"ray"``.

    Yields:
        The number of a block, from 0, and its result. Close the generator to stop early and drop started blocks.

    Raises:
        ValueError: An argument is invalid, or the process of a worker died. Exceptions of a worker are raised here too,
            with either engine.
        MissingExtraError: Ray is not installed.

    Example:
        >>> import functools, numpy as np
        >>> for number, rows in run_blocks([[1, 2], [3]], functools.partial(functools.partial, np.multiply, 2)):
        ...     print(number, rows)
        0 [2 4]
        1 [6]
    """
    check_engine(engine, address, workers)
    check_number("gpus", gpus, "0 for none", low=0)
    if threads is not None:
        check_whole("threads", threads, least=1)
    if engine == "local":
        return _run_local(blocks, start, threads)
    return _run_on_ray(blocks, start, address, workers, threads, gpus)


def check_engine(engine: str, address: str | None, workers: int) -> None:
    """Check the arguments of :func:`run_blocks` that users set, before any expensive work.

    Raises:
        ValueError: An argument is invalid, or does not apply to the engine.
    """
    check_choice("engine", engine, ENGINES)
    check_whole("workers", workers, least=1)
    if engine == "local" and workers != 1:
        fail("workers", "1 with the engine 'local'", workers, "use the engine 'ray' for more workers")
    if engine == "local" and address is not None:
        fail("address", "none with the engine 'local'", repr(address), "use the engine 'ray' for a cluster")


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Use ``count`` torch threads inside a ``with`` block; no change with ``None``.

    Sums are divided between threads, so the number of threads affects the last bits of a result.

    Example:
        >>> import torch
        >>> with torch_threads(1):
        ...     torch.get_num_threads()
        1
    """
    if count is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run_local(blocks: Sequence[Block], start: Start[Block], threads: int | None) -> Results:
    if not len(blocks):
        return
    with torch_threads(threads):
        work = start()
    prefetch: Any = getattr(work, "prefetch", None)
    close: Any = getattr(work, "close", None)
    try:
        for number, block in enumerate(blocks):
            with torch_threads(threads):
                for near in blocks[number : number + 2] if prefetch else ():
                    prefetch(near)
                result = work(block)
            yield number, result
    finally:
        if close:
            close()


#: Ray prints usage notes and hints unless these are set before it is imported.
_QUIET = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_START_RAY = "start one with `ray start --head`, or omit the address"


class RayActor:
    """A worker in a process of its own."""

    def __init__(self, start: Start[Any], threads: int) -> None:
        self._start, self._threads = start, threads

    @cached_property
    def _work(self) -> Worker[Any]:
        return self._start()  # an exception is then that of a block, and is sent to the driver

    def compute(self, number: int, block: Any) -> tuple[int, npt.NDArray[Any]]:
        """Compute a block; return its number and the result."""
        with torch_threads(self._threads):
            return number, np.asarray(self._work(block))


def _run_on_ray(
    blocks: Sequence[Any], start: Start[Any], address: str | None, workers: int, threads: int | None, gpus: float
) -> Results:
    if not len(blocks):
        return
    import torch

    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    ray = require("ray", "jobs", "the engine 'ray'")
    actor_pool = require("ray.util", "jobs", "the engine 'ray'").ActorPool
    # The blocks of a lost node are computed on the others. A process that ends again and again does so for a reason: a
    # block, or too little memory.
    options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 3, "max_task_retries": -1}
    with nullcontext() if ray.is_initialized() else _cluster(ray, address, workers):
        actor = ray.remote(scheduling_strategy="SPREAD", **options)(RayActor)
        count = min(workers, len(blocks))
        pool = actor_pool([actor.remote(start, threads or torch.get_num_threads()) for _ in range(count)])
        try:
            results = pool.map_unordered(lambda one, item: one.compute.remote(*item), list(enumerate(blocks)))
            for number, result in results:
                yield number, result.copy()  # arrays in Ray's memory are read-only
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            ended = isinstance(error, ray.exceptions.RayActorError)
            reason = "its process ended" if ended else reason_of(error)
            hint = "run the command again, with fewer workers if memory was exhausted"
            fail("workers", "workers that stay alive", f"one that died ({reason})", hint)


@contextmanager
def _cluster(ray: Any, address: str | None, workers: int) -> Iterator[None]:
    """Connect to a cluster or start one on this machine; disconnect or stop it at the end."""
    own: dict[str, Any] = {"num_cpus": max(workers, os.cpu_count() or 1), "include_dashboard": False}
    if address is not None:
        own = {}
        _check_reachable(address)
    try:
        with _silent_stderr():
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        _fail_to_connect(address, error)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def _fail_to_connect(address: str | None, error: BaseException) -> NoReturn:
    if "authentication token" in f"{error} {error.__cause__}".lower():  # the reason may be in the cause
        hint = "set RAY_AUTH_MODE=token and provide the token of the cluster, as described in Ray's documentation"
        fail("address", "a Ray cluster that accepts the connection", f"{address!r}, which requires a token", hint)
    fail("address", "a running Ray cluster", f"{address!r} ({reason_of(error)})", _START_RAY)


def _check_reachable(address: str) -> None:
    """Try to connect to the port; Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # "auto", or another name that Ray resolves
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        fail("address", "a running Ray cluster", f"{address!r} ({error.strerror or error})", _START_RAY)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Discard standard error, that of compiled code included, where Ray announces its log level."""
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
