"""``bcls search``: find photos in an index, by text or by picture."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcls._core.errors import fail, visible
from bcls.cli.arguments import parse

if TYPE_CHECKING:
    from bcls.search.service import SearchResult, Service

ABOUT = (
    'Finds photos in an index: `bcls search INDEX "a dog on the beach" -k 5`, or with --image instead of the text. '
    "Scores are between 0 and 1; below 0.5 a photo does not fit, and where none does, that is said."
)


#: Seconds for the one query of a process, which may wait for a slow machine: nobody else waits behind it.
_PATIENCE = 24 * 3600.0


@dataclass(frozen=True)
class SearchSettings:
    """Settings of ``bcls search``."""

    index: str
    """Folder of the index."""
    text: str | None = None
    """What to search for."""
    k: int = 10
    """Number of results."""
    image: str | None = None
    """Picture file to search with, instead of a text."""
    captions: bool = False
    """With --image: find captions of the index that describe the picture."""
    after: str = ""
    """Only photos from this date on, such as 2024, 2024-05 or 2024-05-17 (UTC)."""
    before: str = ""
    """Only photos before this date."""
    under: str = ""
    """Only photos whose name below the folder begins like this."""
    words: str = ""
    """Only photos whose captions have all these words."""
    fitting: bool = False
    """Leave out what does not fit."""
    rerank: int = 50
    """Results that a model with cross attention ranks again."""
    contact: str | None = None
    """File for a sheet of thumbnails, such as sheet.png."""
    html: str | None = None
    """File for a web page with thumbnails."""
    model: str | None = None
    """Where the index's model is now, if not where it was."""
    json: bool = False
    """Print a JSON list."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    names = {"index": "INDEX", "text": "TEXT"}
    settings = parse("search", ABOUT, SearchSettings, arguments, positional=names, imports=True)
    folder, text = settings.index, settings.text
    _check(text, settings)
    # Here, not above: `--help` need not wait for them.
    from bcls.search.engine import parse_filter
    from bcls.search.service import Service, ServiceSettings

    limits = parse_filter(settings.after, settings.before, settings.under, settings.words)
    with Service(folder, settings.model, ServiceSettings(rerank=settings.rerank, timeout=_PATIENCE)) as service:
        answer: SearchResult[Any]
        if text is not None:
            answer = service.search(text, settings.k, limits)
        elif settings.captions:
            answer = service.captions_for_image(_read(settings.image), settings.k, limits)
        else:
            answer = service.search_image(_read(settings.image), settings.k, limits)
        _show(service, text or str(settings.image), settings, answer)
    return 0


def _check(text: str | None, settings: SearchSettings) -> None:
    if (text is None) == (settings.image is None):
        got = "none" if text is None else f"{text!r} and --image {settings.image}"
        fail("bcls search", "a text or --image FILE", got, 'for example `bcls search index "a dog on the beach"`')
    if settings.captions and settings.image is None:
        fail("--captions", "--image FILE beside it", "a text", "captions are found for a picture")
    if settings.captions and (settings.contact or settings.html):
        fail("--captions", "no --contact and no --html", "one of them", "captions are printed as text")


def _read(path: str | None) -> bytes:
    from bcls.data.image_files import check_size

    file = Path(str(path))
    check_size("--image", file.name, file.stat().st_size)
    return file.read_bytes()


def _show(service: "Service", title: str, settings: SearchSettings, answer: "SearchResult[Any]") -> None:
    from bcls._core.files import write_whole
    from bcls.search.service import Hit
    from bcls.search.sheets import contact_sheet, page

    hits = [hit for hit in answer.hits if hit.fits or not settings.fitting]
    note = _note(answer)
    photos = [hit for hit in hits if isinstance(hit, Hit)]
    if settings.contact is not None:
        write_whole(Path(settings.contact), contact_sheet(service, photos))
    if settings.html is not None:
        write_whole(Path(settings.html), page(service, title, photos, note))
    if settings.json:
        print(json.dumps([hit.as_json() for hit in hits], ensure_ascii=False))
        return
    for hit in hits:
        text = f"{hit.path}" if isinstance(hit, Hit) else f"{hit.text}  ({hit.path})"
        # Names and captions are read from files, which may hold what moves a terminal's cursor.
        print(f"{hit.score:.3f}  {visible(text)}")
    print(note)


def _note(answer: "SearchResult[Any]") -> str:
    if not answer.hits:
        return "nothing is left to search: the filters let no photo pass"
    note = "" if answer.fits else "nothing fits; these are the nearest. "
    if answer.reranked:
        note += f"the first {answer.reranked} were found by vectors and ranked again by cross attention"
    else:
        note += "ranked by vectors"
    return note
