"""The training loop, top to bottom.

One process::

    bcls train --config configs/smoke/tiny.yaml --data DIR --out RUN

Several GPUs, or several nodes with that many each::

    torchrun --nproc_per_node 4 -m bcls train --config ... --data DIR --out RUN
    accelerate launch --num_processes 4 -m bcls train --config ... --data DIR --out RUN
    torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint HOST:29500 -m bcls train ...

After it was stopped or killed, the same line with ``--resume``.

``batch`` counts the pairs of all processes together, and the loss sees them all (:mod:`bcls.training.distributed`). A
step is one step of the optimiser. Nothing random depends on what came before a step: order, crops and dropout are drawn
from the seed and the step's position, so a run that was killed goes on as if it had not been.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from bcls._core.files import replace_folder
from bcls._core.progress import Step as Show
from bcls._core.progress import progress
from bcls.losses import check_now
from bcls.training.checkpoint import Progress, copy_of, restore, write_checkpoint, write_model
from bcls.training.console import Clock, StepValues, Watch, diverged, tell, tell_epoch
from bcls.training.distributed import agree
from bcls.training.metrics_log import Journal
from bcls.training.optimization import all_negatives, rate_at, set_rate
from bcls.training.run_folder import BEST, CHECKPOINTS, EPOCH, LAST, Interrupt, listening
from bcls.training.setup import Run
from bcls.training.step import Step, parts_of, seed_step, stepper
from bcls.training.validate import validate


@dataclass(frozen=True)
class _Here:
    """What one process has in hand while it trains; only the main one has a journal."""

    run: Run
    folder: Path
    at: Progress
    watch: Watch
    journal: Journal | None
    interrupt: Interrupt
    clock: Clock
    caption_ids: list[str]
    step: Step
    warm_step: Step
    save_seconds: float
    shows: bool
    saved: list[float]
    unwritten: dict[str, Tensor] = field(default_factory=dict)


def run_epochs(run: Run, folder: Path, state: dict[str, Any] | None, save_seconds: float = 0.0) -> Progress:
    """Train until the last epoch, or until the figures stop rising.

    Args:
        run: Everything that the run works with.
        folder: The run's folder.
        state: What the last checkpoint says, to go on from there; ``None`` to begin.
        save_seconds: As for :func:`steps`.

    Returns:
        Where the run ended.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM came; a checkpoint was written.
        ValueError: NaN or infinity, or no memory left; the last good checkpoint is kept.
    """
    at = Progress()
    with listening() as interrupt:
        for at in steps(run, folder, state, interrupt, save_seconds=save_seconds):  # noqa: B007 - the last one is the result
            pass
    if interrupt.asked:  # during the last validation, after which no step checks it
        raise KeyboardInterrupt
    return at


def steps(
    run: Run,
    folder: Path,
    state: dict[str, Any] | None,
    interrupt: Interrupt,
    *,
    save_seconds: float = 0.0,
    shows: bool = True,
) -> Iterator[Progress]:
    """Train step by step, so that several runs can take turns; see :func:`run_epochs`.

    Args:
        run: Everything that the run works with.
        folder: The run's folder.
        state: What the last checkpoint says, or ``None``.
        interrupt: Whether it was asked to stop.
        save_seconds: At the end of an epoch a checkpoint is written only if the last one is so old, or if it is the
            last epoch. With 0 after every epoch.
        shows: Whether progress is shown.

    Yields:
        Where the run is, after each step and each epoch.

    Raises:
        KeyboardInterrupt: It was asked to stop; a checkpoint was written.
        ValueError: As for :func:`run_epochs`.
    """
    config, main = run.config, run.accelerator.is_main_process
    at = Progress() if state is None else restore(folder / CHECKPOINTS / LAST, run.learner, state)
    pending = [StepValues(*row) for row in at.pending]
    watch = Watch(check_norm=config.precision != "fp16", pending=pending, flat=at.flat)
    run.accelerator.wait_for_everyone()  # nobody may still read the checkpoint when the first one is written
    yield at
    with ExitStack() as stack:
        journal = Journal(folder, at.metrics_bytes, at.done) if main else None
        if journal is not None:
            stack.callback(journal.close)
        caption_ids = [caption.caption_id for caption in run.train.captions]
        step, warm_step = stepper(run, run.learner.loss), stepper(run, all_negatives(config.loss))
        here = _Here(
            run, folder, at, watch, journal, interrupt, Clock(at.seconds), caption_ids, step, warm_step,
            save_seconds, shows, [time.monotonic()],
        )  # fmt: skip
        while not at.finished:
            yield from _train_epoch(here)
            _end_epoch(here)
            yield at


def _train_epoch(here: _Here) -> Iterator[Progress]:
    run, at, config = here.run, here.at, here.run.config
    plan = run.plan(at.epoch)
    coming = parts_of(run, plan[at.step :], at.epoch)
    step = here.warm_step if at.epoch < config.warm_negatives else here.step
    run.parallel.train()
    wanted = here.journal is not None and here.shows
    showing = progress(f"epoch {at.epoch + 1} of {config.epochs}", len(plan)) if wanted else nullcontext()
    with showing as show:
        while at.step < len(plan):
            seed_step(config.seed, at.epoch, at.step, run.accelerator.process_index)
            set_rate(run.learner.optimizer, rate_at(at.epoch, at.step, len(plan), config))
            captions = np.concatenate(plan[at.step])
            try:
                values = step(next(coming))
            except FloatingPointError as error:
                diverged(at.done + 1, str(error), float("nan"), captions, here.caption_ids)
            at.step, at.done = at.step + 1, at.done + 1
            here.watch.note(at.done, values, captions)
            _after_step(here, show, ends=at.step == len(plan))
            yield at


def _after_step(here: _Here, show: Show | None, *, ends: bool) -> None:
    """Read and write down the values now and then, save, and leave if asked to."""
    run, at, watch, config = here.run, here.at, here.watch, here.run.config
    logs = at.step % config.log_every == 0 or ends
    saves = at.done % config.save_every == 0 and not ends
    stops = here.interrupt.agreed(run.accelerator.device, look=logs)
    if logs or saves or stops or run.accelerator.device.type == "cpu":
        watch.read(here.caption_ids)
    if logs:
        means = watch.take_means()
        if here.journal is not None:
            rate = float(run.learner.optimizer.param_groups[0]["lr"])
            place = {"lr": rate, "seconds": here.clock.seconds()}
            here.journal.write("step", at.epoch + 1, at.done, {**means, **place})
        if show is not None:
            show(at.step, " ".join(f"{name} {value:.4g}" for name, value in means.items()))
            warning = watch.collapse()
            if warning:
                tell(f"warning: {warning}")
    if saves or stops:
        _save(here)
    if stops:
        raise KeyboardInterrupt


def _end_epoch(here: _Here) -> None:
    """Validate, keep the model if it is the best or every one is wanted, decide whether to go on, and save."""
    run, at, config = here.run, here.at, here.run.config
    figures = _judge(run) if here.journal is not None else {}
    better = bool(figures) and (at.best is None or figures[config.best] > at.best)
    better = agree(better, run.accelerator.device)
    at.epoch, at.step = at.epoch + 1, 0
    at.stale = 0 if better else at.stale + 1
    if better:
        at.best, at.best_epoch = figures.get(config.best), at.epoch
    at.finished = at.epoch == config.epochs or (config.patience is not None and at.stale >= config.patience)
    if here.journal is not None and figures:
        here.journal.write("validation", at.epoch, at.done, {**figures, "best": better})
        if here.shows:
            tell_epoch(at.epoch, config.epochs, figures, here.clock.seconds(), better=better)
    if better:
        _note_best(here)
    if config.keep_epochs and here.journal is not None:
        _write_judged(here, EPOCH.format(at.epoch))
    if at.finished or time.monotonic() - here.saved[0] >= here.save_seconds:
        _save(here)


def _judge(run: Run) -> dict[str, float]:
    if run.validation is None:
        return {}
    average = run.learner.average
    with average.in_place(run.model) if average else nullcontext(), run.accelerator.autocast():
        return validate(run.model, run.validation, run.learner.loss)


def _note_best(here: _Here) -> None:
    """Keep the model as the validation saw it: on the disk, or with the next checkpoint where these are seldom."""
    if here.journal is None:
        return
    if not here.save_seconds:
        _write_judged(here, BEST)
        return
    run, average = here.run, here.run.learner.average
    with average.in_place(run.model) if average else nullcontext():
        here.unwritten.update(copy_of(run.model))


def _write_judged(here: _Here, name: str) -> None:
    """Write the model as the validation saw it."""
    run, average = here.run, here.run.learner.average
    with average.in_place(run.model) if average else nullcontext():
        replace_folder(here.folder / CHECKPOINTS / name, lambda new: write_model(run.model, new))


def _write_best(here: _Here) -> None:
    """Write the best model of an epoch before this one."""
    model = here.run.model
    now = copy_of(model)
    model.load_trained_state(here.unwritten)
    replace_folder(here.folder / CHECKPOINTS / BEST, lambda new: write_model(model, new))
    model.load_trained_state(now)
    here.unwritten.clear()


def _save(here: _Here) -> None:
    """Write ``checkpoints/last``; what metrics.jsonl has by now belongs to it."""
    run, at = here.run, here.at
    if here.journal is None:
        return
    check_now()  # what a loss found wrong with its input must not go into a checkpoint
    if here.unwritten:
        _write_best(here)
    at.metrics_bytes, at.seconds, at.flat = here.journal.settle(), here.clock.seconds(), here.watch.flat
    at.pending = [(step, values) for step, values in here.watch.pending]
    settings, data = run.config.as_dict(), run.fingerprint
    last = here.folder / CHECKPOINTS / LAST
    replace_folder(last, lambda new: write_checkpoint(new, run.learner, at, settings, data))
    here.saved[0] = time.monotonic()
