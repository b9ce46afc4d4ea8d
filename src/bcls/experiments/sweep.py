"""Sweeps: train and evaluate each configuration with each seed, in one process or in several."""

import math
import multiprocessing
import shutil
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from bcls._core.errors import check_choice, check_number, check_whole, fail
from bcls._core.extras import MissingExtraError, cpu_count
from bcls.data.dataset import Dataset, open_dataset
from bcls.experiments import results
from bcls.experiments.plan import RUN, Choices, PlannedRun, Runs, choose, plan_runs, plan_trials, take_share
from bcls.experiments.sweep_file import Sweep, SweepSettings, read_sweep
from bcls.features.jobs import torch_threads
from bcls.training.run_folder import CHECKPOINTS, handle_signals


@dataclass(frozen=True)
class Outcome:
    """Progress of a sweep.

    Attributes:
        planned: Planned runs, including trials of a search; the runs after an unfinished search are not known yet.
        finished: Finished runs.
        failed: Names and seeds of the runs that diverged.
        spent: Whether the time ran out.
        searching: Whether the search is unfinished, so that the runs of the final table are not known yet.
        chosen: Settings that the search chose for each configuration.
    """

    planned: int
    finished: int
    failed: list[str]
    spent: bool
    searching: bool
    chosen: Choices = field(default_factory=dict)


# SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that locks are released.
@handle_signals(signal.default_int_handler, signal.SIGTERM)
def run_sweep(file: str | Path, settings: SweepSettings) -> Outcome:
    """Do all unfinished runs of a sweep file.

    Args:
        file: A file for :func:`bcls.experiments.read_sweep`.
        settings: Data, output folder and options.

    Returns:
        The progress of the sweep.

    Raises:
        ValueError: If the file, the data or a flag is wrong.
        KeyboardInterrupt: If it was interrupted; the same call resumes.
    """
    from bcls.experiments.metrics import draw_scenes

    whole, sweep = _read(file, settings)
    if sweep.scenes is not None:
        draw_scenes(settings.data, sweep.scenes)
    dataset = open_dataset(settings.data)
    if settings.final:
        check_choice("test_split", sweep.test_split, dataset.splits)
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    results.restore_results(out)
    until = math.inf if settings.minutes is None else time.monotonic() + 60 * settings.minutes
    tried, earlier = plan_trials(sweep), results.previous_choices(out, whole)
    results.write_metadata(out, whole, file, dataset, earlier)
    spent = _do(sweep, settings, tried, _listed(whole, earlier), until)
    chosen = _chosen(out, sweep, tried)
    if chosen is None:
        return _outcome(sweep, settings, tried, spent, None)
    runs, every = plan_runs(sweep, chosen), earlier | chosen
    plan = _listed(whole, every)
    _remove_unchosen(out, tried, plan)
    results.write_metadata(out, whole, file, dataset, every)
    if not spent:
        spent = _do(sweep, settings, runs, plan, until)
    results.write_results(out, plan)
    add_spread(out, dataset, runs)
    return _outcome(sweep, settings, [*tried, *runs], spent, chosen)


def list_runs(file: str | Path, settings: SweepSettings) -> list[dict[str, Any]]:
    """List what :func:`run_sweep` would do.

    Returns:
        ``key``, ``name``, ``phase``, ``seed`` and ``finished`` of each run of the share; before the search is
        finished, only of its trials.
    """
    _, sweep = _read(file, settings)
    tried, found = plan_trials(sweep), []
    with TemporaryDirectory() as copy:
        out = results.restore_results(Path(settings.out), Path(copy))
        chosen = _chosen(out, sweep, tried)
        runs = [] if chosen is None else plan_runs(sweep, chosen)
        for run in [*take_share(tried, settings.shard), *take_share(runs, settings.shard)]:
            columns = {key: getattr(run, key) for key in ("key", "name", "phase", "seed")}
            found.append({**columns, "finished": not results.needs_work(out, run, sweep, settings)})
    return found


