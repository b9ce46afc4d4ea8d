"""What a person at the terminal is told, on standard error.

What happens during training: values of each step, read seldom, and looked at when they are read.

On a GPU reading a value waits for all work before it. So each step leaves its values on the device, and they are read
together every ``log_every`` steps and before each checkpoint: NaN is found a few steps late, but no checkpoint ever
holds it. On a CPU values are read at every step.
"""

import math
import os
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from bcls.training.sampler import Numbers

_COLUMNS = (
    ("i2t R@1", "i2t_r1"),
    ("i2t R@10", "i2t_r10"),
    ("t2i R@1", "t2i_r1"),
    ("t2i R@10", "t2i_r10"),
    ("rsum", "rsum"),
    ("tau", "tau"),
)


def tell(line: str) -> None:
    """Print a line on standard error; of several processes the first one does."""
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr, flush=True)


def tell_epoch(epoch: int, epochs: int, figures: dict[str, float], seconds: float, *, better: bool) -> None:
    """Print a row of the validation table; its head goes before the first row and after every tenth."""
    columns = [(head, key) for head, key in _COLUMNS if key in figures]
    if epoch % 10 == 1:
        tell("validation  " + "  ".join(f"{head:>8}" for head, _ in columns) + "  time left")
    cells = "  ".join(f"{figures[key]:8.4f}" if key == "tau" else f"{figures[key]:8.2f}" for _, key in columns)
    left = duration(seconds / epoch * (epochs - epoch))
    tell(f"epoch {epoch:<4}  {cells}  {left:>9}{'  best' if better else ''}")


def duration(seconds: float) -> str:
    """Seconds for people.

    Example:
        >>> duration(42.2), duration(200), duration(7500)
        ('42 s', '3 min', '2 h 05 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


class Clock:
    """Seconds spent, those of the parts of a run before this one included."""

    def __init__(self, before: float) -> None:
        self._before, self._started = before, time.monotonic()

    def seconds(self) -> float:
        """Seconds up to now."""
        return self._before + time.monotonic() - self._started


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
