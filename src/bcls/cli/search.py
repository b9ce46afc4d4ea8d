"""``bcls search``: search an index by text or by image."""

import json
import sys
import webbrowser
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from bcls._core.errors import fail, visible
from bcls._core.files import write_whole
from bcls.cli.arguments import parse
from bcls.data.image_files import check_size
from bcls.data.images import decode
from bcls.reports.html import check_output
from bcls.search.engine import parse_filter
from bcls.search.service import Hit, PhotoInfo, SearchResult, Service, ServiceSettings
from bcls.search.sheets import contact_sheet, page

if TYPE_CHECKING:
    from PIL import Image

#: Seconds for a query. A single query may take as long as a slow machine needs.
_TIMEOUT = 24 * 3600.0


@dataclass(frozen=True)
class SearchSettings:
    """Search an index by text, as in `bcls search INDEX "a dog on the beach" -k 5`, by --image, or by both.

    A text may have operators between spaces, and weights with a decimal point: "dog + 0.5 beach - person". Scores
    are between 0 and 1. If no photo has a score above the threshold of the model, a note is printed.

    Attributes:
        index: Folder of the index.
        text: What to search for.
        k: Number of results.
        image: Image file to search with, instead of a text or combined with it.
        captions: With --image: find captions of the index that describe the image.
        after: Only photos from this date on, such as 2024, 2024-05 or 2024-05-17 (UTC).
        before: Only photos before this date.
        under: Only photos whose path below the indexed folder starts with this.
        words: Only photos whose captions contain all these words.
        fitting: Show only results that fit.
        sort: Order: score, or date for the newest of those that fit.
        duplicates: List groups of nearly identical photos instead.
        paths: Print paths only, one per line, for other programs.
        open: Show thumbnails in the default image viewer.
        rerank: Number of results that a cross-attention model reranks.
        contact: Write a sheet of thumbnails to this file, such as sheet.png.
        html: Write a page with thumbnails to this file.
        model: Location of the index's model, if it was moved.
        json: Print a JSON list.
    """

    index: str
    text: str | None = None
    k: int = 10
    image: str | None = None
    captions: bool = False
    after: str = ""
    before: str = ""
    under: str = ""
    words: str = ""
    fitting: bool = False
    sort: str = "score"
    duplicates: bool = False
    paths: bool = False
    open: bool = False
    rerank: int = 50
    contact: str | None = None
    html: str | None = None
    model: str | None = None
    json: bool = False


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    names = {"index": "INDEX", "text": "TEXT"}
    settings = parse("search", SearchSettings, arguments, positional=names, imports=True)
    text = settings.text
    _check(text, settings)
    limits = parse_filter(settings.after, settings.before, settings.under, settings.words)
    service_settings = ServiceSettings(rerank=settings.rerank, timeout=_TIMEOUT)
    with Service(settings.index, settings.model, service_settings) as service:
        if settings.duplicates:
            _show_groups(service.duplicates(), settings)
            return 0
        result: SearchResult[Any]
        image = None if settings.image is None else _read(settings.image)
        if settings.captions and image is not None:
            result = service.captions_for_image(image, settings.k, limits)
        else:
            result = service.search(text, settings.k, limits, image=image, sort=settings.sort)
        file = None if settings.image is None else Path(settings.image).name
        title = " + ".join(one for one in (text, file) if one is not None)
        _show(service, title, settings, result)
    return 0


def _check(text: str | None, settings: SearchSettings) -> None:
    if settings.duplicates:
        known = {"index", "duplicates", "paths", "json", "model"}
        other = [
            one.name for one in fields(settings) if one.name not in known and getattr(settings, one.name) != one.default
        ]
        if other:
            fail("--duplicates", "only --paths, --json or --model with it", ", ".join(other), "leave them out")
    elif text is None and settings.image is None:
        hint = 'for example `bcls search index "a dog on the beach"`'
        fail("TEXT", "a text or --image FILE", "none", hint)
    for flag, file in (("--contact", settings.contact), ("--html", settings.html)):
        if file is not None:
            check_output(flag, file, "sheet.png" if flag == "--contact" else "page.html")
    if settings.captions and (settings.image is None or text is not None):
        fail("--captions", "--image FILE with it", "a text", "captions are found for an image")
    if settings.captions and (settings.contact or settings.html or settings.open or settings.sort != "score"):
        fail("--captions", "no --contact, --html, --open or --sort", "one of them", "captions are printed, best first")
    if settings.paths and settings.json:
        fail("--paths", "no --json with it", "both", "the objects of --json have the paths")


def _show_groups(groups: list[tuple[PhotoInfo, ...]], settings: SearchSettings) -> None:
    if settings.json:
        print(json.dumps([[photo.as_json() for photo in group] for group in groups]))
        return
    for group in groups:
        print("".join(f"{_line(photo.path, settings)}\n" for photo in group))
    count = sum(map(len, groups))
    summary = f"{len(groups)} groups of {count} photos" if groups else "no near-duplicates"
    print(summary, file=sys.stderr if settings.paths else sys.stdout)


def _line(path: str, settings: SearchSettings) -> str:
    """A path on one line; names may contain control characters of a terminal, which other programs get unchanged."""
    return path if settings.paths and not sys.stdout.isatty() and "\n" not in path else visible(path)


def _read(path: str) -> "Image.Image":
    file = Path(path)
    check_size("--image", file.name, file.stat().st_size)
    return decode(file.read_bytes(), path)


def _show(service: Service, title: str, settings: SearchSettings, result: SearchResult[Any]) -> None:
    hits = [hit for hit in result.hits if hit.fits or not settings.fitting]
    note = _note(result, shown=len(hits))
    photos = [hit for hit in hits if isinstance(hit, Hit)]
    if settings.open and photos:
        # Kept: the viewer reads it after this process has ended.
        with NamedTemporaryFile(prefix="bcls-", suffix=".png", delete=False) as file:
            file.write(contact_sheet(service, photos))
        webbrowser.open(Path(file.name).as_uri())
    if settings.contact is not None:
        write_whole(Path(settings.contact), contact_sheet(service, photos))
    if settings.html is not None:
        write_whole(Path(settings.html), page(service, title, photos, note))
    if settings.json:
        print(json.dumps([hit.as_json() for hit in hits]))
        return
    if settings.paths:
        print("".join(f"{_line(hit.path, settings)}\n" for hit in hits), end="")
    else:
        for hit in hits:
            text = f"{hit.path}" if isinstance(hit, Hit) else f"{hit.text}  ({hit.path})"
            # File names and captions may contain control characters of a terminal.
            print(f"{hit.score:.3f}  {visible(text)}")
    if note:
        print(note, file=sys.stderr if settings.paths else sys.stdout)


def _note(result: SearchResult[Any], *, shown: int) -> str:
    if not result.hits:
        return "no photo passes the filters"
    if not result.fits and not shown:
        return "nothing fits"
    notes = [] if result.fits else ["nothing fits; these are the nearest results"]
    if result.reranked:
        notes.append(f"the first {result.reranked} were found by vectors and reranked by cross-attention")
    return "; ".join(notes)