def _read(file: str | Path, settings: SweepSettings) -> tuple[Sweep, Sweep]:
    """Read a sweep and check everything; returns it, and its part with the configurations of ``--only``."""
    from bcls.models.config import model_config
    from bcls.training.optimization import make_loss

    whole = sweep = read_sweep(file)
    rows = {one.name: one for one in whole.configurations}
    wanted = {check_choice("--only", name, rows) for name in settings.only}
    wanted |= {member for name in wanted for member in rows[name].ensemble}
    if wanted:
        sweep = replace(whole, configurations=tuple(row for row in rows.values() if row.name in wanted))
    take_share([], settings.shard)
    check_choice("--device", settings.device, ("auto", "cpu", "cuda"))
    for flag, count in (("--processes", settings.processes), ("--threads", settings.threads)):
        if count is not None:
            check_whole(flag, count, least=1)
    if settings.minutes is not None:
        check_number("--minutes", settings.minutes, "leave it out for no limit", above=0)
    if sweep.chooses_on_ratings and settings.judgements is None:
        fail("--judgements", "a folder: the search measures agreement with ratings", "none", "add it")
    for run in [*plan_trials(sweep), *plan_runs(sweep)]:
        if not run.members:
            make_loss(run.settings["loss"])
            model = dict(run.settings["model"])
            if model.get("image") == "features":
                model.setdefault("features", 1)  # read from the data later
            model_config(model)
    return whole, sweep


def _listed(sweep: Sweep, chosen: Choices) -> Runs:
    """The runs of ``results.jsonl``: all trials, and the runs whose settings are known."""
    known = sweep.configurations
    if sweep.search is not None:
        known = tuple(one for one in known if all(name in chosen for name in one.ensemble or (one.name,)))
    return [*plan_trials(sweep), *plan_runs(replace(sweep, configurations=known), chosen)]


def _chosen(out: Path, sweep: Sweep, tried: Runs) -> Choices | None:
    """The settings that the search chose, earlier choices included; ``None`` if a trial is not finished."""
    if sweep.search is None:
        return {}
    finished = {run.key: result for run in tried if (result := results.read_result(out, run)) is not None}
    chosen = choose(tried, finished, sweep.search.measure)
    return None if chosen is None else {**chosen, **results.previous_choices(out, sweep)}


def _do(sweep: Sweep, settings: SweepSettings, runs: Runs, plan: Runs, until: float) -> bool:
    """Do the share of the runs, in this process or in several; returns whether the time ran out."""
    mine = take_share(runs, settings.shard)
    if settings.processes > 1 and len(mine) > 1 and _do_in_processes(sweep, settings, mine, plan, until):
        return True
    # After several processes, this one does the ensembles whose members another process finished last.
    with torch_threads(settings.threads):
        return work(sweep, settings, mine, plan, until)


def work(sweep: Sweep, settings: SweepSettings, runs: Runs, plan: Runs, until: float) -> bool:
    """Do runs one after another; runs that another process works on are skipped.

    Args:
        sweep: The sweep.
        settings: Data, output folder and options.
        runs: The runs to do.
        plan: All runs of ``results.jsonl``.
        until: A time of ``time.monotonic``, from which on training stops with a checkpoint and no run is started.

    Returns:
        Whether the time ran out.
    """
    from bcls.experiments.metrics import read_judgements
    from bcls.experiments.run import SharedData, SweepContext, finish_run
    from bcls.training.metrics_log import log_line

    out = Path(settings.out)
    members = {one.key for run in runs if results.needs_work(out, run, sweep, settings) for one in run.members}

    def unfinished(run: PlannedRun) -> bool:
        wanted = run.key in members and results.lacks_weights(out, run)
        return wanted or results.needs_work(out, run, sweep, settings)

    left = [run for run in runs if unfinished(run)]
    if not left:
        return False
    shared = SharedData(settings.data, out / "shared")
    judgements = None
    if settings.judgements is not None and (settings.final or sweep.chooses_on_ratings):
        judgements = read_judgements(settings.judgements, shared.dataset, sweep.judged_choice)
    context = SweepContext(sweep, settings, shared, judgements, until)
    # Ensembles last: another process may still train their members.
    for number, run in enumerate(sorted(left, key=lambda one: bool(one.members)), 1):
        results.run_folder(out, run).mkdir(parents=True, exist_ok=True)
        with suppress(Timeout), FileLock(results.run_folder(out, run) / ".claim", blocking=False):
            if _members_are_finished(out, run) and unfinished(run):
                log_line(f"{sweep.name}: {run.name}, seed {run.seed}, {number} of {len(left)} ({run.key})")
                try:
                    finish_run(context, run)
                except KeyboardInterrupt:
                    if time.monotonic() < until:
                        raise
        results.write_results(out, plan)
        if time.monotonic() >= until:
            return True
    return False


