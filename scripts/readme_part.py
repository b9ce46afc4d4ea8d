"""Replaces a part of a page between two marker comments."""

import re
from pathlib import Path

from bcls._core.errors import fail
from bcls._core.files import write_whole


def write_part(page: Path, start: str, end: str, content: str) -> None:
    """Replace the text between two markers of a page.

    Args:
        page: The Markdown file.
        start: The first marker, which is kept.
        end: The second marker, which is kept.
        content: The new text between them.

    Raises:
        ValueError: The page does not contain the markers.
    """
    text = page.read_text(encoding="utf-8")
    pattern = re.escape(start) + ".*?" + re.escape(end)
    # A function, so that a backslash in the content is no group reference.
    written, count = re.subn(pattern, lambda _: f"{start}\n{content}\n{end}", text, flags=re.DOTALL)
    if count == 0:
        fail(str(page), f"the markers {start} and {end}", "none", "add them where the table belongs")
    write_whole(page, written)
