"""Plots by matplotlib as elements of a page: they take its font and its text colour, and need no file beside it."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from bcls._core.extras import require

#: A colour that nothing else has, exchanged for the colour of the text around the plot.
INK = "#010203"
_INKED = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color")


@contextmanager
def drawing(font_size: float = 10.0) -> Iterator[Any]:
    """Draw in the page's colours, whatever a user's own style file says.

    Args:
        font_size: In points.

    Yields:
        The class of figures. Used without pyplot, which would keep a list of them.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    matplotlib = require("matplotlib", "plots", "drawing curves")
    figure_class = require("matplotlib.figure", "plots", "drawing curves").Figure
    own = {"svg.fonttype": "none", "svg.hashsalt": "bcls", "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**dict.fromkeys(_INKED, INK), **own, "font.size": font_size})
        yield figure_class


def as_element(figure: Any, label: str, prefix: str) -> str:
    """An SVG element: no prolog, own ids, as wide as its place.

    Args:
        figure: Drawn within :func:`drawing`.
        label: What it says to those who cannot see it.
        prefix: What tells its ids from those of other plots in the page.
    """
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    svg = written.getvalue()
    # Its metadata name the program's address, and its style would reach every element of the page.
    svg = re.sub(r"<(metadata|style)\b.*?</\1>\s*", "", svg[svg.index("<svg") :].strip(), flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', svg)
    # HTML knows the namespaces of an inline SVG, and does without their addresses.
    opening = f'<svg class="curve" role="img" aria-label="{escape(label)}" {box.group() if box else ""}>'
    svg = opening + svg[svg.index(">") + 1 :].replace("xlink:href", "href")
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    return re.sub(r" font-family: [^;\"]*;", "", svg).replace(INK, "currentColor")
