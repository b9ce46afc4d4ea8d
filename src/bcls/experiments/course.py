"""The course of a run, epoch by epoch, from its ``metrics.jsonl``."""

from pathlib import Path
from statistics import fmean
from typing import Any

from bcls.training.journal import read_metrics

#: Figures of each epoch's validation that a search may choose by.
MEASURES = ("rsum", "tau")
#: What is told of each epoch's validation, and as what.
_COURSE = {"loss": "validation_loss", "rsum": "rsum", "tau": "tau"}


def best_look(folder: Path) -> dict[str, float]:
    """Figures of the best epoch on the validation split, as training computed them."""
    looks = [line for line in read_metrics(folder) if line["kind"] == "validation" and line["best"]]
    return {key: value for key, value in looks[-1].items() if isinstance(value, float)} if looks else {}


def course(folder: Path) -> dict[str, Any]:
    """Training loss and validation figures of every epoch.

    Args:
        folder: The run's folder.

    Returns:
        ``history``, a mapping for each epoch with ``loss``, ``validation_loss``, ``rsum`` and ``tau`` where they are
        known; ``best_epoch``; ``epochs``; and ``seconds`` of training.
    """
    lines = read_metrics(folder)
    steps = [line for line in lines if line["kind"] == "step"]
    looks: dict[int, dict[str, Any]] = {line["epoch"]: line for line in lines if line["kind"] == "validation"}
    history = []
    for epoch in sorted({line["epoch"] for line in steps}):
        values = [line["loss"] for line in steps if line["epoch"] == epoch]
        look = looks.get(epoch, {})
        figures = {name: look[key] for key, name in _COURSE.items() if key in look}
        history.append({"epoch": epoch, "loss": fmean(values), **figures})
    return {
        "history": history,
        "best_epoch": max((epoch for epoch, look in looks.items() if look["best"]), default=len(history)),
        "epochs": len(history),
        "seconds": steps[-1]["seconds"] if steps else 0.0,
    }
