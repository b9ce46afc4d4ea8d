"""What a run would take, before it is started."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bcls.models.base import RetrievalModel
from bcls.training.config import TrainConfig
from bcls.training.loader import labelled
from bcls.training.setup import Run, set_up, unvisited
from bcls.training.step import score_pairs

#: Batches that the memory of a step is measured at; a step grows with the square of the batch at most.
_PROBES = (4, 8, 16)


@dataclass(frozen=True)
class Estimate:
    """Sizes of a run.

    Attributes:
        images: Training images.
        captions: Training captions.
        left_out: Captions that fit into no batch.
        steps_each: Steps in the first epoch.
        steps: Steps in all.
        trained: Parameters that are trained.
        parameters: All parameters of the model.
        state_bytes: Weights, gradients, moments of the optimiser and moving average, in bytes.
        step_bytes: What a step keeps for its backward pass, in bytes; measured on small batches and scaled up.
        device: Where the run would take place.
    """

    images: int
    captions: int
    left_out: int
    steps_each: int
    steps: int
    trained: int
    parameters: int
    state_bytes: int
    step_bytes: int
    device: str

    def as_text(self) -> str:
        """For people."""
        total = self.state_bytes + self.step_bytes
        rows = [
            ("training data", f"{self.images:,} images, {self.captions:,} captions, {self.left_out:,} left out"),
            ("steps", f"{self.steps_each:,} in an epoch, {self.steps:,} in all"),
            ("parameters", f"{self.trained:,} trained of {self.parameters:,}"),
            ("weights, gradients, moments", _size(self.state_bytes)),
            ("kept by a step, estimated", _size(self.step_bytes)),
            (f"memory on {self.device}, estimated", f"{_size(total)}, beside features and labels"),
        ]
        return "\n".join(f"{name:<30} {value}" for name, value in rows)


def estimate(config: TrainConfig) -> Estimate:
    """Set a run up without starting it, and measure small batches of it.

    Frozen encoders look at a few pictures and captions only, and labels are not made: it takes seconds.

    Raises:
        ValueError: What is wrong with the settings, or with the data as far as it was looked at.
    """
    run = set_up(config, rehearsal=True)
    try:
        steps = len(run.plan(0))
        trained = sum(one.numel() for group in run.learner.optimizer.param_groups for one in group["params"])
        return Estimate(
            images=len(run.train.images),
            captions=len(run.train.captions),
            left_out=unvisited(run),
            steps_each=steps,
            steps=steps * config.epochs,
            trained=trained,
            parameters=sum(one.numel() for one in run.model.parameters()),
            state_bytes=_state_bytes(run.model, trained, averaged=config.ema > 0),
            step_bytes=_step_bytes(run),
            device=str(run.accelerator.device),
        )
    finally:
        run.pool.shutdown()


def _state_bytes(model: RetrievalModel, trained: int, *, averaged: bool) -> int:
    weights = sum(one.numel() * one.element_size() for one in model.parameters())
    return weights + trained * 4 * (3 + averaged)


def _step_bytes(run: Run) -> int:
    """Bytes that autograd keeps at the run's batch, by a parabola through those at small batches."""
    owner = run.feed.image_of_caption
    captions = np.arange(len(owner))
    sizes = [size for size in _PROBES if size <= len(captions)] or [len(captions)]
    kept = []
    for size in sizes:
        pairs = next(iter(run.feed.batches([captions[:size]], epoch=0)))
        with _counting() as count:
            score_pairs(run, labelled(pairs, None, owner))
        kept.append(float(count[0]))
    # The loss adds a handful of matrices of the batch squared.
    curve = np.polynomial.Polynomial.fit(sizes, kept, min(2, len(sizes) - 1))
    return int(max(0.0, curve(run.config.batch))) + 40 * run.config.batch**2


@contextmanager
def _counting() -> Iterator[list[int]]:
    count = [0]
    seen: set[int] = set()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            count[0] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield count


def _size(count: int) -> str:
    """Bytes for people.

    Example:
        >>> _size(2_500_000), _size(3_200_000_000)
        ('2.5 MB', '3.2 GB')
    """
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
