"""The training loop, top to bottom.

One process::

    bcls train --config configs/smoke/tiny.yaml --data DIR --out RUN

Several GPUs, or several nodes with that many each::

    torchrun --nproc_per_node 4 -m bcls train --config ... --data DIR --out RUN
    accelerate launch --num_processes 4 -m bcls train --config ... --data DIR --out RUN
    torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint HOST:29500 -m bcls train ...

After it was stopped or killed, the same line with ``--resume``.

``batch`` counts the pairs of all processes together, and the loss sees them all; see :mod:`bcls.training.gather`. A
step is one step of the optimiser. Nothing random depends on what came before a step: order, crops and dropout are drawn
from the seed and the step's position, so a run that was killed goes on as if it had not been.
"""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcls._files import replace_folder
from bcls._padded import Padded
from bcls._progress import Step, progress
from bcls.losses import RetrievalLoss
from bcls.training.batch import Batch, labelled
from bcls.training.checkpoint import Progress, restore, write_checkpoint, write_model
from bcls.training.gather import gather_codes
from bcls.training.graph import RecordedStep, widened
from bcls.training.interrupt import Interrupt, listening
from bcls.training.journal import Journal
from bcls.training.objective import all_negatives, hold_in_range
from bcls.training.optimizer import set_rate
from bcls.training.plan import sizes_of_ranks
from bcls.training.ranks import agree, average_gradients
from bcls.training.run_folder import BEST, CHECKPOINTS, EPOCH, LAST
from bcls.training.schedule import rate_at
from bcls.training.setup import Run
from bcls.training.tell import Clock, tell, tell_epoch
from bcls.training.validate import validate
from bcls.training.watch import StepValues, Watch, diverged


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
    step: Callable[[list[Batch]], dict[str, Tensor]]
    warm_step: Callable[[list[Batch]], dict[str, Tensor]]


def run_epochs(run: Run, folder: Path, state: dict[str, Any] | None) -> Progress:
    """Train until the last epoch, or until the figures stop rising.

    Args:
        run: Everything that the run works with.
        folder: The run's folder.
        state: What the last checkpoint says, to go on from there; ``None`` to begin.

    Returns:
        Where the run ended.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM came; a checkpoint was written.
        ValueError: NaN or infinity, or no memory left; the last good checkpoint is kept.
    """
    config, main = run.config, run.accelerator.is_main_process
    at = Progress() if state is None else restore(folder / CHECKPOINTS / LAST, run.learner, state)
    pending = [StepValues(*row) for row in at.pending]
    watch = Watch(check_norm=config.precision != "fp16", pending=pending, flat=at.flat)
    run.accelerator.wait_for_everyone()  # nobody may still read the checkpoint when the first one is written
    with ExitStack() as stack:
        interrupt = stack.enter_context(listening())
        journal = Journal(folder, at.metrics_bytes, at.done) if main else None
        if journal is not None:
            stack.callback(journal.close)
        caption_ids = [caption.caption_id for caption in run.train.captions]
        step, warm_step = stepper(run, run.learner.loss), stepper(run, all_negatives(config.loss))
        here = _Here(run, folder, at, watch, journal, interrupt, Clock(at.seconds), caption_ids, step, warm_step)
        while not at.finished:
            _train_epoch(here)
            _end_epoch(here)
    return at


def _train_epoch(here: _Here) -> None:
    run, at, config = here.run, here.at, here.run.config
    plan = run.plan(at.epoch)
    batches = run.feed.batches([batch for step in plan[at.step :] for batch in step], at.epoch)
    step = here.warm_step if at.epoch < config.warm_negatives else here.step
    run.parallel.train()
    showing = progress(f"epoch {at.epoch + 1} of {config.epochs}", len(plan)) if here.journal else nullcontext()
    with showing as show:
        while at.step < len(plan):
            seed_step(config.seed, at.epoch, at.step, run.accelerator.process_index)
            set_rate(run.learner.optimizer, rate_at(at.epoch, at.step, len(plan), config))
            captions = plan[at.step]
            parts = [labelled(next(batches), run.labels, run.train.image_of_caption) for _ in captions]
            try:
                values = step(parts)
            except FloatingPointError as error:
                diverged(at.done + 1, str(error), float("nan"), np.concatenate(captions), here.caption_ids)
            at.step, at.done = at.step + 1, at.done + 1
            here.watch.note(at.done, values, np.concatenate(captions))
            _after_step(here, show, ends=at.step == len(plan))


def stepper(run: Run, loss: torch.nn.Module) -> Callable[[list[Batch]], dict[str, Tensor]]:
    """What takes a step with a loss: the ordinary one, or recordings of it where ``graph`` asks for them."""
    if not run.config.graph:
        return partial(step_once, run, loss)
    recorded = RecordedStep(lambda batch: step_once(run, loss, [batch]), run.learner.optimizer)
    return lambda parts: recorded(replace(parts[0], texts=widened(parts[0].texts)))


