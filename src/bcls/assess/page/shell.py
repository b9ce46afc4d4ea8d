"""The page around everything: one file, no other host, and nothing runs in it but its own script."""

import base64
import hashlib
from html import escape
from importlib import resources

import bcls


def document(title: str, lede: str, sections: str) -> str:
    """Put a page together.

    The content security policy names style and script by their hashes (see :func:`frame`): even where a caption were
    not escaped, nothing in it could run or load anything.

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


def frame(title: str, content: str, style: str, script: str | None = None) -> str:
    """Put any page together: what is around the content, and the style that all pages share.

    Args:
        title: Plain text.
        content: HTML.
        style: The page's own style.
        script: The one script of the page. Without it, elements may have a style, as matplotlib's drawings do, and
            the content security policy keeps out scripts alone; with it, the policy names both by their hashes.
    """
    style, own = _part("base.css") + style, "style-src 'unsafe-inline'"
    if script is not None:
        own = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    policy = f"default-src 'none'; img-src data:; {own}; base-uri 'none'; form-action 'none'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<main>
{content}
</main>
{"" if script is None else f"<script>{script}</script>"}
</body>
</html>
"""


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


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
