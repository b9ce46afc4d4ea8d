"""A part of README.md between two marks, made from results."""

import re
from pathlib import Path

from bcls._core.errors import fail
from bcls._core.files import write_whole

README = Path(__file__).parents[1] / "README.md"


def write_part(start: str, end: str, content: str) -> None:
    """Put something between two marks of the README, in the place of what is there.

    Raises:
        ValueError: The README does not have the marks.
    """
    text = README.read_text(encoding="utf-8")
    pattern = re.escape(start) + ".*?" + re.escape(end)
    # As a function, for a backslash of the content is no reference.
    written, count = re.subn(pattern, lambda _: f"{start}\n{content}\n{end}", text, flags=re.DOTALL)
    if count == 0:
        fail(str(README), f"the marks {start} and {end}", "none", "put them where the part belongs")
    write_whole(README, written)