def step_once(run: Run, loss: torch.nn.Module, parts: list[Batch]) -> dict[str, Tensor]:
    """One step of the optimiser, over one batch or several whose gradients are added up.

    Returns:
        The terms of the loss, the spread of the scores and the norm of the gradient, on the device.

    Raises:
        FloatingPointError: The scores are not finite.
        ValueError: The batch does not fit into the memory.
    """
    accelerator, learner = run.accelerator, run.learner
    values: dict[str, Tensor] = {}
    try:
        for number, batch in enumerate(parts):
            waits = number + 1 < len(parts)  # gradients are exchanged once, with the last part
            with accelerator.no_sync(run.parallel) if waits else nullcontext():
                similarity = score_pairs(run, batch)
                terms = _terms(loss, similarity, batch)
                accelerator.backward(torch.stack(list(terms.values())).sum() / len(parts))
            for name, value in (*terms.items(), ("spread", similarity.float().std())):
                values[name] = values.get(name, 0) + value.detach() / len(parts)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"`batch`: expected one that fits into the memory of {accelerator.device}, got {run.config.batch} pairs; "
            "lower --batch, or use --precision bf16 or more processes"
        ) from error
    average_gradients(loss, accelerator.num_processes)
    weights = [one for group in learner.optimizer.param_groups for one in group["params"]]
    limit = float("inf") if run.config.clip is None else run.config.clip
    values["gradient"] = torch.as_tensor(accelerator.clip_grad_norm_(weights, limit))
    run.stepper.step()
    run.stepper.zero_grad()
    hold_in_range(loss)
    if learner.average is not None:
        learner.average.update(learner.model)
    return values


def score_pairs(run: Run, batch: Batch) -> Tensor:
    """Scores of all pairs of the batch of all processes, ``(B, B)`` float32.

    Scores of vectors are computed in float32 also in mixed precision: bf16 has three digits, and they would tie.
    """
    sizes = sizes_of_ranks(batch.pairs, run.accelerator.num_processes)
    with run.accelerator.autocast():
        images, texts = run.parallel(batch.images, batch.texts)
    images, texts = gather_codes(images, sizes), gather_codes(texts, sizes)
    if images.values.ndim == texts.values.ndim == 2:
        return run.model.scores(Padded(images.values.float()), Padded(texts.values.float()))
    with run.accelerator.autocast():
        scores = run.model.scores(images, texts)
    return scores.float()


def _terms(loss: torch.nn.Module, similarity: Tensor, batch: Batch) -> dict[str, Tensor]:
    try:
        if isinstance(loss, RetrievalLoss):
            return loss.terms(similarity, batch.relevance, image_ids=batch.image_ids)
        return {"loss": loss(similarity, batch.relevance, image_ids=batch.image_ids)}
    except ValueError as error:  # losses look at their input, too
        if not similarity.isfinite().all():
            raise FloatingPointError("similarity") from error
        raise


def _after_step(here: _Here, show: Step | None, *, ends: bool) -> None:
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
        tell_epoch(at.epoch, config.epochs, figures, here.clock.seconds(), better=better)
    kept = [BEST] * better + [EPOCH.format(at.epoch)] * config.keep_epochs
    for name in kept if here.journal is not None else []:
        replace_folder(here.folder / CHECKPOINTS / name, lambda new: _write_judged(run, new))
    _save(here)


def _judge(run: Run) -> dict[str, float]:
    if run.validation is None:
        return {}
    average = run.learner.average
    with average.in_place(run.model) if average else nullcontext(), run.accelerator.autocast():
        return validate(run.model, run.validation)


def _write_judged(run: Run, folder: Path) -> None:
    """Write the model as the validation saw it."""
    average = run.learner.average
    with average.in_place(run.model) if average else nullcontext():
        write_model(run.model, folder)


def _save(here: _Here) -> None:
    """Write ``checkpoints/last``; what metrics.jsonl has by now belongs to it."""
    run, at = here.run, here.at
    if here.journal is None:
        return
    at.metrics_bytes, at.seconds, at.flat = here.journal.settle(), here.clock.seconds(), here.watch.flat
    at.pending = [(step, values) for step, values in here.watch.pending]
    settings, data = run.config.as_dict(), run.fingerprint
    last = here.folder / CHECKPOINTS / LAST
    replace_folder(last, lambda new: write_checkpoint(new, run.learner, at, settings, data))


def seed_step(*position: int) -> None:
    """Seed torch from a position: seed, epoch, step, process."""
    state = np.random.SeedSequence(position).generate_state(1, np.uint64)
    torch.manual_seed(int(state[0]) >> 1)
