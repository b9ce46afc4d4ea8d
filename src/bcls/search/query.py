"""Checks of what people search for."""

from bcls._checks import check_whole, fail

#: Longest query, in characters, and most results.
MAX_TEXT, MAX_RESULTS = 2000, 1000


def check_text(text: str) -> str:
    """Check a query.

    Returns:
        The text on one line.

    Raises:
        ValueError: It is empty, or longer than 2000 characters.
    """
    if not isinstance(text, str):
        fail("text", "a string", type(text).__name__, "write what the photo should show")
    query = " ".join(text.replace("\0", " ").encode(errors="replace").decode().split())
    if not query:
        fail("text", "some words", repr(text[:20]), "write what the photo should show")
    if len(query) > MAX_TEXT:
        fail("text", f"at most {MAX_TEXT} characters", f"{len(query)}", "describe one photo in a sentence or two")
    return query


def check_results(k: int) -> int:
    """Check a number of results, from 1 to 1000."""
    if check_whole("k", k, least=1) > MAX_RESULTS:
        fail("k", f"at most {MAX_RESULTS}", k, "ask for fewer results, and narrow them with filters")
    return k
