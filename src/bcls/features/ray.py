"""Blocks of work as a Ray Data job: one row a block, actors that keep their model, results streamed back."""

import logging
import os
import pickle
import socket
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail
from bcls._core.extras import require
from bcls.features.jobs import torch_threads

#: Ray writes usage notes and hints to the terminal unless the environment says otherwise before it is imported.
_QUIET = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}
_START = "start one with `ray start --head`, or leave the address out"


class Actor:
    """One worker in a process of its own; what it raises travels back as a value."""

    def __init__(self, start: bytes, threads: int) -> None:
        self._threads = threads
        self._failed: BaseException | None = None
        # Ray starts a dead actor again without end; but what killed it, a block or too little memory, is still there.
        if require("ray", "jobs", "the engine 'ray'").get_runtime_context().was_current_actor_reconstructed:
            self._failed = ValueError(_lost("its process ended"))
            return
        try:
            with torch_threads(threads):
                self._work = pickle.loads(start)()  # noqa: S301 - from the process that started this job
        except Exception as error:
            self._failed = error

    def __call__(self, rows: dict[str, npt.NDArray[Any]]) -> dict[str, list[Any]]:
        """Compute the blocks in some rows."""
        done = [self._one(block) for block in rows["block"]]
        return {"number": list(rows["number"]), "array": [a for a, _ in done], "error": [e for _, e in done]}

    def _one(self, block: bytes) -> tuple[bytes, bytes]:
        if self._failed is not None:
            return b"", _pack_error(self._failed)
        try:
            with torch_threads(self._threads):
                return pickle.dumps(self._work(pickle.loads(block)), protocol=5), b""  # noqa: S301 - as above
        except Exception as error:
            return b"", _pack_error(error)


def run_on_ray(
    blocks: Sequence[Any], start: Any, address: str | None, workers: int, threads: int | None, gpus: float
) -> Generator[tuple[int, npt.NDArray[Any]], None, None]:
    """See :func:`bcls.features.run_blocks`."""
    if not len(blocks):
        return
    import torch

    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    ray = require("ray", "jobs", "the engine 'ray'")
    require("ray.data", "jobs", "the engine 'ray'")
    threads = threads or torch.get_num_threads()
    with nullcontext() if ray.is_initialized() else _cluster(ray, address, workers):
        try:
            yield from _stream(ray, blocks, start, min(workers, len(blocks)), threads, gpus)
        except ray.exceptions.RayError as error:
            raise ValueError(_lost(_one_line(error))) from error


def _stream(
    ray: Any, blocks: Sequence[Any], start: Any, workers: int, threads: int, gpus: float
) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    dumps = ray.cloudpickle.dumps
    rows = [{"number": number, "block": dumps(block)} for number, block in enumerate(blocks)]
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    job = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        Actor,
        fn_constructor_args=(dumps(start), threads),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
        num_gpus=gpus or None,
    )
    for row in job.iter_rows():
        if row["error"]:
            raise pickle.loads(row["error"])  # noqa: S301 - from a worker of this job
        yield int(row["number"]), np.asarray(pickle.loads(row["array"]))  # noqa: S301 - as above


@contextmanager
def _cluster(ray: Any, address: str | None, workers: int) -> Iterator[None]:
    """Join a cluster, or start one here; leave or stop it in the end."""
    own: dict[str, Any] = {}
    if address is None:
        own = {"num_cpus": max(workers, os.cpu_count() or 1), "include_dashboard": False}
    else:
        _check_reachable(address)
    try:
        with _muted():
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        _refused(address, error)
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def _refused(address: str | None, error: BaseException) -> NoReturn:
    """Say why Ray did not let us in; the reason is in what caused its error."""
    if "authentication token" in f"{error} {error.__cause__}".lower():
        remedy = "set RAY_AUTH_MODE=token and give the cluster's token, as Ray's documentation says"
        fail("address", "a Ray cluster that lets us in", f"{address!r}, which asks for a token", remedy)
    fail("address", "a running Ray cluster", f"{address!r} ({_one_line(error)})", _START)


def _check_reachable(address: str) -> None:
    """See that somebody listens; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # "auto", or a name that Ray knows
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        fail("address", "a running Ray cluster", f"{address!r} ({error.strerror or error})", _START)


@contextmanager
def _muted() -> Iterator[None]:
    """Nothing on standard error, also from compiled code: Ray says there how loud it will be."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _lost(reason: str) -> str:
    return (
        f"`workers`: expected that they live, got one that died ({reason}); start again, with fewer if memory ran out"
    )


def _pack_error(error: BaseException) -> bytes:
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)  # noqa: S301 - our own bytes; some errors only fail on the way back
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return packed
