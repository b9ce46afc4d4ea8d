"""Argument checks whose messages say what was expected, what came and what to do."""

import numpy as np


def whole_number(name: str, value: object, least: int) -> int:
    """Return ``value`` as an ``int`` that is at least ``least``.

    Args:
        name: The argument's name, for the message.
        value: What the caller passed.
        least: The smallest value allowed.

    Returns:
        The same number as a plain ``int``.

    Raises:
        ValueError: ``value`` is not an integer, or is smaller than ``least``.

    Example:
        >>> whole_number("images", 3, least=1)
        3
        >>> whole_number("images", 0, least=1)
        Traceback (most recent call last):
        ValueError: `images` must be an integer of at least 1, got 0; pass a whole number from 1 up.
    """
    # bool is an int to Python, yet `images=True` is a slip and not a count of one.
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or int(value) < least:  # type: ignore[call-overload]
        raise ValueError(
            f"`{name}` must be an integer of at least {least}, got {value!r}; pass a whole number from {least} up."
        )
    return int(value)  # type: ignore[call-overload,no-any-return]


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of the ``allowed`` names.

    Example:
        >>> one_of("colour", "mauve", ("red", "blue"))
        Traceback (most recent call last):
        ValueError: `colour` must be one of red, blue, got 'mauve'; use one of these names.
    """
    if value not in allowed:
        raise ValueError(f"`{name}` must be one of {', '.join(allowed)}, got {value!r}; use one of these names.")
