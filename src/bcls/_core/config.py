"""Settings: safe reading of YAML, and validation of plain values (from YAML, JSON or callers) against types."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isnan
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from bcls._core.errors import check_choice, fail, shortened

if TYPE_CHECKING:
    from yaml import Event

#: Limits of a YAML file, far above what settings need: bytes, values with aliases expanded, levels, digits.
_LONGEST, _MOST, _DEEPEST, _DIGITS = 2**18, 20_000, 50, 1000
#: Limit for numbers in JSON results: no metric is larger, and squares of smaller numbers do not overflow.
_LARGEST = 1e100
#: Length of a name or value in a message.
_SHORT = 60
_NAMES = {str: "a string", bool: "true or false", int: "a whole number", float: "a number", list: "a list"}
_PLAIN = "a string, a number, true, false, null, a mapping or a list"
#: A type, ``type | None`` for an optional one, ``[shape]`` for a list, ``{str: shape}`` for a mapping, or a mapping
#: with given keys, where a key that ends with ``?`` may be missing.
Shape = type | UnionType | Sequence[Any] | Mapping[Any, Any]


def read_yaml(path: Path, load: Callable[[str], object] | None = None) -> object:
    """Read a YAML file from an untrusted source.

    Args:
        path: The file, UTF-8.
        load: Parses its text in place of ``yaml.safe_load``.

    Returns:
        Plain values; YAML reads some numbers as strings, see :func:`convert_numbers`.

    Raises:
        ValueError: It is not valid YAML, exceeds the limits for settings, or has a tag, a value that contains itself or
            a key twice.
        OSError: It cannot be read.
    """
    import yaml

    text = _checked_text(path)
    try:
        return (load or yaml.safe_load)(text)
    # The other errors are raised for impossible dates and numbers.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        fail(str(path), "a YAML file", _reason(error), "correct the file")


def convert_numbers(value: Any) -> Any:
    """Convert numbers that YAML reads as strings, such as 5e-4; in mappings and lists, too.

    Example:
        >>> convert_numbers({"lr": "5e-4", "name": "vsepp", "more": ["1e3"]})
        {'lr': 0.0005, 'name': 'vsepp', 'more': [1000.0]}
    """
    if isinstance(value, Mapping):
        return {key: convert_numbers(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [convert_numbers(one) for one in value]
    if isinstance(value, str) and value[:1] in "+-.0123456789" and "e" in value.lower():
        with suppress(ValueError):
            return float(value)
    return value


def _checked_text(path: Path) -> str:
    """The text of a YAML file within the limits: a few nested aliases can expand to a billion values."""
    import yaml

    with path.open("rb") as file:
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        fail(str(path), f"a YAML file of at most {_LONGEST} bytes", "a longer one", "keep only settings in it")
    try:
        text = content.decode("utf-8")
        _check_events(path, yaml.parse(text, Loader=yaml.SafeLoader))
        _check_keys(path, yaml.compose(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        fail(str(path), "a YAML file", _reason(error), "correct the file")
    return text


def _check_events(path: Path, events: "Iterator[Event]") -> None:
    """Count the values of a file, with aliases expanded."""
    import yaml

    sizes: dict[str | None, int] = {}
    # Anchor and number of values of each open mapping or list; the first entry is the file itself.
    anchors: list[str | None] = [None]
    counts = [0]
    for event in events:
        _check_event(path, event)
        if isinstance(event, yaml.CollectionStartEvent):
            anchors.append(event.anchor)
            counts.append(1)
            if len(counts) > _DEEPEST:
                fail(str(path), f"a YAML file of at most {_DEEPEST} levels", "a deeper one", "keep settings flat")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = anchors.pop(), counts.pop()
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in anchors:
                fail(str(path), "finite values", f"`*{event.anchor}` inside itself", "write the value out")
            # The loader reports the position of an undefined alias.
            anchor, size = None, sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        else:
            continue
        sizes[anchor] = size
        counts[-1] += size
        if counts[-1] > _MOST:
            fail(str(path), f"a YAML file of at most {_MOST} values", "more with aliases expanded", "use fewer aliases")


def _check_keys(path: Path, node: Any) -> None:
    """Refuse a mapping with the same key twice, of which the loader would silently keep the second."""
    import yaml

    names: set[str] = set()
    for one in node.value if isinstance(node, yaml.CollectionNode) else ():
        key, value = one if isinstance(node, yaml.MappingNode) else (None, one)
        if isinstance(key, yaml.ScalarNode) and key.value != "<<":
            if key.value in names:
                fail(str(path), "every key once", f"{key.value!r} again in line {key.start_mark.line + 1}", "keep one")
            names.add(key.value)
        _check_keys(path, value)


def _check_event(path: Path, event: "Event") -> None:
    """Refuse tags, for which the loader raises unexpected errors, and numbers that take seconds to convert."""
    tag, word = getattr(event, "tag", None), getattr(event, "value", "")
    if tag is not None:
        fail(str(path), "plain values", f"the tag {tag!r}", "remove it")
    if len(word) > _DIGITS and word[0] in "+-0123456789" and " " not in word:
        fail(str(path), f"numbers of at most {_DIGITS} digits", word, "shorten it")


def _reason(error: Exception) -> str:
    """The problem in a YAML file, and its line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    parts = (getattr(error, name, None) for name in ("context", "problem"))
    return f"{', '.join(part for part in parts if part)} in line {mark.line + 1}"


