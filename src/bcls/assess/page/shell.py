"""Pages of figures and queries, and the pieces that they are put together from."""

from html import escape
from importlib import resources

import bcls
from bcls._page import frame


def document(title: str, lede: str, sections: str) -> str:
    """Put a page together.

    The content security policy names style and script by their hashes (see :func:`bcls._page.frame`): even where a
    caption were not escaped, nothing in it could run or load anything.

    Args:
        title: Plain text.
        lede: Plain text under the title.
        sections: HTML.

    Returns:
        The page.
    """
    content = f"""<header>
<h1>{escape(title)}</h1>
<p class="lede">{escape(lede)}</p>
</header>
{sections}
<footer>bcls {escape(bcls.__version__)}</footer>"""
    return frame(title, content, _part("page.css"), _part("page.js"))


def section(name: str, title: str, content: str) -> str:
    """Return a section with a heading; ``content`` is HTML."""
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>\n{content}\n</section>\n'


def table(headings: list[str], groups: list[list[list[str]]]) -> str:
    """Return a table of plain texts; groups of rows are set apart, and the first cell of a row names it."""
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in headings)
    bodies = ""
    for rows in groups:
        cells = (
            f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
            for row in rows
        )
        bodies += f"<tbody>{''.join(cells)}</tbody>\n"
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>\n{bodies}</table></div>'


#: The box that the script makes work; without a script it stays hidden.
FILTER = (
    '<form class="filter" hidden><label for="words">Show queries with</label>'
    '<input id="words" type="search" autocomplete="off" placeholder="words, such as: dog water">'
    '<output for="words"></output></form>'
)


def _part(name: str) -> str:
    return resources.files("bcls.assess.page").joinpath(name).read_text(encoding="utf-8")
