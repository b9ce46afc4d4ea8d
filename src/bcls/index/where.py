"""What a search is limited to: dates, a part of the folder, words of the captions."""

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from bcls._checks import fail
from bcls.data.text_files import is_unicode

_FORMATS = ("%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True)
class Where:
    """Limits of a search; all of them hold at once, and the empty one lets everything pass."""

    after: float | None = None
    """Earliest date, in seconds since 1970, included."""
    before: float | None = None
    """Latest date, in seconds since 1970, left out."""
    under: str = ""
    """Beginning of the name below the folder of photos, such as ``"2024/summer/"``."""
    words: tuple[str, ...] = ()
    """Words that the captions must have, all of them, as :func:`words_of` gives them."""

    @property
    def is_open(self) -> bool:
        """Whether everything passes."""
        return self == Where()


def where(after: str = "", before: str = "", under: str = "", words: str = "") -> Where:
    """Read limits as a person writes them.

    Args:
        after: First date, ``2024``, ``2024-05``, ``2024-05-17`` or ``2024-05-17T18:30``; dates are taken as UTC.
        before: First date that is too late, written in the same way.
        under: Beginning of the name.
        words: Words in any order.

    Raises:
        ValueError: A date is not one, the dates leave nothing between them, ``under`` is no text, or there is no word
            in ``words``.

    Example:
        >>> where(after="1970-01-02", words="Dog, beach").words
        ('beach', 'dog')
    """
    start, end = _seconds("after", after), _seconds("before", before)
    if start is not None and end is not None and start >= end:
        fail("before", f"a date later than {after}", repr(before), "the first date counts, the last one does not")
    if not is_unicode(under):
        fail("under", "a beginning of names that is text", ascii(under), "photos in the index have names that are")
    found = words_of([words])
    if words and not found:
        fail("words", "at least one word of letters or digits", repr(words), "leave it out to search all photos")
    return Where(start, end, under, found)


def words_of(texts: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Different words of some texts: letters and digits in small letters, sorted.

    Example:
        >>> words_of(["A dog!", "the DOG's ball"])
        ('a', 'ball', 'dog', 's', 'the')
    """
    return tuple(sorted({word[:200] for text in texts for word in re.findall(r"\w+", text.casefold())}))


def _seconds(argument: str, text: str) -> float | None:
    if not text:
        return None
    for form in _FORMATS:
        with suppress(ValueError):
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
    return fail(
        argument, "a date such as 2024, 2024-05 or 2024-05-17", repr(text), "write year, month, day in that order"
    )
