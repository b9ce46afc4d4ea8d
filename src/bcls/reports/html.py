"""What is around every page that we write: one file, no other host, and nothing runs in it but its own script."""

import base64
import hashlib
from html import escape
from importlib import resources


def frame(title: str, content: str, style: str, script: str | None = None) -> str:
    """Put any page together: what is around the content, and the style that all pages share.

    Args:
        title: Plain text.
        content: HTML.
        style: The page's own style.
        script: The one script of the page. Without it, elements may have a style, as matplotlib's drawings do, and
            the content security policy keeps out scripts alone; with it, the policy names both by their hashes.
    """
    style, own = _shared() + style, "style-src 'unsafe-inline'"
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


def _shared() -> str:
    return resources.files("bcls.reports").joinpath("page.css").read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
