"""Checks at the public border: what came, what was expected, what to do about it."""

import difflib
import math
import operator
from collections.abc import Iterable, Sequence
from typing import NoReturn

#: Characters of what came that a message shows.
_LONGEST = 200


def visible(text: str) -> str:
    r"""Text on one line that a terminal only shows: control characters are written out, as ``repr`` writes them.

    Example:
        >>> print(visible("a\nb\x1b[2Jc"))
        a\nb\x1b[2Jc
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Text with its middle left out where it has more than about ``longest`` characters.

    Example:
        >>> shortened("0123456789" * 100, 20)
        '0123456789 ... 980 characters ... 0123456789'
    """
    if len(text) <= longest:
        return text
    end = longest // 2
    return f"{text[:end]} ... {len(text) - 2 * end} characters ... {text[-end:]}"


def reason_of(error: BaseException) -> str:
    r"""What an error says, on one line and not too long, for a message of our own.

    Example:
        >>> reason_of(ValueError("no such\n  thing"))
        'no such thing'
    """
    return " ".join(str(error).split())[:_LONGEST]


def fail(argument: str, expected: str, got: object, remedy: str, kind: type[ValueError] = ValueError) -> NoReturn:
    """Raise the one kind of error that the public border raises.

    Args:
        argument: Name of the argument, as the caller wrote it.
        expected: What would have been right.
        got: What came instead; of something long the middle is left out.
        remedy: What the caller can do about it.
        kind: A kind of ValueError, for callers that tell some apart.

    Raises:
        ValueError: Always.

    Example:
        >>> fail("gamma", "a number above 0", -1.0, "the paper uses 50")
        Traceback (most recent call last):
        ...
        ValueError: `gamma`: expected a number above 0, got -1.0; the paper uses 50
    """
    # Names and what is read from files may hold anything, also what moves a terminal's cursor.
    raise kind(visible(f"`{argument}`: expected {expected}, got {shortened(str(got))}; {remedy}"))


def check_number(
    argument: str, value: float, remedy: str, *, low: float = -math.inf, above: float = -math.inf
) -> float:
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
    if not hasattr(value, "__float__"):  # a word, which float() would read
        fail(argument, expected, repr(value), remedy)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        fail(argument, expected, repr(value), remedy)
    if not math.isfinite(number) or number < low or number <= above:
        fail(argument, expected, repr(value), remedy)
    return number


def check_numbers(
    argument: str, values: object, remedy: str, *, count: int | None = None, low: float = -math.inf
) -> list[float]:
    """Check that ``values`` are ``count`` finite numbers (any number of them without it), none below ``low``.

    Example:
        >>> check_numbers("weights", (1, 2), "1 leaves a loss as it is", count=2, low=0)
        [1.0, 2.0]
    """
    if not isinstance(values, Sequence) or isinstance(values, str):
        fail(argument, "a sequence of numbers", repr(values), remedy)
    if count is not None and len(values) != count:
        fail(argument, f"{count} number{'s' * (count != 1)}", repr(values), remedy)
    return [check_number(argument, value, remedy, low=low) for value in values]


def check_whole(argument: str, value: object, *, least: int) -> int:
    """Check that ``value`` is a whole number, at least ``least``; of any integer type, but not a bool.

    Example:
        >>> check_whole("images", 3, least=1)
        3
        >>> check_whole("images", 0, least=1)
        Traceback (most recent call last):
        ...
        ValueError: `images`: expected a whole number not below 1, got 0; pass a number from 1 up
    """
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        number = operator.index(value)
        if number >= least:
            return number
    fail(argument, f"a whole number not below {least}", repr(value), f"pass a number from {least} up")


def check_choice(argument: str, value: object, choices: Iterable[str]) -> str:
    """Check that ``value`` is one of ``choices``, and name the nearest one where it is not.

    Example:
        >>> check_choice("reduction", "maen", ("mean", "sum"))
        Traceback (most recent call last):
        ...
        ValueError: `reduction`: expected one of 'mean', 'sum', got 'maen'; did you mean 'mean'?
    """
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    near = difflib.get_close_matches(str(value), known, n=1)
    fail(
        argument,
        "one of " + ", ".join(repr(name) for name in known),
        repr(value),
        f"did you mean {near[0]!r}?" if near else "choose one of these",
    )
