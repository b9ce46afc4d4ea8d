"""Search results as a contact sheet (PNG) and as a self-contained HTML page."""

import io

from PIL import Image, ImageDraw

from bcls.reports.html import embed_image, render_page
from bcls.search.service import Hit, Service

_SIDE, _LINE, _GAP, _COLUMNS = 224, 20, 8, 5


def contact_sheet(service: Service, hits: list[Hit]) -> bytes:
    """Draw thumbnails with their scores; a missing photo is a gray rectangle.

    Args:
        service: The service that returned the results.
        hits: The results; without any the sheet is empty.

    Returns:
        A PNG file.
    """
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
        # The built-in font contains only Latin letters.
        name = hit.name.rsplit("/", 1)[-1].encode("latin-1", "replace").decode("latin-1")
        draw.text((left, top + _SIDE + 2), f"{hit.score:.2f}  {name[:28]}", fill="black")
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def page(service: Service, title: str, hits: list[Hit], note: str) -> str:
    """Render a page with embedded thumbnails.

    Args:
        service: The service that returned the results.
        title: The query.
        hits: The results.
        note: A line below the title.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    shown = []
    for hit in hits:
        small = _thumbnail(service, hit)
        text, score = " / ".join(hit.captions), f"{hit.score:.2f}"
        image = None if small is None else embed_image(small, text or hit.name, _SIDE)
        names = {"name": hit.name, "path": hit.path}
        shown.append({**names, "image": image, "score": score, "captions": text, "fits": hit.fits})
    return render_page("search.html", title, note=note, hits=shown)


def _thumbnail(service: Service, hit: Hit) -> Image.Image | None:
    try:
        return service.thumbnail(hit.number, _SIDE)
    except (OSError, ValueError):
        return None
