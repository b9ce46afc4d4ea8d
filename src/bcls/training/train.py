"""The training loop, from top to bottom.

One process::

    bcls train --config configs/smoke/tiny.yaml --data DIR --out RUN

Several GPUs, or several nodes with that many each::

    torchrun --nproc_per_node 4 -m bcls train --config ... --data DIR --out RUN
    accelerate launch --num_processes 4 -m bcls train --config ... --data DIR --out RUN
    torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint HOST:29500 -m bcls train ...

To continue a run that was stopped or killed, add ``--resume`` to the same command.

``batch`` counts the pairs of all processes together, and the loss sees them all (:mod:`bcls.training.distributed`). A
step is one optimizer step. Order, crops and dropout are drawn from the seed and the step's position, never from what
happened before, so a resumed run has the same weights as one that was never interrupted.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import MISSING, fields, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcls._core.config import read_yaml
from bcls._core.errors import fail, quoted
from bcls._core.files import recover, replace_folder
from bcls._core.locks import lock_folder
from bcls._core.progress import progress
from bcls.data.dataset import Dataset
from bcls.losses import check_now
from bcls.models.base import RetrievalModel
from bcls.training import checkpoint, run_folder
from bcls.training.batch_labels import LabelSource
from bcls.training.config import Result, TrainConfig, check_config, differences, write_yaml
from bcls.training.cuda_graph import GraphedStep
from bcls.training.distributed import any_process, average_gradients, start_accelerator
from bcls.training.gradients import accumulate_gradients
from bcls.training.loader import Batch
from bcls.training.metrics_log import MetricsLog, StepMonitor, diverged, log_epoch, log_line, read_metrics, write_report
from bcls.training.optimization import all_negatives, clamp_learned, rate_at, reset_state, set_rate
from bcls.training.sampler import Indices
from bcls.training.setup import TrainState, data_identity, set_up, validate


def train(
    config: TrainConfig,
    *,
    model: RetrievalModel | None = None,
    dataset: Dataset | None = None,
    labels: LabelSource | None = None,
    report: bool = True,
    show_progress: bool = True,
    save_seconds: float = 0.0,
    stop: Event | None = None,
) -> Result:
    """Train a model, or resume a run; does what ``bcls train`` does.

    Args:
        config: Settings. ``config.out`` is the run's folder, new or empty unless ``config.resume``.
        model: A model in place of ``config.model``; its weights are trained in place.
        dataset: An open dataset in place of ``config.data``.
        labels: Makes the labels of training batches, in place of embeddings of ``config.labels``.
        report: Write ``report.html`` at the end.
        show_progress: Show progress and the validation table on standard error.
        save_seconds: At the end of an epoch write checkpoints only if the last ones are this old, and after the last
            epoch; with 0 after every epoch. For many short runs, where writing takes as long as training.
        stop: Set it to stop the run after the current step; Ctrl-C and SIGTERM set it, too.

    Returns:
        Metrics, and the folder with everything else.

    Raises:
        ValueError: Settings, data, model or checkpoint are wrong or do not match; or training diverged.
        KeyboardInterrupt: The run was interrupted; it wrote a checkpoint and can be resumed.
    """
    # ------------------------------------------------------------------------------------------------- Set-up
    config = check_config(config)
    if not config.out:
        fail("out", "a folder for the run", "none", "give it with --out DIR")
    folder = Path(config.out)
    checkpoints = folder / run_folder.CHECKPOINTS
    last = checkpoints / run_folder.LAST
    run_folder.check_folder(folder, resume=config.resume)
    stop = Event() if stop is None else stop
    main = start_accelerator(config).is_main_process
    shown = main and show_progress
    with ExitStack() as stack:
        if main:
            stack.enter_context(lock_folder(folder, "a run that no other process trains", "wait for it, or stop it"))
        epochs = check_resumed_settings(folder, config) if config.resume else None
        state = set_up(config, model, dataset, labels=labels, show_progress=show_progress)
        stack.callback(state.close)
        config, accelerator, learner = state.config, state.accelerator, state.learner
        if main:
            checkpoints.mkdir(exist_ok=True)
            recover(last)
            recover(checkpoints / run_folder.BEST)
        accelerator.wait_for_everyone()

        # ---------------------------------------------------------------------------------------------- Resume
        at = resume_position(folder, state, epochs) if config.resume else checkpoint.Progress()
        accelerator.wait_for_everyone()  # every process has read the checkpoint before the first one is written
        if main:
            write_yaml(folder / run_folder.CONFIG, replace(config, resume=False))
            run_folder.add_environment(folder, accelerator.num_processes)
            (folder / run_folder.REPORT).unlink(missing_ok=True)  # it would show an earlier state
            if state.unused_captions():
                log_line(f"note: {state.unused_captions()} captions fit into no batch and are not used")
        metrics_log = None
        if main:
            metrics_log = MetricsLog(folder, at.metrics_bytes, at.done)
            stack.callback(metrics_log.close)
        ids = [caption.caption_id for caption in state.train.captions]
        monitor = StepMonitor(ids, check_gradient=config.precision != "fp16", pending=at.pending, flat=at.flat)
        started = time.monotonic() - at.seconds
        identity = data_identity(state.train)
        best_weights: dict[str, Tensor] = {}  # of the best epoch, if it is not written yet
        last_saved = time.monotonic()

        def save() -> None:
            """Write ``checkpoints/last``, together with the length that metrics.jsonl has now."""
            nonlocal last_saved
            if metrics_log is None:
                return
            check_now()  # a wrong input that a loss has found must not get into a checkpoint
            if best_weights:
                with checkpoint.swapped_weights(state.model, best_weights):
                    replace_folder(checkpoints / run_folder.BEST, lambda new: checkpoint.write_model(state.model, new))
                best_weights.clear()
            at.metrics_bytes, at.seconds = metrics_log.sync(), time.monotonic() - started
            at.pending, at.flat = list(monitor.pending), monitor.flat
            replace_folder(last, lambda new: checkpoint.write_checkpoint(new, learner, at, config.as_dict(), identity))
            last_saved = time.monotonic()

        def save_evaluated(name: str) -> None:
            """Write the model with the weights that the validation used."""
            with learner.evaluated_weights() as evaluated:
                replace_folder(checkpoints / name, lambda new: checkpoint.write_model(evaluated, new))

        # ---------------------------------------------------------------------------------------------- Train
        step = make_step(state, learner.loss if state.streaming is None else state.streaming)
        warm_step = make_step(state, all_negatives(config.loss))
        stack.enter_context(run_folder.catch_signals(stop))
        while not at.finished:
            epoch, plan = at.epoch, state.plan(at.epoch)
            title = f"epoch {epoch + 1} of {config.epochs}"
            state.parallel.train()
            if 0 < config.warm_negatives == epoch and at.step == 0:
                reset_state(learner.optimizer)
            with progress(title, len(plan), show=shown) as show_step:
                for captions, batches in zip(plan[at.step :], load_batches(state, plan[at.step :], epoch), strict=True):
                    seed_step(config.seed, epoch, at.step, accelerator.process_index)
                    set_rate(learner.optimizer, rate_at(epoch, at.step, len(plan), config))
                    indices = np.concatenate(captions)
                    try:
                        values = (warm_step if epoch < config.warm_negatives else step)(batches)
                    except FloatingPointError as error:
                        diverged(at.done + 1, str(error), float("nan"), indices, monitor.caption_ids)
                    at.step, at.done = at.step + 1, at.done + 1
                    monitor.add(at.done, values, indices)

                    # Log, save, stop
                    ends = at.step == len(plan)
                    logs = at.step % config.log_every == 0 or ends
                    saves = at.done % config.save_every == 0 and not ends
                    stops = any_process(stop.is_set(), accelerator.device, communicate=logs)
                    if logs or saves or stops or accelerator.device.type == "cpu":
                        monitor.read()
                    if logs:
                        means = monitor.take_means()
                        if metrics_log is not None:
                            lr = float(learner.optimizer.param_groups[0]["lr"])
                            row = {**means, "lr": lr, "seconds": time.monotonic() - started}
                            metrics_log.write("step", epoch + 1, at.done, row)
                        show_step(at.step, " ".join(f"{name} {value:.4g}" for name, value in means.items()))
                        warning = monitor.collapse_warning() if shown else None
                        if warning:
                            log_line(f"warning: {warning}")
                    if saves or stops:
                        save()
                    if stops:
                        raise KeyboardInterrupt

            # ------------------------------------------------------------------------------------------ Validate
            metrics: dict[str, float] = {}
            if main and state.validation is not None:
                with learner.evaluated_weights() as evaluated, accelerator.autocast():
                    metrics = validate(evaluated, state.validation, learner.loss)
            better = bool(metrics) and (at.best is None or metrics[config.best] > at.best)
            better = any_process(better, accelerator.device)  # only the main process has metrics
            at.epoch, at.step = epoch + 1, 0
            at.stale = 0 if better else at.stale + 1
            if better:
                at.best, at.best_epoch = metrics.get(config.best), at.epoch
            at.finished = is_finished(at, config)
            if metrics_log is not None:
                if metrics:
                    metrics_log.write("validation", at.epoch, at.done, {**metrics, "best": better})
                    if shown:
                        log_epoch(at.epoch, config.epochs, metrics, time.monotonic() - started, better=better)
                if better and save_seconds:
                    with learner.evaluated_weights() as evaluated:
                        best_weights.update(checkpoint.copy_weights(evaluated))
                elif better:
                    save_evaluated(run_folder.BEST)
                if config.keep_epochs:
                    save_evaluated(run_folder.EPOCH.format(at.epoch))
            if at.finished or time.monotonic() - last_saved >= save_seconds:
                save()

        # ---------------------------------------------------------------------------------------------- Result
        if main and report:
            write_report(folder)
        accelerator.wait_for_everyone()
    lines = [line for line in read_metrics(folder) if line["kind"] == "validation"]
    history = [{key: value for key, value in line.items() if isinstance(value, float)} for line in lines]
    best = history[at.best_epoch - 1] if at.best_epoch else {}
    return Result(folder, at.epoch, best, at.best_epoch, history, at.seconds)


def resume_position(folder: Path, state: TrainState, epochs: int | None) -> checkpoint.Progress:
    """Restore the last checkpoint of a run, after a check that the data is that of the run.

    A run whose number of epochs was ``epochs`` before is extended: it follows the schedule of the new number.

    Raises:
        ValueError: The data differs, or the checkpoint is damaged.
    """
    config, last = state.config, folder / run_folder.CHECKPOINTS / run_folder.LAST
    if not last.exists():
        return checkpoint.Progress()
    saved = checkpoint.read_state(last)
    now, then = data_identity(state.train), saved["data"]
    names = {"images": "number of images", "captions": "number of captions", "sha256": "hash of the captions"}
    for key, what in names.items():
        if now[key] != then.get(key):
            fail("data", f"the {what} of the run, {then.get(key)}", now[key], "use the dataset of the run")
    at = checkpoint.restore(last, state.learner, saved)
    begun = at.epoch + (at.step > 0)
    if begun > config.epochs:
        fail("epochs", f"at least the {begun} epochs that the run has begun", config.epochs, "use more epochs")
    at.finished = is_finished(at, config)
    if at.finished and at.epoch < config.epochs:
        log_line(f"note: --patience {config.patience} stopped the run after epoch {at.epoch}, and it stays stopped")
    elif config.epochs != epochs:
        lr = config.lr * rate_at(at.epoch, at.step, len(state.plan(at.epoch)), config)
        log_line(
            f"resuming after epoch {at.epoch}: {config.epochs} epochs in place of {epochs}; the learning rate follows "
            f"the {config.schedule} schedule of {config.epochs} epochs and continues at {lr:.3g}"
        )
    return at


def check_resumed_settings(folder: Path, config: TrainConfig) -> int | None:
    """Check that the settings are those of the run, ``epochs`` aside; return the number of epochs of the run.

    Raises:
        ValueError: Settings differ, or ``config.yaml`` is damaged.
    """
    path = folder / run_folder.CONFIG
    before = read_yaml(path)
    if not isinstance(before, dict):
        fail(str(path), "the settings of a run", repr(before), "put the file back, or start a new run")
    # A setting that was added after the run began has its default.
    added = {one.name: one.default for one in fields(config) if one.default is not MISSING}
    changed = differences({**added, **before, "epochs": config.epochs}, config.as_dict())
    if changed:
        hint = f"set them back, such as with --config {quoted(path)}, or start a new run"
        fail("resume", "the settings of the run", "; ".join(changed), hint)
    return before.get("epochs")


def is_finished(at: checkpoint.Progress, config: TrainConfig) -> bool:
    """Whether all epochs are done, or the metric has not improved for ``patience`` epochs."""
    return at.epoch == config.epochs or (config.patience is not None and at.stale >= config.patience)


#: The batches of one step: of kind :class:`Batch`, or one :class:`IndexBatch` for a recorded step.
StepBatches = Sequence[Any]


def load_batches(state: TrainState, plan: Sequence[Sequence[Indices]], epoch: int) -> Iterator[StepBatches]:
    """The batches of each step of a plan."""
    flat = [batch for step in plan for batch in step]
    if state.records:
        yield from ([batch] for batch in state.loader.index_batches(flat, epoch))
        return
    batches = state.loader.batches(flat, epoch)
    for step in plan:
        yield [next(batches) for _ in step]


def make_step(state: TrainState, loss: torch.nn.Module) -> Callable[[StepBatches], dict[str, Tensor]]:
    """A function that takes a step with a loss, recorded as CUDA graphs if ``graph`` is set."""
    if not state.records:
        return lambda batches: train_step(state, loss, batches)
    graphed = GraphedStep(lambda one: train_step(state, loss, [state.loader.load(one)]), state.learner.optimizer)
    return lambda batches: graphed(batches[0])


def train_step(state: TrainState, loss: torch.nn.Module, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Take one optimizer step on one batch, or on several whose gradients are averaged.

    Returns:
        The terms of the loss, the standard deviation of the scores (``spread``) and the norm of the gradient, on the
        device.

    Raises:
        FloatingPointError: The scores are not finite.
        ValueError: The batch does not fit into memory.
    """
    accelerator, learner = state.accelerator, state.learner
    values = accumulate_gradients(state, loss, batches)
    average_gradients(loss, accelerator.num_processes)
    weights = [one for group in learner.optimizer.param_groups for one in group["params"]]
    limit = float("inf") if state.config.clip is None else state.config.clip
    values["gradient"] = torch.as_tensor(accelerator.clip_grad_norm_(weights, limit))
    state.optimizer.step()
    state.optimizer.zero_grad()
    clamp_learned(loss)
    if learner.average is not None:
        learner.average.update(learner.model)
    return values


def seed_step(*position: int) -> None:
    """Seed torch from a position: seed, epoch, step, process.

    Like ``torch.manual_seed``, which queries more devices and takes longer than a small model's step.
    """
    seed = int(np.random.SeedSequence(position).generate_state(1, np.uint64)[0]) >> 1
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
