"""The report as one HTML file and as one Markdown file."""

from collections.abc import Sequence

from bcls.assess.page.shell import document, section
from bcls.experiments.report.blocks import Section

_TITLE = "Experiments"
_LEDE = "What was claimed, what was measured, and by which rule the two were compared."


def as_html(sections: Sequence[Section]) -> str:
    """One page that needs no other file and no network."""
    parts = [
        section(f"part{place}", one.title, "\n".join(block.as_html() for block in one.blocks))
        for place, one in enumerate(sections)
    ]
    return document(_TITLE, _LEDE, "".join(parts))


def as_markdown(sections: Sequence[Section]) -> str:
    """One page of Markdown."""
    return "\n\n".join([f"# {_TITLE}", _LEDE, *(one.as_markdown() for one in sections)]) + "\n"
