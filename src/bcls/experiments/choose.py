"""The setting of each row that a search found best on the validation split."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from bcls.experiments.merge import label
from bcls.experiments.plan import Planned


def choose(
    trials: Sequence[Planned], results: Mapping[str, Mapping[str, Any]], measure: str
) -> dict[str, dict[str, Any]] | None:
    """The best point of each row's space.

    A trial that diverged counts as worst. Of equal ones the first in the order of the plan is taken.

    Args:
        trials: What was planned.
        results: What came of it, by :attr:`Planned.key`.
        measure: Figure of the validation split, or of the judged images to choose on; the mean over seeds decides.

    Returns:
        Dotted keys and values by row; ``None`` while a trial is not finished.

    Raises:
        ValueError: Every trial of a row diverged, or there is no such figure.
    """
    if any(trial.key not in results for trial in trials):
        return None
    from bcls._checks import check_choice, fail

    scores: dict[str, dict[str, list[float]]] = {}
    points: dict[str, dict[str, dict[str, Any]]] = {}
    for trial in trials:
        result = results[trial.key]
        if "failed" in result:
            score = -float("inf")
        else:
            figures = result.get("trial", result["validation"])
            check_choice("search.measure", measure, figures)
            score = figures[measure]
        scores.setdefault(trial.row, {}).setdefault(label(trial.point), []).append(score)
        points.setdefault(trial.row, {}).setdefault(label(trial.point), trial.point)
    chosen = {}
    for row, tried in scores.items():
        means = {point: fmean(values) for point, values in tried.items()}
        best = max(means, key=lambda point: means[point])
        if means[best] == -float("inf"):
            fail(f"runs.{row}.space", "a setting that trains", "none: all diverged", "try lower learning rates")
        chosen[row] = points[row][best]
    return chosen
