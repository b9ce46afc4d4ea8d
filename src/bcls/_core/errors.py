"""Errors for bad input and checks of arguments: messages state argument, expected value, actual value and a hint."""

import difflib
import math
import operator
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

#: Length of the value shown in a message, and of names and of lists of choices, which files may make long, too.
_LONGEST, _LONGEST_NAME = 200, 800
#: Hint of :func:`check_choice` for names that a module of the user may register.
IMPORT_HINT = "choose one of these, or import the module that registers it, with `--import MODULE`"


def fail(argument: str, expected: str, got: object, hint: str, kind: type[ValueError] = ValueError) -> NoReturn:
    """Raise the error for a bad argument.

    Args:
        argument: Name of the argument, key or file, as the caller wrote it.
        expected: What would have been valid.
        got: The actual value; the middle of a long one is omitted.
        hint: What the caller can do.
        kind: A subclass of ValueError, for callers that distinguish errors.

    Raises:
        ValueError: Always.

    Example:
        >>> fail("gamma", "a number above 0", -1.0, "the paper uses 50")
        Traceback (most recent call last):
        ...
        ValueError: `gamma`: expected a number above 0, got -1.0; the paper uses 50
    """
    # Names and values from files may contain control characters that would move the cursor of a terminal.
    named, wanted = shortened(argument, _LONGEST_NAME), shortened(expected, _LONGEST_NAME)
    raise kind(visible(f"`{named}`: expected {wanted}, got {shortened(str(got))}; {hint}"))


@contextmanager
def prefix_errors(prefix: str, names: Sequence[str] | None = None) -> Iterator[None]:
    """Put a prefix before the argument named by a ValueError, such as ``"loss."`` before ``temperature``.

    An argument that begins with the prefix stays as it is; so does one that is not in ``names``, where they are given.

    Example:
        >>> with prefix_errors("loss."):
        ...     check_number("temperature", -1, "use 0.05", above=0)
        Traceback (most recent call last):
        ...
        ValueError: `loss.temperature`: expected a finite number above 0, got -1; use 0.05
    """
    try:
        yield
    except ValueError as error:
        message = str(error)
        known = names is None or message[1:].partition("`")[0] in names
        if not message.startswith("`") or message.startswith(f"`{prefix}") or not known:
            raise
        raise type(error)(f"`{prefix}{message[1:]}") from error


@contextmanager
def refuse_damage(argument: str, expected: str, hint: str, *errors: type[BaseException]) -> Iterator[None]:
    """Convert errors of a library for a damaged file to the error for a bad argument.

    Args:
        argument: Name of the file, as for :func:`fail`.
        expected: What would have been valid.
        hint: What the caller can do.
        errors: The errors of the library; others are passed on.

    Example:
        >>> with refuse_damage("a.json", "JSON", "copy it again", KeyError):
        ...     {}["key"]
        Traceback (most recent call last):
        ...
        ValueError: `a.json`: expected JSON, got a damaged one ('key'); copy it again
    """
    try:
        yield
    except errors as error:
        fail(argument, expected, f"a damaged one ({reason_of(error)})", hint)


def check_number(argument: str, value: float, hint: str, *, low: float = -math.inf, above: float = -math.inf) -> float:
    """Check that ``value`` is a finite number, at least ``low`` and greater than ``above``.

    Example:
        >>> check_number("gamma", 50, "the paper uses 50", above=0)
        50.0
    """
    expected = "a finite number"
    if above > -math.inf:
        expected += f" above {above:g}"
    if low > -math.inf:
        expected += f" not below {low:g}"
    number = math.nan
    if hasattr(value, "__float__"):  # not a string, which float() would parse
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number) or number < low or number <= above:
        fail(argument, expected, repr(value), hint)
    return number


def check_numbers(
    argument: str, values: object, hint: str, *, count: int | None = None, low: float = -math.inf
) -> list[float]:
    """Check that ``values`` are finite numbers, ``count`` of them if it is given, none below ``low``.

    Example:
        >>> check_numbers("weights", (1, 2), "use 1 for an unweighted sum", count=2, low=0)
        [1.0, 2.0]
    """
    if not isinstance(values, Sequence) or isinstance(values, str):
        fail(argument, "a sequence of numbers", repr(values), hint)
    if count is not None and len(values) != count:
        fail(argument, f"{count} number{'s' * (count != 1)}", repr(values), hint)
    return [check_number(argument, value, hint, low=low) for value in values]


def check_whole(argument: str, value: object, *, least: int) -> int:
    """Check that ``value`` is an integer of any type (not a bool), at least ``least``.

    Example:
        >>> check_whole("images", 3, least=1)
        3
        >>> check_whole("images", 0, least=1)
        Traceback (most recent call last):
        ...
        ValueError: `images`: expected a whole number not below 1, got 0; use at least 1
    """
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        number = operator.index(value)
        if number >= least:
            return number
    fail(argument, f"a whole number not below {least}", repr(value), f"use at least {least}")


def check_choice(argument: str, value: object, choices: Iterable[str], kind: str = "one of", hint: str = "") -> str:
    """Check that ``value`` is one of ``choices``; the message suggests the closest one, and has the hint.

    Example:
        >>> check_choice("reduction", "maen", ("mean", "sum"))
        Traceback (most recent call last):
        ...
        ValueError: `reduction`: expected one of 'mean', 'sum', got 'maen'; did you mean 'mean'?
    """
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    names = ", ".join(repr(name) for name in known) or "none"
    expected = f"{kind} {names}" if kind == "one of" else f"{kind} ({names})"
    hints = [f"did you mean {one!r}?" for one in difflib.get_close_matches(str(value), known, n=1)]
    hints += [hint] if hint else []
    fail(argument, expected, repr(value), " Otherwise ".join(hints) or "choose one of these")


def visible(text: str) -> str:
    r"""Text on one line, with control characters escaped as in ``repr``, so that it is safe to print to a terminal.

    Example:
        >>> print(visible("a\nb\x1b[2Jc"))
        a\nb\x1b[2Jc
    """
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def quoted(path: object) -> str:
    """A path or name as an argument of a shell command, in quotes if it needs them, double ones on Windows.

    Example:
        >>> print(quoted("photos"))
        photos
    """
    text = str(path)
    return subprocess.list2cmdline([text]) if sys.platform == "win32" else shlex.quote(text)


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Text whose middle is omitted if it has more than about ``longest`` characters.

    Example:
        >>> shortened("0123456789" * 100, 20)
        '0123456789 ... 980 characters ... 0123456789'
    """
    if len(text) <= longest:
        return text
    end = longest // 2
    return f"{text[:end]} ... {len(text) - 2 * end} characters ... {text[-end:]}"


def reason_of(error: BaseException) -> str:
    r"""The message of an error on one line, shortened, to be included in another message.

    Example:
        >>> reason_of(ValueError("no such\n  thing"))
        'no such thing'
    """
    return " ".join(str(error).split())[:_LONGEST]
