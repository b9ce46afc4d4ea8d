"""The moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bcls.models.base import RetrievalModel


class MovingAverage:
    r"""Exponential moving average of a model's state, :math:`a \leftarrow d\,a + (1 - d)\,w` after each step.

    Whole numbers (counters of batch norm) are copied. The average starts at the weights themselves.

    Args:
        model: The model.
        decay: :math:`d`.
    """

    def __init__(self, model: RetrievalModel, decay: float) -> None:
        self.decay = decay
        self.state = copy_of(model)

    @torch.no_grad()
    def update(self, model: RetrievalModel) -> None:
        """Take in the weights after a step."""
        now = model.trained_state()
        names = [name for name, value in self.state.items() if value.is_floating_point()]
        torch._foreach_lerp_(
            [self.state[name] for name in names], [now[name].detach() for name in names], 1 - self.decay
        )
        for name in self.state.keys() - set(names):
            self.state[name].copy_(now[name])

    @contextmanager
    def in_place(self, model: RetrievalModel) -> Iterator[None]:
        """The model with the average as its weights; its own come back afterwards, whatever happens."""
        own = copy_of(model)
        model.load_trained_state(self.state)
        try:
            yield
        finally:
            model.load_trained_state(own)


def decay_for(decay: float, steps: int) -> float:
    """The decay of a run: at most 1 - 3 / steps, which leaves 5 % of the first weights in the average at the end.

    Example:
        >>> decay_for(0.999, 10_000), decay_for(0.999, 300)
        (0.999, 0.99)
    """
    return min(decay, 1 - 3 / max(steps, 3))


def copy_of(model: RetrievalModel) -> dict[str, Tensor]:
    """The weights, copied."""
    return {name: value.detach().clone() for name, value in model.trained_state().items()}
