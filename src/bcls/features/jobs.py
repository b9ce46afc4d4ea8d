"""Run blocks of work in this process or as a Ray Data job."""

import logging
import os
import pickle
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
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
        engine: ``"local"`` runs in this process, in order. ``"ray"`` is a Ray Data job (extra ``jobs``): workers are
            actors, and results are yielded in the order in which they finish. If a node of the cluster is lost, its
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
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}
_START_RAY = "start one with `ray start --head`, or omit the address"


class RayActor:
    """A worker in a process of its own. Exceptions are returned as values, because Ray would retry the block."""

    def __init__(self, start: bytes, threads: int) -> None:
        self._threads = threads
        self._error: Exception | None = None
        try:
            _check_restart(require("ray", "jobs", "the engine 'ray'"))
            with torch_threads(threads):
                self._work = pickle.loads(start)()  # noqa: S301 - from the process that started this job
        except Exception as error:
            self._error = error

    def __call__(self, rows: dict[str, npt.NDArray[Any]]) -> dict[str, list[Any]]:
        """Compute the blocks in some rows."""
        return {"number": list(rows["number"]), "result": [self._result(block) for block in rows["block"]]}

    def _result(self, block: bytes) -> bytes:
        try:
            if self._error is not None:
                raise self._error
            with torch_threads(self._threads):
                return pickle.dumps(self._work(pickle.loads(block)), protocol=5)  # noqa: S301 - as above
        except Exception as error:
            try:
                packed = pickle.dumps(error)
                pickle.loads(packed)  # noqa: S301 - our own bytes; some exceptions cannot be unpickled
            except Exception:
                packed = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
            return packed


def _run_on_ray(
    blocks: Sequence[Any], start: Start[Any], address: str | None, workers: int, threads: int | None, gpus: float
) -> Results:
    if not len(blocks):
        return
    import torch

    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    ray = require("ray", "jobs", "the engine 'ray'")
    require("ray.data", "jobs", "the engine 'ray'")
    dumps = ray.cloudpickle.dumps
    rows = [{"number": number, "block": dumps(block)} for number, block in enumerate(blocks)]
    with nullcontext() if ray.is_initialized() else _cluster(ray, address, workers):
        ray.data.DataContext.get_current().enable_progress_bars = False
        job = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            RayActor,
            fn_constructor_args=(dumps(start), threads or torch.get_num_threads()),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(blocks))),
            num_cpus=1,
            num_gpus=gpus or None,
        )
        try:
            for row in job.iter_rows():
                result = pickle.loads(row["result"])  # noqa: S301 - from a worker of this job
                if isinstance(result, Exception):
                    raise result
                yield int(row["number"]), np.asarray(result)
        except ray.exceptions.RayError as error:
            _fail_dead_worker(reason_of(error))


def _check_restart(ray: Any) -> None:
    """Fail in an actor that was restarted, unless its node was lost.

    Ray restarts a dead actor without limit. If its node is still alive, so is the cause: a block, or too little memory.
    """
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put  # stored by the head node

    context = ray.get_runtime_context()
    key = f"bcls node of actor {context.get_actor_id()}"
    before = _internal_kv_get(key)
    if context.was_current_actor_reconstructed and before is not None:
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        if before.decode() in alive:
            _fail_dead_worker("its process ended")
    _internal_kv_put(key, context.get_node_id())


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
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
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


def _fail_dead_worker(reason: str) -> NoReturn:
    hint = "run the command again, with fewer workers if memory was exhausted"
    fail("workers", "workers that stay alive", f"one that died ({reason})", hint)


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
