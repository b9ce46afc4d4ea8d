"""Results as pictures: a contact sheet, and a page that needs nothing beside it."""

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bcls.reports.html import frame
from bcls.search.service import Hit, Service

if TYPE_CHECKING:
    from PIL import Image

_SIDE, _LINE, _GAP, _COLUMNS = 224, 20, 8, 5
_STYLE = (
    "ol{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:1.5rem;padding:0;list-style:none}"
    "img{max-width:100%;max-height:15rem;display:block}figure{margin:0}figcaption{overflow-wrap:anywhere}"
    ".score{color:var(--quiet)}.unlike{opacity:.6}"
)


def contact_sheet(service: Service, hits: Sequence[Hit]) -> bytes:
    """Thumbnails with scores, as a PNG file; a grey field stands for a photo that is gone.

    Args:
        service: Where the hits come from.
        hits: The results; of none, an empty sheet.
    """
    from PIL import Image, ImageDraw

    columns = min(_COLUMNS, len(hits)) or 1
    rows = -(-len(hits) // columns) or 1
    step = _SIDE + _GAP
    sheet = Image.new("RGB", (columns * step + _GAP, rows * (step + _LINE) + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for place, hit in enumerate(hits):
        left, top = _GAP + place % columns * step, _GAP + place // columns * (step + _LINE)
        small = _thumbnail(service, hit)
        if small is None:
            draw.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), fill="#ddd")
            draw.text((left + 8, top + 8), "photo is missing", fill="black")
        else:
            sheet.paste(small, (left + (_SIDE - small.width) // 2, top + (_SIDE - small.height) // 2))
        # The built-in font knows Latin letters only.
        name = hit.name.rsplit("/", 1)[-1].encode("latin-1", "replace").decode("latin-1")
        draw.text((left, top + _SIDE + 2), f"{hit.score:.2f}  {name[:28]}", fill="black")
    return _file(sheet, "PNG")


def page(service: Service, title: str, hits: Sequence[Hit], note: str) -> str:
    """A web page with thumbnails inside it.

    Args:
        service: Where the hits come from.
        title: What was searched for.
        hits: The results.
        note: A line under the title.
    """
    items = "".join(_item(service, hit) for hit in hits)
    return frame(title, f"<h1>{html.escape(title)}</h1><p>{html.escape(note)}</p><ol>{items}</ol>", _STYLE)


def _item(service: Service, hit: Hit) -> str:
    small = _thumbnail(service, hit)
    words = html.escape(" / ".join(hit.captions), quote=True)
    shown = "<p>photo is missing</p>"
    if small is not None:
        data = base64.b64encode(_file(small, "JPEG")).decode()
        shown = f'<img src="data:image/jpeg;base64,{data}" alt="{words or html.escape(hit.name, quote=True)}">'
    text = f'{html.escape(hit.path)} <span class="score">{hit.score:.2f}</span>'
    unlike = "" if hit.fits else ' class="unlike"'
    return f"<li{unlike}><figure>{shown}<figcaption>{text}<br>{words}</figcaption></figure></li>"


def _thumbnail(service: Service, hit: Hit) -> "Image.Image | None":
    try:
        return service.thumbnail(hit.number, _SIDE)
    except (OSError, ValueError):
        return None


def _file(image: "Image.Image", kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()
