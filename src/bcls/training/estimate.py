"""Sizes of a run before it is started: steps, parameters and memory, for ``bcls train --dry-run``."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcls.training.config import TrainConfig, check_config
from bcls.training.gradients import encode, gather, score_pairs
from bcls.training.loader import Batch
from bcls.training.setup import TrainState, set_up

#: Batch sizes at which the memory of a step is measured; it grows with the square of the batch at most.
_PROBES = (4, 8, 16)

#: Bytes of the streaming loss for each pair, as measured on a GPU with 65,536 pairs and vectors of width 512.
_STREAMING_BYTES = 21_000


def estimate(config: TrainConfig) -> dict[str, Any]:
    """Set a run up without starting it, and measure small batches of it.

    Frozen encoders encode a few images and captions only, and no labels are made, so it takes seconds.

    Returns:
        Numbers of training ``images`` and ``captions``; ``left_out``, captions that fit into no batch; ``steps_each``,
        steps in the first epoch, and ``steps`` in all; parameters ``trained`` and all ``parameters``; ``state_bytes``
        of weights, gradients, optimizer state and moving average; ``step_bytes`` that a step keeps for its backward
        pass, extrapolated from small batches; and the ``device``.

    Raises:
        ValueError: The settings are wrong, or they do not match the data.
    """
    state = set_up(check_config(config), dry_run=True)
    try:
        steps = len(state.plan(0))
        trained = sum(one.numel() for group in state.learner.optimizer.param_groups for one in group["params"])
        parameters = list(state.model.parameters())
        weights = sum(one.numel() * one.element_size() for one in parameters)
        return {
            "images": len(state.train.images),
            "captions": len(state.train.captions),
            "left_out": state.unused_captions(),
            "steps_each": steps,
            "steps": steps * config.epochs,
            "trained": trained,
            "parameters": sum(one.numel() for one in parameters),
            "state_bytes": weights + trained * 4 * (3 + (config.ema > 0)),  # gradient, two moments, moving average
            "step_bytes": _step_bytes(state),
            "device": str(state.accelerator.device),
        }
    finally:
        state.close()


def as_text(sizes: Mapping[str, Any]) -> str:
    """The sizes of a run as a table for the terminal."""
    total = _size(sizes["state_bytes"] + sizes["step_bytes"])
    rows = {
        "training data": "{images:,} images, {captions:,} captions, {left_out:,} left out".format(**sizes),
        "steps": "{steps_each:,} in an epoch, {steps:,} in all".format(**sizes),
        "parameters": "{trained:,} trained of {parameters:,}".format(**sizes),
        "weights, gradients, moments": _size(sizes["state_bytes"]),
        "kept by a step, estimated": _size(sizes["step_bytes"]),
        f"memory on {sizes['device']}, estimated": f"{total}, besides features and labels",
    }
    return "\n".join(f"{name:<30} {value}" for name, value in rows.items())


def _step_bytes(state: TrainState) -> int:
    """Bytes that autograd keeps at the run's batch size, by a parabola through those of small batches."""
    captions = np.arange(len(state.loader.image_of_caption))
    sizes = [size for size in _PROBES if size <= len(captions)] or [len(captions)]
    kept = [_saved_bytes(state, next(state.loader.batches([captions[:size]], epoch=0))) for size in sizes]
    curve = np.polynomial.Polynomial.fit(sizes, kept, min(2, len(sizes) - 1))
    pairs = state.config.batch
    encoded = min(state.config.micro_batch or pairs, pairs)
    # The loss adds a handful of matrices of the batch squared, or tiles of them.
    loss = _STREAMING_BYTES * pairs if state.config.streaming else 40 * pairs**2
    return int(max(0.0, curve(encoded))) + loss


def _saved_bytes(state: TrainState, batch: Batch) -> int:
    """Bytes that autograd keeps of a forward pass."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        score_pairs(state, gather(state, encode(state, batch.images, batch.texts), batch.pairs))
    return sum(sizes.values())


def _size(count: int) -> str:
    """Bytes in readable units.

    Example:
        >>> _size(2_500_000), _size(3_200_000_000)
        ('2.5 MB', '3.2 GB')
    """
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
