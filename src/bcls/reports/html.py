"""Self-contained HTML pages, rendered from the Jinja2 templates of this package."""

import base64
import hashlib
import io
import sys
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from PIL import Image

import bcls
from bcls._core.errors import check_whole, fail
from bcls._core.extras import require
from bcls._core.files import write_whole

#: Longest side of an embedded thumbnail, in pixels.
THUMBNAIL = 160
# Images up to this side are drawings, on which JPEG artefacts would show; they are embedded without loss.
_SMALL = 96


def render_page(template: str, title: str, *, script: str | None = None, **values: Any) -> str:
    """Render a page as one HTML file that loads nothing from the network.

    All values are escaped. The content security policy allows images from data URIs, the style of the package and
    the given script, both by their hashes: even an unescaped value could neither run nor load anything.

    Args:
        template: File in ``reports/templates`` that extends ``base.html``.
        title: Title of the page, plain text.
        script: File in ``reports/templates`` with the only script of the page.
        **values: Variables of the template. A missing variable raises an error.

    Returns:
        The page.

    Raises:
        MissingExtraError: Jinja2 is not installed.

    Example:
        >>> page = render_page("report.html", "a < b", lede="", sections=[])
        >>> "<title>a &lt; b</title>" in page, "script-src" in page
        (True, False)
    """
    style = _read("page.css")
    code = None if script is None else _read(script)
    policy = f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    if code is not None:
        policy += f"; script-src '{_hash(code)}'"
    shared = {"title": title, "policy": policy, "style": style, "script": code, "version": bcls.__version__}
    page: str = template_environment("bcls.reports").get_template(template).render({**shared, **values})
    return page


def embed_image(image: Image.Image, alt: str, side: int = THUMBNAIL) -> dict[str, str | int]:
    """Encode a thumbnail of an image as a data URI.

    Args:
        image: Image of any size. It is not changed.
        alt: Text that describes the image.
        side: Longest side of the thumbnail, in pixels.

    Returns:
        ``src``, ``alt``, ``width`` and ``height``, as the macro ``image`` of ``macros.html`` expects them.

    Example:
        >>> from PIL import Image
        >>> small = embed_image(Image.new("RGB", (400, 200)), "a black rectangle")
        >>> small["src"][:22], small["width"], small["height"]
        ('data:image/jpeg;base64', 160, 80)
    """
    small = image.copy()
    small.thumbnail((side, side))
    file = io.BytesIO()
    if max(small.size) <= _SMALL:
        kind = "webp"
        small.save(file, "WEBP", lossless=True)
    else:
        kind = "jpeg"
        small.convert("RGB").save(file, "JPEG", quality=80, optimize=True)
    return {"src": data_uri(f"image/{kind}", file.getvalue()), "alt": alt, "width": small.width, "height": small.height}


def data_uri(media_type: str, content: bytes) -> str:
    """Encode bytes as a data URI.

    Example:
        >>> data_uri("text/plain", b"hi")
        'data:text/plain;base64,aGk='
    """
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def check_page(html: str | None, queries: int = 1) -> None:
    """Check the options of a page before a long computation.

    Args:
        html: Value of ``--html``.
        queries: Value of ``--queries``.

    Raises:
        ValueError: The file cannot be created there, or ``queries`` is below 1.
        MissingExtraError: A page was requested and Jinja2 or matplotlib is not installed.
    """
    check_whole("--queries", queries, least=1)
    if html is None:
        return
    check_output("--html", html, "page.html")
    require("jinja2", "reports", "writing HTML pages")
    require("matplotlib", "reports", "drawing charts")


def check_output(argument: str, file: str, example: str) -> None:
    """Check that a file can be created, before a long computation.

    Args:
        argument: Name of the argument, for the message.
        file: Path of the file.
        example: A valid file name, for the message.

    Raises:
        ValueError: It is a folder, or its folder does not exist.
    """
    path = Path(file)
    if not file or path.is_dir():
        fail(argument, "a file name", repr(file), f"use a file name such as {example}")
    if not path.parent.is_dir():
        fail(argument, "a file in an existing folder", file, f"create the folder {path.parent} first")


def write_page(html: str, page: str) -> None:
    """Write a page or a report to a file and print its path to standard error.

    Raises:
        ValueError: The text contains half of a surrogate pair, which no encoding can represent.
    """
    try:
        write_whole(Path(html), page)
    except UnicodeEncodeError:
        fail("--html", "captions in valid Unicode", "half of a surrogate pair", "fix the text of the captions")
    print(f"page: {html}", file=sys.stderr)


@cache
def template_environment(package: str) -> Any:
    """The Jinja2 environment for the templates of a package: every value is escaped, and a missing one is an error."""
    jinja2 = require("jinja2", "reports", "writing HTML pages")
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _read(name: str) -> str:
    return resources.files("bcls.reports").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
