"""Where a page goes: looked at before the long work, written after it."""

import sys
from pathlib import Path

from bcls._checks import check_whole, fail
from bcls._files import write_whole


def check_page(html: str | None, queries: int) -> None:
    """Check the flags of a page before anything is computed.

    Raises:
        ValueError: If the file cannot be written there, or the number of queries is none.
    """
    check_whole("--queries", queries, least=1)
    if html is None:
        return
    path = Path(html)
    if not html or path.is_dir():
        fail("--html", "the name of a file", repr(html), "give a file name such as page.html")
    if not path.parent.is_dir():
        fail("--html", "a file in a folder that exists", html, f"make the folder {path.parent} first")


def write_page(html: str, page: str) -> None:
    """Write a page, and say so on standard error."""
    try:
        write_whole(Path(html), page)
    except UnicodeEncodeError:
        fail("--html", "captions in valid Unicode", "half of a surrogate pair", "mend the text of the captions")
    print(f"page: {html}", file=sys.stderr)