def from_plain(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    """Create a dataclass from plain values of JSON or YAML.

    Args:
        kind: The dataclass; its fields may be dataclasses and tuples.
        values: Values of its fields; others keep their defaults.
        where: Name of the values in messages.

    Raises:
        ValueError: A key is unknown (the message suggests the closest one) or a value has a wrong type.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Encoder:
        ...     width: int = 512
        ...     dropout: float = 0.0
        >>> from_plain(Encoder, {"width": 8, "dropout": 1}, "model")
        Encoder(width=8, dropout=1.0)
        >>> from_plain(Encoder, {"widht": 8}, "model")
        Traceback (most recent call last):
        ...
        ValueError: `model.widht`: expected one of 'width', 'dropout', got 'widht'; did you mean 'width'?
        >>> from_plain(Encoder, {"width": "8"}, "model")
        Traceback (most recent call last):
        ...
        ValueError: `model.width`: expected a whole number, got '8'; write only strings in quotes
    """
    return _Validator("write only strings in quotes").dataclass(where, values, kind)


def check_field_types(values: Mapping[str, object], declared: type) -> None:
    """Check settings against the annotations of a class.

    Args:
        values: Settings by name; ranges are not checked.
        declared: The class, whose fields are strings, numbers, choices, or mappings and lists of them.

    Raises:
        ValueError: A value has a wrong type; the message names the setting.

    Example:
        >>> class Mine:
        ...     lr: float
        >>> check_field_types({"lr": "0.1"}, Mine)
        Traceback (most recent call last):
        ...
        ValueError: `lr`: expected a number, got '0.1'; write only strings in quotes
    """
    hints = get_type_hints(declared)
    for name, value in values.items():
        _Validator("write only strings in quotes").convert(name, value, hints[name])


def check_shape(where: str, value: object, shape: Shape, hint: str) -> None:
    """Check the structure of a value from JSON.

    ``float`` accepts any number of reasonable size and nan, ``object`` such numbers and everything else.

    Args:
        where: The file, and the part of it.
        value: From ``json.loads``.
        shape: The required structure.
        hint: What to do if it differs.

    Raises:
        ValueError: It differs; the message names the part.

    Example:
        >>> check_shape("results.jsonl", {"rsum": 1, "more": None}, {"rsum": float, "tau?": float}, "run it again")
        >>> check_shape("results.jsonl", {"rsum": "1"}, {"rsum": float}, "run it again")
        Traceback (most recent call last):
            ...
        ValueError: `results.jsonl, rsum`: expected a number, got '1'; run it again
    """
    _Validator(hint, separator=", ", largest=_LARGEST).convert(where, value, shape)


@dataclasses.dataclass(frozen=True)
class _Validator:
    """Checks plain values against types and shapes.

    Args:
        hint: What to do about a wrong value, for messages.
        separator: Between a name and a key inside it.
        largest: Largest absolute value of a number; also excludes infinity.
    """

    hint: str
    separator: str = "."
    largest: float | None = None

    def convert(self, name: str, value: Any, hint: Any) -> Any:
        """Return the value, with numbers, lists and dataclasses converted to the type; raise if it does not fit."""
        origin, inner = get_origin(hint), get_args(hint)
        if origin in (UnionType, Union):
            return self._union(name, value, inner)
        if origin is Literal:
            return check_choice(name, value, inner)
        if origin is dict or isinstance(hint, Mapping):
            return self._mapping(name, value, hint if isinstance(hint, Mapping) else {str: inner[1]})
        if origin in (list, tuple) or isinstance(hint, list):
            return self._list(name, value, origin or list, inner[0] if origin else hint[0])
        if hint is Any:
            return self._plain(name, value)
        if dataclasses.is_dataclass(hint):
            return value if isinstance(value, hint) else self.dataclass(name, value, hint)  # type: ignore[arg-type]
        if not self._fits(value, hint):
            self._fail(name, _NAMES.get(hint, f"a value of type {hint.__name__}"), value)
        if hint is float and isinstance(value, int):
            with suppress(OverflowError):  # range checks report it
                return float(value)
        return value

    def dataclass(self, name: str, values: Any, kind: type[Any]) -> Any:
        """Create a dataclass from its fields."""
        if not isinstance(values, Mapping):
            fail(name, f"the settings of {kind.__name__} by name", repr(values), "write them as `key: value`")
        hints = get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(kind) if field.init]
        for key in values:
            check_choice(f"{name}.{key}", key, names)
        return kind(**{key: self.convert(f"{name}.{key}", value, hints[key]) for key, value in values.items()})

    def _union(self, name: str, value: Any, options: tuple[Any, ...]) -> Any:
        if value is None and NoneType in options:
            return None
        *others, last = [option for option in options if option is not NoneType]
        for option in others:
            with suppress(ValueError):
                return self.convert(name, value, option)
        return self.convert(name, value, last)

    def _mapping(self, name: str, value: Any, shape: Mapping[Any, Any]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            self._fail(name, "a mapping", value)
        converted = dict(value)
        for key, inner in shape.items():
            for one in value if key is str else [key.removesuffix("?")]:
                if one in value:
                    part = f"{name}{self.separator}{shortened(str(one), _SHORT)}"
                    converted[one] = self.convert(part, value[one], inner)
                elif one == key:
                    fail(name, f"`{shortened(key, _SHORT)}`", "none", self.hint)
        return converted

    def _list(self, name: str, value: Any, kind: type, hint: Any) -> Any:
        if not isinstance(value, list | tuple):
            self._fail(name, "a list", value)
        return kind(self.convert(f"{name}[{place}]", one, hint) for place, one in enumerate(value))

    def _plain(self, name: str, value: Any) -> Any:
        """Settings are stored as JSON, so only its types are allowed: a date is not."""
        if isinstance(value, dict):
            return self._mapping(name, value, {str: Any})
        if isinstance(value, list | tuple):
            return self._list(name, value, list, Any)
        if not isinstance(value, str | int | float | NoneType):
            self._fail(name, _PLAIN, value)
        return value

    def _fits(self, value: Any, kind: type) -> bool:
        """Whether a value has a type; numbers may be of any library, but bool is no number."""
        if kind is object:
            return isinstance(value, bool) or not isinstance(value, int | float) or self._fits(value, float)
        if kind not in (int, float):
            return isinstance(value, kind)
        if isinstance(value, bool) or not hasattr(value, "__index__" if kind is int else "__float__"):
            return False
        if self.largest is None:
            return True
        return abs(value) < self.largest or (kind is float and isinstance(value, float) and isnan(value))

    def _fail(self, name: str, expected: str, value: object) -> NoReturn:
        fail(name, expected, shortened(repr(value), _SHORT), self.hint)
