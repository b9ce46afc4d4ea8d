"""Replaces a part of README.md between two marker comments."""

import re
from pathlib import Path

from bcls._core.errors import fail
from bcls._core.files import write_whole

README = Path(__file__).parents[1] / "README.md"


def write_part(start: str, end: str, content: str) -> None:
    """Replace the text between two markers of the README.

    Raises:
        ValueError: The README does not contain the markers.
    """
    text = README.read_text(encoding="utf-8")
    pattern = re.escape(start) + ".*?" + re.escape(end)
    # A function, so that a backslash in the content is no group reference.
    written, count = re.subn(pattern, lambda _: f"{start}\n{content}\n{end}", text, flags=re.DOTALL)
    if count == 0:
        fail(str(README), f"the markers {start} and {end}", "none", "add them where the table belongs")
    write_whole(README, written)
