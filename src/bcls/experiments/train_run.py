"""Training for a sweep: the loop of ``bcls train``, without the page that it draws for each single run."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bcls._checks import fail
from bcls._files import recover
from bcls.experiments.noise import NoisyLabels
from bcls.labels import cached_embeddings
from bcls.training.checkpoint import Progress, read_state
from bcls.training.config import TrainConfig, write_yaml
from bcls.training.interrupt import Interrupt, listening
from bcls.training.loop import steps
from bcls.training.run_folder import BEST, CHECKPOINTS, CONFIG, LAST, locked
from bcls.training.setup import Run, set_up
from bcls.training.watch import DivergedError

if TYPE_CHECKING:
    from bcls.data import Dataset
    from bcls.models.base import RetrievalModel

#: Epochs of a small model take a second or less, and writing a checkpoint half of one; with a dozen runs side by side
#: each writes its own.
SAVE_SECONDS = 120.0


@dataclass(frozen=True)
class Job:
    """A run to train."""

    config: TrainConfig
    """Settings. What lies in ``config.out`` was begun with the same ones: the folder is named after them."""
    model: "RetrievalModel"
    """Trained in place."""
    noise: float = 0.0
    """Standard deviation of noise in the training labels, see :class:`NoisyLabels`."""


def train_runs(jobs: Sequence[Job], dataset: "Dataset") -> list[DivergedError | None]:
    """Train runs of a sweep, or go on with them from their last checkpoints; each gets the weights of ``bcls train``.

    Several take turns, step by step. A small model keeps a GPU busy for a fraction of the time that the host needs to
    start a step: the others' steps fill the rest, each on a stream of its own. Nothing random depends on what came
    before a step, so a run is the same alone and in company.

    Args:
        jobs: The runs.
        dataset: Images and captions.

    Returns:
        For each run ``None``, or why it diverged.

    Raises:
        ValueError: Settings, data and model do not fit together.
        KeyboardInterrupt: It was stopped; each run wrote a checkpoint.
    """
    with ExitStack() as stack:
        interrupt = Interrupt()
        courses = [_begin(job, dataset, stack, interrupt, shows=len(jobs) == 1) for job in jobs]
        stack.enter_context(listening(interrupt))  # only now: setting up may take minutes and has nothing to save
        ends = _take_turns(courses, beside=len(jobs) > 1 and torch.cuda.is_available())
    if interrupt.asked:  # during the last look at the validation split, after which no step asks
        raise KeyboardInterrupt
    del courses
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()  # what recorded steps held no other process could have
    return ends


def _begin(job: Job, dataset: "Dataset", stack: ExitStack, interrupt: Interrupt, *, shows: bool) -> Iterator[Progress]:
    folder = Path(job.config.out)
    stack.enter_context(locked(folder))
    run = set_up(job.config, job.model, dataset)
    stack.callback(run.pool.shutdown)
    stack.callback(run.accelerator.unwrap_model, run.parallel, keep_fp32_wrapper=False)
    (folder / CHECKPOINTS).mkdir(exist_ok=True)
    kept = {name: recover(folder / CHECKPOINTS / name) for name in (LAST, BEST)}
    write_yaml(folder / CONFIG, run.config)
    if job.noise:
        run = replace(run, labels=_noisy(run, job.noise))
    state = read_state(folder / CHECKPOINTS / LAST) if kept[LAST] else None
    return steps(run, folder, state, interrupt, save_seconds=SAVE_SECONDS, shows=shows)


def _take_turns(courses: Sequence[Iterator[Progress]], *, beside: bool) -> list[DivergedError | None]:
    """Take a step of each course in turn until all have ended."""
    streams: list[Any] = [torch.cuda.Stream() if beside else None for _ in courses]  # type: ignore[no-untyped-call]
    if beside:
        torch.cuda.synchronize()  # what was set up lies on the ordinary stream
    ends: list[DivergedError | None] = [None] * len(courses)
    left, stopped = set(range(len(courses))), False
    while left:
        for number in sorted(left):
            try:
                with torch.cuda.stream(streams[number]) if beside else nullcontext():
                    if next(courses[number], None) is None:
                        left.remove(number)
            except DivergedError as error:
                ends[number] = error
                left.remove(number)
            except KeyboardInterrupt:  # the others have been told, too, and write their checkpoints in turn
                stopped = True
                left.remove(number)
    if beside:
        torch.cuda.synchronize()
    if stopped:
        raise KeyboardInterrupt
    return ends


def _noisy(run: Run, noise: float) -> NoisyLabels:
    config = run.config
    if config.labels == "none":
        fail("noise", "a run with labels", "labels: none", "name a text encoder, such as minilm")
    vectors, owner = np.asarray(cached_embeddings(run.train, config.labels)), run.train.image_of_caption
    return NoisyLabels(vectors, owner, config.aggregate, run.accelerator.device, noise=noise)
