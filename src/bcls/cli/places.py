"""Words without a flag in front of the flags, such as the folder in ``bcls data check DIR``."""

from collections.abc import Sequence

from bcls._checks import fail


def places(verb: str, words: Sequence[str], names: tuple[str, ...], example: str) -> tuple[list[str], list[str]]:
    """The leading words that are no flags, one for each name, and the flags after them.

    Args:
        verb: The verb, for the message.
        words: What stands after it.
        names: What is expected, such as ``("KIND", "SOURCE")``.
        example: A whole command after ``bcls``, for the message.

    Returns:
        The words, and the flags; empty words where only help is asked for.

    Raises:
        ValueError: If a word is missing.

    Example:
        >>> places("data check", ["flickr8k", "--json"], ("DIR",), "data check flickr8k")
        (['flickr8k'], ['--json'])
    """
    given: list[str] = []
    rest = list(words)
    while rest and not rest[0].startswith("-") and len(given) < len(names):
        given.append(rest.pop(0))
    if len(given) < len(names) and not {"-h", "--help", "--print_config"} & set(rest):
        fail(
            f"bcls {verb}: {names[len(given)]}",
            f"{' '.join(names)}, then flags",
            " ".join(words) or "nothing",
            f"for example `bcls {example}`",
        )
    return given + [""] * (len(names) - len(given)), rest
