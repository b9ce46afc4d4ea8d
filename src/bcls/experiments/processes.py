"""Runs spread over several processes of one machine; each takes the next run that nobody has."""

import multiprocessing
import os
import time
from collections.abc import Sequence
from typing import Any

from bcls._checks import fail
from bcls.experiments.clock import budget
from bcls.experiments.file import Sweep
from bcls.experiments.plan import Planned
from bcls.experiments.settings import SweepSettings


def spread(
    sweep: Sweep,
    settings: SweepSettings,
    runs: Sequence[Planned],
    plan: Sequence[Planned],
    seconds: float | None,
) -> bool:
    """Do runs in ``settings.processes`` processes, and wait for them.

    Args:
        sweep: The file.
        settings: Where, and how much; ``threads`` of each process.
        runs: The runs to do.
        plan: All runs that stand in ``results.jsonl``.
        seconds: Time that is left; ``None`` for no limit.

    Returns:
        Whether the time ran out.

    Raises:
        ValueError: A run cannot be started; the others are stopped.
        KeyboardInterrupt: Everything was stopped; checkpoints were written.
    """
    from bcls.experiments.sweep import cores

    threads = settings.threads or max(1, cores() // settings.processes)
    context = multiprocessing.get_context("spawn")
    messages: Any = context.SimpleQueue()
    arguments = (sweep, settings, list(runs), list(plan), seconds, threads, messages)
    workers = [context.Process(target=_work, args=arguments) for _ in range(min(settings.processes, len(runs)))]
    said: list[tuple[str, str]] = []
    with budget(None):  # SIGTERM stops this process too
        try:
            _start(workers, threads)
            while any(worker.is_alive() for worker in workers) and not any(kind == "wrong" for kind, _ in said):
                time.sleep(0.05)
                said += _heard(messages)
        finally:
            for worker in workers:
                if worker.is_alive():
                    worker.terminate()  # SIGTERM: a run in training writes a checkpoint
            for worker in workers:
                if worker.pid is not None:
                    worker.join()
    return _judge(said + _heard(messages), [worker.exitcode for worker in workers])


def _judge(said: Sequence[tuple[str, str]], codes: Sequence[int | None]) -> bool:
    """Say how the processes ended: whether the time ran out, or an error."""
    for kind, text in said:
        if kind == "wrong":
            raise ValueError(text)
        if kind == "stopped":
            raise KeyboardInterrupt
    lost = [code for code in codes if code]
    if lost:
        fail("--processes", "processes that end by themselves", f"one with exit code {lost[0]}", "use fewer")
    return any(kind == "spent" for kind, _ in said)


def _start(workers: Sequence[Any], threads: int) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(threads)))  # read when a process starts, before torch is loaded
    try:
        for worker in workers:
            worker.start()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _heard(messages: Any) -> list[tuple[str, str]]:
    heard = []
    while not messages.empty():
        heard.append(messages.get())
    return heard


def _work(
    sweep: Sweep,
    settings: SweepSettings,
    runs: list[Planned],
    plan: list[Planned],
    seconds: float | None,
    threads: int,
    messages: Any,
) -> None:
    """What each process does; how it ended goes to the one that started it."""
    import torch

    from bcls._extras import MissingExtraError
    from bcls.experiments.sweep import work

    torch.set_num_threads(threads)
    with budget(seconds) as state:
        try:
            work(sweep, settings, runs, plan)
        except KeyboardInterrupt:
            messages.put(("spent" if state.spent else "stopped", ""))
        except (ValueError, OSError, MissingExtraError) as error:
            messages.put(("wrong", str(error)))
