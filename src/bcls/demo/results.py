"""What the demo measured."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

#: The losses of the demo, by the names of :func:`bcls.losses.from_name`, with how people write them.
LOSSES = {"triplet-hn": "Triplet-HN", "triplet-sn": "Triplet-SN", "bcls": "BCLS"}

#: Figures on the test split: key, heading, digits.
FIGURES = (
    ("i2t_r1", "R@1 i→t", 1),
    ("i2t_r5", "R@5 i→t", 1),
    ("i2t_r10", "R@10 i→t", 1),
    ("t2i_r1", "R@1 t→i", 1),
    ("t2i_r5", "R@5 t→i", 1),
    ("t2i_r10", "R@10 t→i", 1),
    ("rsum", "RSUM", 1),
    ("tau_pseudo", "τ pseudo", 3),
    ("tau_true", "τ true", 3),
)


@dataclass(frozen=True)
class Run:
    """One training run under one loss from one seed."""

    loss: str
    """Name of the loss."""
    seed: int
    """Seed of weights and batches; the same data for all."""
    epochs: list[int]
    """Epochs after which the validation split was looked at."""
    train_loss: list[float]
    """Mean training loss of each of these epochs."""
    val_rsum: list[float]
    """RSUM on the validation split after each of these epochs."""
    val_tau_true: list[float]
    """Kendall's tau against the true relevance on the validation split, mean of both directions."""
    test: dict[str, float]
    """Figures on the test split after the last epoch, see :data:`FIGURES`."""
    seconds: float
    """How long the run took."""
    similarity: npt.NDArray[np.float32] = field(repr=False, compare=False)
    """(N, C) scores of the test split, for the gallery; not written to ``results.json``."""

    def as_json(self) -> dict[str, Any]:
        """All but the scores."""
        return {key: value for key, value in vars(self).items() if key != "similarity"}


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Spread of one or more values; one value has no deviation.

        Example:
            >>> Spread.of([1.0, 3.0])
            Spread(mean=2.0, deviation=1.4142135623730951)
        """
        numbers = list(values)
        return cls(fmean(numbers), stdev(numbers) if len(numbers) > 1 else 0.0)


def summary(runs: Iterable[Run]) -> dict[str, dict[str, Spread]]:
    """Spread of every test figure for every loss that has a run, in the order of :data:`LOSSES`."""
    runs = list(runs)
    return {
        loss: {key: Spread.of(run.test[key] for run in runs if run.loss == loss) for key, _, _ in FIGURES}
        for loss in LOSSES
        if any(run.loss == loss for run in runs)
    }
