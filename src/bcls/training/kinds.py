"""Settings against the kinds that they are declared with: files and callers may give anything."""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from bcls._checks import check_choice, fail

#: What settings are made of, beside mappings and lists.
_PLAIN = (str, int, float, NoneType)
_WORDS = {str: "a word", bool: "true or false", int: "a whole number", float: "a number"}
#: What a number of a kind can do, and a word cannot.
_NUMBERS = {int: "__index__", float: "__float__"}


def check_kinds(values: Mapping[str, object], declared: type, prefix: str = "") -> None:
    """Check settings against the annotations of a class.

    Args:
        values: Settings by name; ranges are not looked at.
        declared: The class, whose fields are words, numbers, choices, and mappings or lists of them.
        prefix: Put before a name in messages.

    Raises:
        ValueError: A value is of another kind; the message names the setting.

    Example:
        >>> class Mine:
        ...     lr: float
        >>> check_kinds({"lr": "0.1"}, Mine)
        Traceback (most recent call last):
        ...
        ValueError: `lr`: expected a number, got '0.1'; write words in quotes, and all else without
    """
    hints = get_type_hints(declared)
    for name, value in values.items():
        _check(prefix + name, value, hints[name])


def _check(name: str, value: object, hint: Any) -> None:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        if value is not None:
            _check(name, value, inner[0])
    elif origin is Literal:
        check_choice(name, value, inner)
    elif origin in {dict, list}:
        _check_inside(name, value, origin, inner[-1])
    elif hint is Any:
        _check_plain(name, value)
    elif not _is(value, hint):
        fail(name, _WORDS[hint], repr(value), "write words in quotes, and all else without")


def _check_inside(name: str, value: object, kind: type, hint: Any) -> None:
    """Check a mapping or a list, and all that is in it."""
    if kind is dict:
        if not isinstance(value, dict):
            fail(name, "a mapping", repr(value), f"such as `{name}: {{KEY: VALUE}}`")
        for key, one in value.items():
            _check(f"{name}.{key}", one, hint)
        return
    if not isinstance(value, list | tuple):
        fail(name, "a list", repr(value), "put it into brackets")
    for one in value:
        _check(name, one, hint)


def _is(value: object, hint: type) -> bool:
    if hint in _NUMBERS:  # of any library, but no bool
        return hasattr(value, _NUMBERS[hint]) and not isinstance(value, bool)
    return isinstance(value, hint)


def _check_plain(name: str, value: object) -> None:
    """Check that a value is one that JSON has, for settings are kept as JSON: a date is none."""
    if isinstance(value, dict):
        _check_inside(name, value, dict, Any)
    elif isinstance(value, list | tuple):
        _check_inside(name, value, list, Any)
    elif not isinstance(value, _PLAIN):
        fail(name, "a word, a number, true, false, null, a mapping or a list", repr(value), "write a word in quotes")
