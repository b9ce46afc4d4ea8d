"""YAML files that anybody may have written."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bcls._checks import fail

if TYPE_CHECKING:
    from yaml import Event

#: Limits of a YAML file, far above what settings need: bytes, values with aliases written out, levels, digits.
_LONGEST, _MOST, _DEEPEST, _DIGITS = 2**18, 20_000, 50, 1000


def read_yaml(path: Path) -> object:
    """Read a YAML file that anybody may have written.

    Args:
        path: The file, UTF-8.

    Returns:
        Plain values; YAML takes some numbers for words, see :func:`bcls.training.objective.numbers`.

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
