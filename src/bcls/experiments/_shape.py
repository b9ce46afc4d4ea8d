"""What the JSON that a sweep leaves must look like, and a message where it does not."""

from collections.abc import Mapping, Sequence
from math import isnan
from types import UnionType
from typing import Any

from bcls._checks import fail, shortened

#: Beyond this no figure lies, and squares of what lies below are still numbers.
_LARGEST = 1e100
#: Characters of a name or value in a message.
_SHORT = 60
#: A kind, ``kind | None`` where it may be null; a list of one shape, for lists of such; ``{str: shape}``, for mappings
#: to such; or a mapping with these keys, of which those with ``?`` behind them may be missing.
Shape = type | UnionType | Sequence[Any] | Mapping[Any, Any]


def check_shape(where: str, value: object, shape: Shape, remedy: str) -> None:
    """Check that a value from JSON has a shape.

    ``float`` stands for any number of sensible size and for nan, ``object`` for such numbers and all else.

    Args:
        where: The file, and what of it.
        value: From ``json.loads``.
        shape: What it must be.
        remedy: What to do about another one.

    Raises:
        ValueError: It is another one; the message says where.

    Example:
        >>> check_shape("results.jsonl", {"rsum": 1, "more": None}, {"rsum": float, "tau?": float}, "run it again")
        >>> check_shape("results.jsonl", {"rsum": "1"}, {"rsum": float}, "run it again")
        Traceback (most recent call last):
            ...
        ValueError: `results.jsonl, rsum`: expected a value of type float, got '1'; run it again
    """
    if isinstance(shape, type | UnionType):
        if not (_is(value, shape) if isinstance(shape, type) else isinstance(value, shape)):
            fail(where, f"a value of type {getattr(shape, '__name__', shape)}", shortened(repr(value), _SHORT), remedy)
    elif isinstance(shape, Mapping):
        _check_mapping(where, value, shape, remedy)
    else:
        if not isinstance(value, list):
            fail(where, "a list", shortened(repr(value), _SHORT), remedy)
        for place, one in enumerate(value):
            check_shape(f"{where}, {place}", one, shape[0], remedy)


def _check_mapping(where: str, value: object, shape: Mapping[Any, Any], remedy: str) -> None:
    if not isinstance(value, dict):
        fail(where, "a JSON object", shortened(repr(value), _SHORT), remedy)
    for key, inner in shape.items():
        if key is str:
            for name, one in value.items():
                check_shape(f"{where}, {shortened(name, _SHORT)}", one, inner, remedy)
            continue
        name = key.removesuffix("?")
        if name in value:
            check_shape(f"{where}, {name}", value[name], inner, remedy)
        elif name == key:
            fail(where, f"`{shortened(key, _SHORT)}`", "none", remedy)


def _is(value: object, kind: type) -> bool:
    if kind is object:
        return isinstance(value, bool) or not isinstance(value, int | float) or _is(value, float)
    if kind in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST
        return whole or (kind is float and isinstance(value, float) and (isnan(value) or abs(value) < _LARGEST))
    return isinstance(value, kind)
