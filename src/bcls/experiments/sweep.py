"""A budget of time, and requests to stop, both answered without losing anything.

Runs spread over several processes of one machine; each takes the next run that nobody has.

All runs of a file, in order: search, choose, repeat; one process or several, until all are done or the time is.
"""

import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from bcls._core.errors import check_choice, check_number, check_whole, fail
from bcls.experiments.plan import Planned, choose, plan_runs, plan_trials, share
from bcls.experiments.results import (
    add_spread,
    chosen_before,
    claimed,
    describe,
    read_result,
    run_folder,
    write_results,
)
from bcls.experiments.sweep_file import Sweep, SweepSettings, read_sweep
from bcls.features.jobs import torch_threads
from bcls.training.run_folder import CHECKPOINTS


class Budget:
    """Whether the time is spent."""

    def __init__(self) -> None:
        self.spent = False


@contextmanager
def budget(seconds: float | None) -> Iterator[Budget]:
    """Stop the work inside after some time, as SIGTERM would: a run in training writes a checkpoint first.

    Between trainings SIGTERM becomes ``KeyboardInterrupt`` too, so that no lock or half of a file stays behind.
    Outside of the main thread signals cannot be caught, and nothing is changed.

    Args:
        seconds: How long; ``None`` for no limit.

    Yields:
        Tells afterwards whether it was the budget that stopped the work.
    """
    state = Budget()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def ring(number: int, frame: FrameType | None) -> None:
        state.spent = True
        signal.raise_signal(signal.SIGTERM)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, leave), signal.SIGALRM: signal.signal(signal.SIGALRM, ring)}
    if seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))
    try:
        yield state
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


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

    from bcls._core.extras import MissingExtraError

    torch.set_num_threads(threads)
    with budget(seconds) as state:
        try:
            work(sweep, settings, runs, plan)
        except KeyboardInterrupt:
            messages.put(("spent" if state.spent else "stopped", ""))
        except (ValueError, OSError, MissingExtraError) as error:
            messages.put(("wrong", str(error)))


@dataclass(frozen=True)
class Outcome:
    """How far a sweep is."""

    planned: int
    """Runs of the plan, trials of a search included; those after an unfinished search are not known yet."""
    finished: int
    """Those that are finished."""
    failed: list[str]
    """Names and seeds of those that diverged."""
    spent: bool
    """Whether the time ran out."""
    searching: bool
    """Whether the search is unfinished, so that the runs of the table are not known yet."""
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What a search found for each row."""


def run_sweep(file: str | Path, settings: SweepSettings) -> Outcome:
    """Do all runs of a file that are not finished; the whole of ``bcls sweep``.

    Args:
        file: A file for :func:`bcls.experiments.sweep_file.read_sweep`.
        settings: Where, and how much.

    Returns:
        How far it got.

    Raises:
        ValueError: The file, the data or a flag is wrong.
        KeyboardInterrupt: It was stopped; the same call goes on.
    """
    sweep = read_sweep(file)
    _check(sweep, settings)
    if sweep.scenes is not None:
        from bcls.experiments.metrics import draw_scenes

        draw_scenes(settings.data, sweep.scenes)
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    until = None if settings.minutes is None else time.monotonic() + 60 * settings.minutes
    tried = plan_trials(sweep)
    before = chosen_before(out, sweep)
    describe(out, sweep, file, settings, before)
    spent = _do(sweep, settings, tried, tried, until)
    found: dict[str, dict[str, Any]] | None = {}
    if sweep.search is not None:
        found = _found(out, sweep, tried, before)
    if found is None:
        return _outcome(out, tried, spent=spent, searching=True, chosen={})
    runs = plan_runs(sweep, found)
    _prune(out, tried, runs)
    describe(out, sweep, file, settings, found)
    if not spent:
        spent = _do(sweep, settings, runs, [*tried, *runs], until)
    write_results(out, [*tried, *runs])
    add_spread(out, settings, runs)
    return _outcome(out, [*tried, *runs], spent=spent, searching=False, chosen=found)


def _found(
    out: Path, sweep: Sweep, tried: Sequence[Planned], before: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]] | None:
    """What the search found; choices made before stand. ``None`` while a trial is not finished."""
    results = {run.key: result for run in tried if (result := read_result(out, run)) is not None}
    found = choose(tried, results, sweep.search.measure) if sweep.search is not None else {}
    return None if found is None else {**found, **before}


def list_runs(file: str | Path, settings: SweepSettings) -> list[dict[str, Any]]:
    """What :func:`run_sweep` would do, without doing it.

    Returns:
        ``key``, ``name``, ``phase``, ``seed`` and ``finished`` of each run of the share; after an unfinished search,
        of its trials alone.
    """
    sweep = read_sweep(file)
    _check(sweep, settings)
    out = Path(settings.out)
    tried = plan_trials(sweep)
    runs: list[Planned] = []
    found: dict[str, dict[str, Any]] | None = {}
    if sweep.search is not None:
        found = _found(out, sweep, tried, chosen_before(out, sweep))
    if found is not None:
        runs = plan_runs(sweep, found)
    return [
        {
            "key": run.key,
            "name": run.name,
            "phase": run.phase,
            "seed": run.seed,
            "finished": read_result(out, run) is not None,
        }
        for run in [*share(tried, settings.shard), *share(runs, settings.shard)]  # each dealt out as when they are done
    ]


def work(sweep: Sweep, settings: SweepSettings, runs: Sequence[Planned], plan: Sequence[Planned]) -> None:
    """Do runs one after another in this process; those that another process has are left to it.

    Args:
        sweep: The file.
        settings: Where, and how much.
        runs: The runs to do.
        plan: All runs that stand in ``results.jsonl``.
    """
    from bcls.experiments.metrics import read_judgements
    from bcls.experiments.run import Bench, Shared, do_runs, wants_work
    from bcls.training.metrics_log import log_line as tell

    out = Path(settings.out)
    left = [run for run in runs if wants_work(out, run, final=settings.final)]
    if not left:
        return
    shared = Shared(settings.data, out / "shared")
    judgements = None
    looks = settings.final or (sweep.search is not None and sweep.search.measure.startswith("choice_"))
    if settings.judgements is not None and looks:
        judgements = read_judgements(settings.judgements, shared.dataset, sweep.judged_choice)
    with ThreadPoolExecutor(4, "bcls-read") as pool:
        bench = Bench(
            sweep, out, shared, pool, judgements, settings.final, device=settings.device, graph=settings.graph
        )
        done = 0
        for group in _groups(left, settings.together):
            with ExitStack() as claims:
                mine = [run for run in group if _free(out, run, claims)]
                mine = [run for run in mine if wants_work(out, run, final=settings.final)]
                for place, run in enumerate(mine, start=done + 1):
                    tell(f"{sweep.name}: {run.name}, seed {run.seed}, {place} of {len(left)} ({run.key})")
                do_runs(bench, mine)
            done += len(group)
            write_results(out, plan)


def _groups(runs: Sequence[Planned], size: int) -> Iterator[Sequence[Planned]]:
    """Runs that are done together; those made of others come after all others, one by one."""
    trained = [run for run in runs if not run.members]
    yield from (trained[first : first + size] for first in range(0, len(trained), size))
    yield from ([run] for run in runs if run.members)


def _free(out: Path, run: Planned, claims: ExitStack) -> bool:
    """Whether a run is this process's to do: its members are finished, and nobody else has it."""
    results = [read_result(out, member) for member in run.members]
    if any(result is None or "again" in result for result in results):  # another process may be training it
        return False
    return claims.enter_context(claimed(run_folder(out, run)))


