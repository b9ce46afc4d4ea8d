"""What happens during training: values of each step, read seldom, and looked at when they are read.

On a GPU reading a value waits for all work before it. So each step leaves its values on the device, and they are read
together every ``log_every`` steps and before each checkpoint: NaN is found a few steps late, but no checkpoint ever
holds it. On a CPU values are read at every step.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from bcls.training.plan import Numbers

#: Scores of a batch that differ by less than this are all the same.
_COLLAPSED = 1e-3
#: As many steps in a row say that it is no accident.
_COLLAPSED_STEPS = 50


#: Values that are no terms of the loss.
_ASIDE = {"spread", "gradient"}


class DivergedError(ValueError):
    """A term of the loss or the gradient is NaN or infinite; the message has the step, the term and the captions."""


class StepValues(NamedTuple):
    """What one step left behind."""

    step: int
    values: dict[str, float]


class Watch:
    """Collects the values of steps and looks for NaN and for collapse.

    Args:
        check_norm: Whether an infinite gradient is an error; with fp16 the scaler skips such steps and goes on.
        pending: Values read but not yet written, from a checkpoint.
        flat: Steps in a row, up to now, with all scores equal.
    """

    def __init__(self, *, check_norm: bool, pending: Sequence[StepValues] = (), flat: int = 0) -> None:
        self.check_norm = check_norm
        self.pending = list(pending)
        self.flat = flat
        self._told = False
        self._unread: list[tuple[int, list[str], Tensor, Numbers]] = []

    def note(self, step: int, values: dict[str, Tensor], captions: Numbers) -> None:
        """Take the values of a step, without waiting for them."""
        stacked = torch.stack([value.detach().float().reshape(()) for value in values.values()])
        self._unread.append((step, list(values), stacked, captions))

    def read(self, caption_ids: Sequence[str]) -> None:
        """Read what has come since the last time.

        Raises:
            DivergedError: A value is NaN or infinite.
        """
        if not self._unread:
            return
        # One wait for the device, however many steps; the number of values may change with the loss.
        row = iter(torch.cat([stacked for _, _, stacked, _ in self._unread]).tolist())
        for step, names, _, captions in self._unread:
            values = {name: next(row) for name in names}
            for name, value in values.items():
                if not math.isfinite(value) and (name != "gradient" or self.check_norm):
                    diverged(step, name, value, captions, caption_ids)
            self.flat = self.flat + 1 if values.get("spread", 1.0) < _COLLAPSED else 0
            self.pending.append(StepValues(step, values))
        self._unread.clear()

    def take_means(self) -> dict[str, float]:
        """Mean of each value over the steps read since the last time, the sum of the terms first; then forget them."""
        sums: dict[str, list[float]] = {}
        for _, values in self.pending:
            for name, value in values.items():
                sums.setdefault(name, []).append(value)
        self.pending.clear()
        means = {name: math.fsum(values) / len(values) for name, values in sums.items()}
        return {"loss": math.fsum(value for name, value in means.items() if name not in _ASIDE), **means}

    def collapse(self) -> str | None:
        """What to say where the model gives all pairs one score; once, when it has done so for long enough."""
        if self._told or self.flat < _COLLAPSED_STEPS:
            return None
        self._told = True
        return (
            f"the scores of all pairs have been equal for {self.flat} steps: the model has collapsed, and a hinge loss "
            "stays at 2 x margin an anchor. Start again with --warm_negatives 2 or more (all negatives first), a soft "
            "loss such as triplet-sn or bcls, a lower --lr, or a --warmup"
        )


def diverged(step: int, name: str, value: float, captions: Numbers, caption_ids: Sequence[str]) -> NoReturn:
    """Stop with the batch and the term at fault.

    Raises:
        DivergedError: Always.
    """
    ids = [caption_ids[caption] for caption in captions[:8]]
    more = f" and {len(captions) - 8} more" if len(captions) > 8 else ""
    raise DivergedError(
        f"`{name}`: expected a finite number at step {step}, got {value} with captions {', '.join(ids)}{more}; "
        "the last checkpoint is from before it: lower --lr, set --clip, or use --precision bf16 in place of fp16"
    )
