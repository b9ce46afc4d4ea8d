"""Which curves tell the course of a run."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Lines = Sequence[Mapping[str, Any]]
#: Of the steps' values, not terms of the loss.
_ASIDE = {"kind", "epoch", "step", "loss", "lr", "seconds", "gradient", "spread"}


class Curve(NamedTuple):
    """One plot: some keys of lines of ``metrics.jsonl``, over their axis."""

    title: str
    axis: str
    lines: Lines
    keys: list[str]


def curves_of(steps: Lines, looks: Lines) -> list[Curve]:
    """The plots of a run, those that it has values for.

    Args:
        steps: Lines of the kind ``step``.
        looks: Lines of the kind ``validation``.

    Example:
        >>> [curve.title for curve in curves_of([{"step": 1, "loss": 0.5, "lr": 0.1}], [])]
        ['Loss', 'Learning rate']
    """
    terms = list(dict.fromkeys(key for line in steps for key in line if key not in _ASIDE))
    wanted = [
        Curve("Loss", "step", steps, ["loss", *(terms if len(terms) > 1 else [])]),
        Curve("Learning rate", "step", steps, ["lr"]),
        Curve("Norm of the gradient", "step", steps, ["gradient"]),
        Curve("Validation loss", "epoch", looks, ["loss"]),
        Curve("Validation RSUM", "epoch", looks, ["rsum"]),
        Curve("Validation tau", "epoch", looks, ["i2t_tau_a", "t2i_tau_a"]),
    ]
    present = [one._replace(keys=[key for key in one.keys if any(key in line for line in one.lines)]) for one in wanted]
    return [one for one in present if one.keys]
