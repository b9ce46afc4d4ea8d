"""All runs of a file, in order: search, choose, repeat; one process or several, until all are done or the time is."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bcls._checks import check_choice, check_number, check_whole, fail
from bcls.experiments.about import add_spread, chosen_before, describe
from bcls.experiments.choose import choose
from bcls.experiments.clock import budget
from bcls.experiments.file import Sweep, read_sweep
from bcls.experiments.plan import Planned, plan_runs, plan_trials, share
from bcls.experiments.results import claimed, read_result, run_folder, write_results
from bcls.experiments.settings import SweepSettings
from bcls.jobs import torch_threads
from bcls.training.run_folder import CHECKPOINTS


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
        file: A file for :func:`bcls.experiments.file.read_sweep`.
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
        from bcls.experiments.scenes import draw_scenes

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
    from bcls.experiments.one_run import Bench, do_runs, wants_work
    from bcls.experiments.people import read_judgements
    from bcls.experiments.shared import Shared
    from bcls.training.tell import tell

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
    if settings.processes > 1 and len(mine) > 1:
        from bcls.experiments.processes import spread

        if spread(sweep, settings, mine, plan, _left(until)):
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
    from bcls.models import model_config
    from bcls.training.objective import make_loss

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