def _do(
    sweep: Sweep, settings: SweepSettings, runs: Sequence[Planned], plan: Sequence[Planned], until: float | None
) -> bool:
    """Do a share of the runs, in this process or in several; whether the time ran out."""
    mine = share(runs, settings.shard)
    if settings.processes > 1 and len(mine) > 1 and spread(sweep, settings, mine, plan, _left(until)):
        return True
    with budget(_left(until)) as state:
        try:
            with torch_threads(settings.threads):
                work(sweep, settings, mine, plan)
        except KeyboardInterrupt:
            if not state.spent:
                raise
    return state.spent


def _left(until: float | None) -> float | None:
    return None if until is None else until - time.monotonic()


def _check(sweep: Sweep, settings: SweepSettings) -> None:
    check_choice("--device", settings.device, ("auto", "cpu", "cuda"))
    check_whole("--processes", settings.processes, least=1)
    check_whole("--together", settings.together, least=1)
    if settings.threads is not None:
        check_whole("--threads", settings.threads, least=1)
    if settings.minutes is not None:
        check_number("--minutes", settings.minutes, "leave it out for no limit", above=0)
    if sweep.search is not None and sweep.search.measure.startswith("choice_") and settings.judgements is None:
        fail("--judgements", f"a folder: the search measures {sweep.search.measure}", "none", "give it")
    from bcls.models.config import model_config
    from bcls.training.optimization import make_loss

    for run in [*plan_trials(sweep), *plan_runs(sweep)]:
        if not run.members:
            make_loss(run.settings["loss"])
            model = dict(run.settings["model"])
            if model.get("image") == "features":
                model.setdefault("features", 1)  # read from the data later
            model_config(model)


def _prune(out: Path, tried: Sequence[Planned], runs: Sequence[Planned]) -> None:
    """Remove the weights of trials that no run of the table is; their figures stay."""
    kept = {run.key for run in runs}
    for trial in tried:
        if trial.key not in kept:
            folder = run_folder(out, trial) / CHECKPOINTS
            # Under another name first: half of a checkpoint must not be taken for a whole one.
            gone = folder.with_name(f"{CHECKPOINTS}.gone")
            shutil.rmtree(gone, ignore_errors=True)
            with suppress(FileNotFoundError):
                folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def _outcome(
    out: Path, runs: Sequence[Planned], *, spent: bool, searching: bool, chosen: dict[str, dict[str, Any]]
) -> Outcome:
    results = [(run, result) for run in runs if (result := read_result(out, run)) is not None]
    failed = [f"{run.name}, seed {run.seed}" for run, result in results if "failed" in result]
    return Outcome(len(runs), len(results), failed, spent, searching, chosen)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
