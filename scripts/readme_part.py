"""A part of README.md between two marks, made from results."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def write_part(start: str, end: str, content: str) -> None:
    """Put something between two marks of the README, in the place of what is there."""
    text = README.read_text(encoding="utf-8")
    pattern = re.escape(start) + ".*?" + re.escape(end)
    README.write_text(re.sub(pattern, f"{start}\n{content}\n{end}", text, flags=re.DOTALL), encoding="utf-8")
