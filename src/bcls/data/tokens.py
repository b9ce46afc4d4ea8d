"""Words of captions after the conventions of the Penn Treebank, as the published vocabularies were made.

The conventions: punctuation stands alone, except for commas and colons before a digit and periods inside a word; the
period that ends a sentence stands alone, that of an abbreviation does not; opening double quotes become two backticks,
closing ones two apostrophes; ``don't`` is ``do n't``, ``dog's`` is ``dog 's``, ``cannot`` is ``can not``. That is what
NLTK's ``word_tokenize`` does. Where its releases differ, this follows those that made the published vocabularies: two
periods do not stand alone (``game..``), and neither does the quote of ``'stop``.

Everything is decided within a stretch of text between two spaces, and by whether a sentence ends there. So the work is
done once for each different stretch, and captions repeat most of theirs.
"""

import re
from functools import lru_cache

_CLOSERS = "[\\])}>\"'»”’]"
#: A stretch of closing brackets and quotes; a double quote after a space opens, though.
_ONLY_CLOSERS = re.compile(f"(?!\"|''){_CLOSERS}+")
#: A period that may end a sentence, with the brackets and quotes that close after it.
_PERIOD = re.compile(rf"(?<=[^.])\.({_CLOSERS}*) *$")
#: Abbreviations of English that keep their period; those with periods inside need not be listed.
_LISTED = (
    "adm ala ariz aug ave bros calif co col colo conn corp ct dec dr feb fla fri ft ga gen gov ill inc jan jr kan ky "
    "lt ltd maj mass messrs mg minn mr mrs ms nev nov oct okla ore prof rep reps sen sens sept st tenn tex tues va vs "
    "vt wash wed wis"
)
_ABBREVIATIONS = frozenset(_LISTED.split())
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*")
_INNER_PERIOD = re.compile(r"(?:[^\W\d_]+\.)+[^\W\d_]+")


def _compile(*rules: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern, re.IGNORECASE), replacement) for pattern, replacement in rules)


#: Pattern and replacement, in order. Stretches are padded with a space on both sides.
_OPENING = _compile(
    (r"[«“‘„]|`+", r" \g<0> "),
    (r"(?<=[ (\[{<])(?:\"|'')", " `` "),
    (r"(?<!\w)'(?!re|ve|ll|[mtsdn])(?=\w)", "' "),
)
_REST = _compile(
    # A comma or colon inside a number stays.
    (r"([:,])(\D)", r" \1 \2"),
    (r"\.\.\.", " ... "),
    (r"[;@#$%&?!*]", r" \g<0> "),
    (r"(?<=[^'])' ", " ' "),
    (r"[\[\](){}<>]|--", r" \g<0> "),
    # Closing quotes.
    (r"[»”’]", r" \g<0> "),
    (r"''|\"", " '' "),
    # Shortened words.
    (r"(?<=[^' ])(?:'[smd]|') ", r" \g<0>"),
    (r"(?<=[^' ])(?:'ll|'re|'ve|n't) ", r" \g<0>"),
    (r"\b(can)(not)\b", r" \1 \2 "),
    (r"\b(gim|lem)(me)\b", r" \1 \2 "),
    (r"\b(gon|wan)(na)\b", r" \1 \2 "),
    (r"\b(got)(ta)\b", r" \1 \2 "),
    (r"\b(d)('ye)\b", r" \1 \2 "),
    (r"\b(more)('n)\b", r" \1 \2 "),
    (r"(?<= )('t)(is|was)\b", r" \1 \2 "),
)
#: Words without punctuation that are two tokens.
_MERGED = re.compile("cannot|gimme|lemme|gonna|wanna|gotta", re.IGNORECASE)


def tokenize(text: str) -> list[str]:
    """Split a caption into words and punctuation. Upper and lower case stay; vocabularies want ``text.lower()``.

    Args:
        text: The caption.

    Returns:
        The tokens.

    Example:
        >>> tokenize("the dog's ball, it can't bounce.")
        ['the', 'dog', "'s", 'ball', ',', 'it', 'ca', "n't", 'bounce', '.']
        >>> tokenize('a sign says "no dogs". dr. smith reads it.')
        ['a', 'sign', 'says', '``', 'no', 'dogs', "''", '.', 'dr.', 'smith', 'reads', 'it', '.']
    """
    stretches = text.split()
    last = len(stretches) - 1
    while last > 0 and _ONLY_CLOSERS.fullmatch(stretches[last]):
        last -= 1
    tokens: list[str] = []
    for place, stretch in enumerate(stretches):
        tokens += _parts(stretch, place >= last)
    return tokens


@lru_cache(maxsize=1 << 16)
def _parts(stretch: str, is_last: bool) -> tuple[str, ...]:
    if stretch.isalnum() and not _MERGED.fullmatch(stretch):
        return (stretch,)
    padded = f" {stretch} "
    for pattern, replacement in _OPENING:
        padded = pattern.sub(replacement, padded)
    if is_last or _ends_sentence(stretch):
        padded = _PERIOD.sub(r" . \1 ", padded)
    for pattern, replacement in _REST:
        padded = pattern.sub(replacement, padded)
    return tuple(padded.split())


def _ends_sentence(stretch: str) -> bool:
    """Whether a period at the end of a stretch inside the text ends a sentence, and is no abbreviation's."""
    match = _PERIOD.search(stretch)
    if match is None:
        return False
    word = stretch[: match.start()].lstrip("\"'`([{<").lower()
    # A single letter is an initial. After a number, a sentence that begins in lower case is none.
    is_short = len(word) == 1 and word.isalpha()
    return not (
        is_short
        or word.rpartition("-")[2] in _ABBREVIATIONS
        or _NUMBER.fullmatch(word)
        or _INNER_PERIOD.fullmatch(word)
    )
