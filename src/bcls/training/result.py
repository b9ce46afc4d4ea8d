"""What a training run gives back."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes:
        folder: The run's folder; ``bcls.models.load(folder)`` is its best model.
        epochs: Epochs trained.
        best: Figures of the best epoch on the validation split; empty without one.
        best_epoch: Which it was, from 1; 0 without a validation split.
        history: Figures of every epoch.
        seconds: Time spent, over all parts of the run.
    """

    folder: Path
    epochs: int
    best: dict[str, float]
    best_epoch: int
    history: list[dict[str, float]]
    seconds: float
