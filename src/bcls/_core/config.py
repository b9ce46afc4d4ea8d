"""YAML files that anybody may have written.

Config dataclasses from plain values, with messages that name the nearest key.

Settings against the kinds that they are declared with: files and callers may give anything.

What the JSON that a sweep leaves must look like, and a message where it does not.
"""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from bcls._core.errors import check_choice, fail, shortened

if TYPE_CHECKING:
    from yaml import Event

#: Limits of a YAML file, far above what settings need: bytes, values with aliases written out, levels, digits.
_LONGEST, _MOST, _DEEPEST, _DIGITS = 2**18, 20_000, 50, 1000


def read_yaml(path: Path) -> object:
    """Read a YAML file that anybody may have written.

    Args:
        path: The file, UTF-8.

    Returns:
        Plain values; YAML takes some numbers for words, see :func:`bcls.training.optimization.numbers`.

    Raises:
        ValueError: It is no YAML, or would become far more than settings are; see :func:`check_yaml`.
        OSError: It cannot be read.
    """
    import yaml

    text = check_yaml(path)
    try:
        loaded: object = yaml.safe_load(text)
    # The others for dates and numbers that there are not.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        fail(str(path), "a YAML file", _reason(error), "mend it")
    return loaded


def check_yaml(path: Path) -> str:
    """Check how much a YAML file would become, without making it: a few aliases of aliases are a billion values.

    Args:
        path: The file, UTF-8.

    Returns:
        Its text.

    Raises:
        ValueError: It is no YAML, is longer, deeper or has more values than settings have, a value holds itself, or
            says of which kind it is.
        OSError: It cannot be read.
    """
    import yaml

    with path.open("rb") as file:
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        fail(str(path), f"a YAML file of at most {_LONGEST} bytes", "a longer one", "keep settings alone in it")
    try:
        text = content.decode("utf-8")
        _check_events(path, _untagged(path, yaml.parse(text, Loader=yaml.SafeLoader)))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        fail(str(path), "a YAML file", _reason(error), "mend it")
    return text


def _untagged(path: Path, events: "Iterator[Event]") -> "Iterator[Event]":
    """The events of a parser, none of which says of which kind a value is: the loader ends oddly over wrong ones."""
    for event in events:
        tag = getattr(event, "tag", None)
        if tag is not None:
            fail(str(path), "plain values", f"the kind {tag!r} of one", "leave it out")
        yield event


def _check_events(path: Path, events: "Iterator[Event]") -> None:
    """Count what the events of a parser stand for, an alias as often as it would be written out."""
    import yaml

    sizes: dict[str | None, int] = {}
    # Values of each open mapping or list so far, with its anchor; the first is the file itself.
    stack: list[tuple[str | None, int]] = [(None, 0)]
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append((event.anchor, 1))
            if len(stack) > _DEEPEST:
                fail(str(path), f"a YAML file of at most {_DEEPEST} levels", "a deeper one", "keep settings flat")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = stack.pop()
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in stack):
                fail(str(path), "values that end", f"`*{event.anchor}` inside of itself", "write it out")
            # Of one that is not there the loader says where it stands.
            anchor, size = None, sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
            _check_digits(path, event.value)
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        outer, before = stack.pop()
        stack.append((outer, before + size))
        if before + size > _MOST:
            fail(str(path), f"a YAML file of at most {_MOST} values", "more, aliases written out", "use fewer aliases")


def _check_digits(path: Path, word: str) -> None:
    # A longer number takes seconds to make, and Python refuses to print it.
    if len(word) > _DIGITS and word[0] in "+-0123456789" and " " not in word:
        fail(str(path), f"numbers of at most {_DIGITS} digits", word, "shorten it")


def _reason(error: Exception) -> str:
    """What is wrong with a YAML file, and in which line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    parts = (getattr(error, name, None) for name in ("context", "problem"))
    return f"{', '.join(part for part in parts if part)} in line {mark.line + 1}"


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
        if not (_has_shape(value, shape) if isinstance(shape, type) else isinstance(value, shape)):
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


def _has_shape(value: object, kind: type) -> bool:
    if kind is object:
        return isinstance(value, bool) or not isinstance(value, int | float) or _has_shape(value, float)
    if kind in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST
        return whole or (kind is float and isinstance(value, float) and (isnan(value) or abs(value) < _LARGEST))
    return isinstance(value, kind)
