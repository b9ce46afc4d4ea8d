"""Settings on top of settings: presets, what a file says for all of its rows, and what one row says."""

import copy
from collections.abc import Mapping
from typing import Any

from bcls._checks import fail


def merge(settings: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Put changes on top of settings.

    A key is a setting of :class:`bcls.training.TrainConfig`, or one inside a mapping with a dot, ``loss.alpha``. A
    mapping with a ``name``, another loss or another model, takes the place of the old one: its arguments are its own.
    A mapping without one adds to what is there.

    Args:
        settings: What there is; not changed.
        change: What to change.

    Returns:
        New settings.

    Raises:
        ValueError: A dotted key leads into something that is no mapping.

    Example:
        >>> merge({"lr": 1, "loss": {"name": "bcls", "alpha": 0.2}}, {"loss.alpha": 0.1})
        {'lr': 1, 'loss': {'name': 'bcls', 'alpha': 0.1}}
        >>> merge({"loss": {"name": "bcls", "alpha": 0.2}}, {"loss": {"name": "triplet-hn"}})
        {'loss': {'name': 'triplet-hn'}}
    """
    merged: dict[str, Any] = copy.deepcopy(dict(settings))
    for key, value in change.items():
        first, _, rest = key.partition(".")
        if rest:
            inside = merged.get(first, {})
            if not isinstance(inside, Mapping):
                fail(key, f"a mapping in `{first}`", repr(inside), "write the key without a dot")
            merged[first] = merge(inside, {rest: value})
        elif isinstance(value, Mapping) and isinstance(merged.get(first), Mapping) and "name" not in value:
            merged[first] = merge(merged[first], value)
        else:
            merged[first] = copy.deepcopy(value)
    return merged


def label(values: Mapping[str, Any]) -> str:
    """Short words for a point of a grid.

    Example:
        >>> label({"loss.alpha": 0.2, "batch": 64})
        'alpha=0.2, batch=64'
    """
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())