def _members_are_finished(out: Path, run: PlannedRun) -> bool:
    return not any(results.read_result(out, one) is None or results.lacks_weights(out, one) for one in run.members)


def _do_in_processes(sweep: Sweep, settings: SweepSettings, runs: Runs, plan: Runs, until: float) -> bool:
    """Do runs in ``settings.processes`` processes, each of which takes the next free run.

    Returns:
        Whether the time ran out.

    Raises:
        ValueError: If a run cannot be started; the other processes are stopped.
        KeyboardInterrupt: If it was interrupted; all processes wrote checkpoints.
    """
    context = multiprocessing.get_context("spawn")
    ends: Any = context.SimpleQueue()
    threads = settings.threads or max(1, cpu_count() // settings.processes)
    arguments = (ends, threads, sweep, settings, runs, plan, until)
    workers = [context.Process(target=_worker, args=arguments) for _ in range(min(settings.processes, len(runs)))]
    with ExitStack() as stack:
        for worker in workers:
            worker.start()
            stack.callback(worker.join)
        for worker in workers:
            stack.callback(worker.terminate)  # SIGTERM: a run in training writes a checkpoint
        # The list is made once: a worker may end at any moment, and waiting for an empty list never returns.
        while alive := [worker.sentinel for worker in workers if worker.is_alive()]:
            if any(worker.exitcode for worker in workers):
                break
            wait(alive)
    found = []
    while not ends.empty():
        found.append(ends.get())
    # The error of a process comes before the interrupts of the others.
    for kind in (ValueError, KeyboardInterrupt):
        for end in found:
            if isinstance(end, kind):
                raise end
    crashed = [worker.exitcode for worker in workers if worker.exitcode]
    if crashed:
        fail("--processes", "processes that finish", f"one with exit code {crashed[0]}", "use fewer")
    return any(found)


@handle_signals(signal.default_int_handler, signal.SIGTERM)
def _worker(ends: Any, threads: int, *arguments: Any) -> None:
    """The work of each process; sends to the parent process whether the time ran out, or the error."""
    try:
        with torch_threads(threads):
            ends.put(work(*arguments))
    except KeyboardInterrupt as error:
        ends.put(error)
    except (ValueError, OSError, MissingExtraError) as error:
        ends.put(ValueError(str(error)))
        raise SystemExit(2) from None


def _remove_unchosen(out: Path, tried: Runs, plan: Runs) -> None:
    """Remove the checkpoints of trials that are not runs of the final table; their metrics are kept."""
    kept = {run.key for run in plan if run.phase == RUN}
    for trial in tried:
        if trial.key not in kept:
            folder = results.run_folder(out, trial) / CHECKPOINTS
            # Renamed first: a partly removed checkpoint must not be taken for a complete one.
            gone = folder.with_name(f"{CHECKPOINTS}.gone")
            shutil.rmtree(gone, ignore_errors=True)
            with suppress(FileNotFoundError):
                folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def add_spread(out: Path, dataset: Dataset, runs: Runs) -> None:
    """Add the spread of similarities between captions of an image to ``sweep.json``; the paper sets alpha to it."""
    from bcls.experiments.metrics import caption_vectors
    from bcls.labels.alpha import caption_spread
    from bcls.training.config import TrainConfig

    encoder = TrainConfig(labels=runs[0].settings["labels"]).label_encoder
    if encoder is None or not any(results.read_result(out, run) for run in runs):
        return
    train = dataset.without_quarantined().split(runs[0].settings["train_split"])
    if np.bincount(train.image_of_caption).max() > 1:
        results.add_metadata(out, spread=caption_spread(caption_vectors(train, encoder), train.image_of_caption).alpha)


def _outcome(sweep: Sweep, settings: SweepSettings, runs: Runs, spent: bool, chosen: Choices | None) -> Outcome:
    out = Path(settings.out)
    finished = [run for run in runs if not results.needs_work(out, run, sweep, settings)]
    failed = [run for run in finished if "failed" in (results.read_result(out, run) or {})]
    names = [f"{run.name}, seed {run.seed}" for run in failed]
    return Outcome(len(runs), len(finished), names, spent, chosen is None, chosen or {})
