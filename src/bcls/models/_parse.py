"""Config dataclasses from plain values, with messages that name the nearest key."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from bcls._checks import check_choice, fail


def from_plain(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    """Make a config dataclass from what JSON or YAML gave.

    Args:
        kind: The dataclass; fields may be dataclasses again, and tuples.
        values: Its fields; those left out keep their defaults.
        where: What the values are called in messages.

    Raises:
        ValueError: A key is unknown (the message names the nearest one) or a value is of the wrong kind.

    Example:
        >>> from bcls.models.config import VseppConfig
        >>> from_plain(VseppConfig, {"width": 8}, "config").width
        8
        >>> from_plain(VseppConfig, {"widht": 8}, "config")
        Traceback (most recent call last):
        ...
        ValueError: `config`: expected one of 'name', 'words', ..., got 'widht'; did you mean 'width'?
    """
    if not isinstance(values, Mapping):
        fail(where, f"the settings of {kind.__name__} by name", repr(values), "write them as `key: value`")
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    known = {}
    for key, value in values.items():
        check_choice(where, key, names)
        known[key] = _converted(hints[key], value, f"{where}.{key}")
    return kind(**known)


def _converted(hint: Any, value: Any, where: str) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    options = options or (hint,)
    if value is None:
        return None if type(None) in options else _refuse(hint, value, where)
    for option in options:
        if dataclasses.is_dataclass(option) and not isinstance(value, option):  # type: ignore[arg-type]
            return from_plain(option, value, where)  # type: ignore[arg-type]
        if typing.get_origin(option) is tuple:
            if not isinstance(value, list | tuple):
                continue
            kind = typing.get_args(option)[0]  # of all: settings have tuples of any length
            return tuple(_converted(kind, one, f"{where}[{place}]") for place, one in enumerate(value))
        if option is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not isinstance(option, type):
            return value  # literals and the like are for the dataclass itself to check
        if isinstance(value, option) and not (option is int and isinstance(value, bool)):
            return value
    return _refuse(hint, value, where)


def _refuse(hint: Any, value: Any, where: str) -> typing.NoReturn:
    kind = hint.__name__ if isinstance(hint, type) else str(hint)
    fail(where, f"a value of type {kind}", repr(value), "see the model's config")
