"""The pages: photos by date, search, duplicates, one photo, download, compare, login and API."""

import math
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import groupby
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, StreamingResponse

from bcls.search.catalog import Photo
from bcls.search.service import MAX_RESULTS, Hit, PhotoInfo, SearchResult, Service
from bcls.training.run_folder import CHECKPOINTS
from bcls.web.api import CHUNK, Filters, Number, Results, SiteOf, Sort, Upload, uploaded
from bcls.web.responses import MEDIA_TYPES, compressed, is_fragment, missing_file, render, static_files
from bcls.web.security import COOKIE, check_token
from bcls.web.site import LOGIN_SECONDS, WRONG, Site

routes = APIRouter(include_in_schema=False)
#: Photos of a page without a query, and of a search; each click on "More" adds as many as the search has.
BROWSED, SHOWN = 60, 30
#: Groups of duplicates on a page.
_GROUPS = 30
#: Captions and similar photos on the page of a photo.
_CAPTIONS, _SIMILAR = 8, 12
#: In the compare view: results that are shown, and results among which the correct one is searched.
_COMPARED, _DEPTH = 10, 100
#: Dates that a zip file can have.
_ZIP_DATES = tuple(datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (1980, 2107))
#: Captions of a photo, and a text.
Pairs: TypeAlias = Sequence[tuple[Sequence[str], str]]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]
Selected = Annotated[list[Annotated[int, Field(ge=1, le=2**63 - 1)]], Form(min_length=1, max_length=MAX_RESULTS)]


@dataclass(frozen=True)
class PageQuery:
    """State of the search page, which is all in the address.

    Attributes:
        filters: Conditions on the photos.
        q: Text of the query.
        like: Number of a photo that is part of the query.
        k: Number of results that are searched.
        fits: Minimum score of the results that are shown; by default that of the calibration.
        sort: Order of the results that are shown.
        page: Page of the photos by date, if there is no query.
    """

    filters: Filters
    q: str = ""
    like: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None
    k: Results = SHOWN
    fits: Annotated[float | None, Query(ge=0, le=1)] = None
    sort: Sort = "score"
    page: PageNumber = 1


Parameters = Annotated[PageQuery, Depends()]


@routes.get("/")
def search_page(request: Request, site: SiteOf, query: Parameters) -> Response:
    """The search page: results if the address has a query, otherwise photos by date."""
    texts = {name: request.query_params.get(name, "") for name in ("after", "before", "under", "words")}
    values = {"query": query, "filters": texts, "has_captions": _has_captions(site), **_view(request, site, query)}
    return render(request, "search.html", values)


@routes.get("/results")
def results(request: Request, site: SiteOf, query: Parameters) -> Response:
    """The photos of the search page, as a page fragment; headers have the address of the page and the threshold."""
    values = _view(request, site, query)
    headers = {"X-Address": _address(request, query), "X-Threshold": f"{values['threshold']:.2f}"}
    return render(request, "_results.html", values, headers=headers)


@routes.post("/results")
def results_for_image(request: Request, site: SiteOf, image: Upload, query: Parameters) -> Response:
    """Results for an image, and a text if there is one, as a page fragment."""
    with uploaded(site, image) as decoded:
        found = site.service.search(query.q.strip() or None, _depth_of(site, query), query.filters, image=decoded)
    values = _found(request, found, query, image=True)
    headers = {"X-Threshold": f"{values['threshold']:.2f}"}
    return render(request, "_results.html", {**values, "more": None}, headers=headers)


@routes.get("/duplicates")
def duplicates_page(request: Request, site: SiteOf, page: PageNumber = 1) -> Response:
    """Groups of photos that are nearly the same."""
    groups = site.service.duplicates()
    pages = _pages(page, len(groups), _GROUPS, "/duplicates?page={}".format)
    start = (pages["page"] - 1) * _GROUPS
    values = {"groups": groups[start : start + _GROUPS], "total": len(groups), **pages}
    return render(request, "duplicates.html", values)


@routes.post("/download")
def download(site: SiteOf, number: Selected) -> Response:
    """The files of several photos as a zip, which is created while it is sent."""
    photos = [site.service.photo(one) for one in dict.fromkeys(number)]
    headers = {"Content-Disposition": "attachment; filename=photos.zip", "Cache-Control": "private, no-store"}
    return StreamingResponse(zip_photos(site.service, photos), media_type="application/zip", headers=headers)


@routes.get("/photo/{number}")
def photo_page(request: Request, site: SiteOf, number: Number) -> Response:
    """A photo with its date and captions, the closest captions of the index, and similar photos."""
    photo = site.service.describe(number)
    captions = site.service.captions_for(number, _CAPTIONS).hits if _has_captions(site) else ()
    values = {"photo": photo, "captions": captions, "hits": site.service.more_like(number, _SIMILAR).hits}
    return render(request, "_photo.html" if is_fragment(request) else "photo.html", values)


@routes.get("/login")
async def login_page(request: Request, to: str = "") -> Response:
    """The form for the token, and the page that the login leads to."""
    return render(request, "login.html", {"wrong": False, "to": to})


@routes.post("/login")
async def login(
    request: Request,
    site: SiteOf,
    token: Annotated[str, Form(max_length=1000)] = "",
    to: Annotated[str, Form()] = "",
) -> Response:
    """Set the login cookie if the token is correct, and open a page of this app."""
    if site.settings.token is None:
        raise HTTPException(404, "this server has no token: open / instead")
    if not check_token(request, site, token.strip()):
        return render(request, "login.html", {"wrong": True, "to": to}, status=401)
    # Only a path: browsers read // and /\ as the beginning of another host.
    response = RedirectResponse(to if re.match(r"/(?![/\\])", to) else "/", 303)
    secure = request.scope["scheme"] == "https"
    value = site.logins.start()
    response.set_cookie(COOKIE, value, max_age=LOGIN_SECONDS, httponly=True, samesite="strict", secure=secure)
    return response


@routes.post("/logout")
async def logout(request: Request, site: SiteOf) -> Response:
    """End the login."""
    site.logins.end(request.cookies.get(COOKIE, ""))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


@routes.get("/about/api")
async def api_page(request: Request) -> Response:
    """The description of the API as a page; `/api/openapi.json` has it for programs."""
    return render(request, "api.html", {"paths": request.app.openapi()["paths"]})


@routes.get("/static/{name}")
async def static_file(request: Request, name: str) -> Response:
    """A static file."""
    if name not in static_files():
        raise HTTPException(404, "there is no such file: open / instead")
    media_type = f"{MEDIA_TYPES[PurePosixPath(name).suffix]}; charset=utf-8"
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Content-Type": media_type}
    return compressed(request, static_files()[name], headers)


def _has_captions(site: Site) -> bool:
    return site.service.index.catalog.count("captions") > 0


def _view(request: Request, site: Site, query: PageQuery) -> dict[str, Any]:
    """Variables of the template for the results of a query, or for photos by date."""
    service, k = site.service, _depth_of(site, query)
    if query.like is not None and query.q.strip():
        with missing_file(service.photo(query.like).name):
            content = service.read_photo(query.like)
        return _found(request, service.search(query.q, k, query.filters, image=content), query, image=True)
    if query.like is not None:
        return _found(request, service.more_like(query.like, k, query.filters), query, image=True)
    if query.q.strip():
        return _found(request, service.search(query.q, k, query.filters), query)
    photos, total = service.by_date(BROWSED, (query.page - 1) * BROWSED, query.filters)
    pages = _pages(query.page, total, BROWSED, lambda page: _address(request, query, page=page))
    if pages["page"] < query.page:  # an address of a time when there were more
        photos, _ = service.by_date(BROWSED, (pages["page"] - 1) * BROWSED, query.filters)
    months = [(month, list(group)) for month, group in groupby(photos, lambda one: _month(one.date))]
    return {"searched": False, "groups": months, "total": total, "threshold": service.threshold, **pages}


def _depth_of(site: Site, query: PageQuery) -> int:
    """Number of results to search: one more than shown, or all, since the newest that fits may have a low score."""
    every = query.sort == "date" and not site.service.index.manifest.cross
    return MAX_RESULTS if every else min(query.k + 1, MAX_RESULTS)


def _found(request: Request, found: SearchResult[Hit], query: PageQuery, *, image: bool = False) -> dict[str, Any]:
    """Variables of the template for results; the best for an image are shown although few are similar enough to fit."""
    threshold = 0.0 if image and query.sort == "score" else found.threshold
    limit = threshold if query.fits is None else query.fits
    fitting = [hit for hit in found.hits if hit.score >= limit]
    if query.sort == "date" and (limit > 0 or found.fits):
        fitting.sort(key=lambda hit: -hit.date)
    longer = _address(request, query, k=min(query.k + SHOWN, MAX_RESULTS))
    return {
        "searched": True,
        "hits": fitting[: query.k],
        "fitting": found.fits,
        "best": max((hit.score for hit in found.hits), default=None),
        "fits": limit,
        "threshold": threshold,
        "sort": query.sort,
        "reranked": found.reranked,
        "first": len(fitting) > query.k,
        "more": longer if len(fitting) > query.k else None,
        "nearest": _address(request, query, fits=0) if len(fitting) < len(found.hits) else None,
    }


def _pages(page: int, total: int, size: int, address: Callable[[int], str]) -> dict[str, Any]:
    """Variables of the template for the links to other pages; a page after the last one counts as the last."""
    last = max(1, math.ceil(total / size))
    page = min(page, last)
    older, newer = (address(page + 1) if page < last else None), (address(page - 1) if page > 1 else None)
    return {"page": page, "last": last, "older": older, "newer": newer}


def _address(request: Request, query: PageQuery, **changes: Any) -> str:
    """Address of the search page in a state; values that are the default are left out."""
    texts = {name: request.query_params.get(name, "") for name in ("after", "before", "under", "words")}
    numbers = {name: getattr(query, name) for name in ("like", "k", "fits", "sort", "page")}
    values = {"q": query.q, **texts, **numbers, **changes}
    defaults = {field.name: field.default for field in fields(PageQuery)}
    given = {
        name: f"{value:g}" if isinstance(value, float) else value
        for name, value in values.items()
        if value != defaults.get(name, "")
    }
    return "/?" + urlencode(given, errors="replace") if given else "/"


def _month(seconds: float) -> str:
    """Heading of a photo.

    Example:
        >>> _month(86400.0)
        'January 1970'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%B %Y")


def zip_photos(service: Service, photos: Sequence[Photo]) -> Iterator[bytes]:
    """Files of photos as pieces of a zip; a file that cannot be read is listed in ``missing.txt``."""
    pieces, missing = _Pieces(), []
    with zipfile.ZipFile(pieces, "w") as archive:  # type: ignore[call-overload]  # stored: photos are compressed
        for photo in photos:
            try:
                content = service.read_photo(photo.number)
            except (OSError, ValueError):
                missing.append(photo.name)
                continue
            parts = [part for part in re.split(r"[/\\]", photo.name) if part not in {"", ".", ".."}]
            date = datetime.fromtimestamp(min(max(photo.date, _ZIP_DATES[0]), _ZIP_DATES[1]), UTC)
            archive.writestr(zipfile.ZipInfo("/".join(parts).replace(":", "_"), date.timetuple()[:6]), content)
            yield from pieces.take()
        if missing:
            archive.writestr("missing.txt", "These files cannot be read:\n" + "\n".join(missing) + "\n")
    yield from pieces.take()


class _Pieces:
    """A file that cannot seek and gives away what was written."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, content: bytes) -> int:
        self._written.append(bytes(content))
        return len(content)

    def flush(self) -> None:
        pass

    def take(self) -> Iterator[bytes]:
        """What was written since the last call, in small pieces, so that slow clients are noticed."""
        written, self._written = b"".join(self._written), []
        yield from (written[start : start + CHUNK] for start in range(0, len(written), CHUNK))


@routes.get("/compare")
def compare_page(
    request: Request, site: SiteOf, q: str = "", photo: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None
) -> Response:
    """Two models side by side: photos for a text, or captions for a photo."""
    if site.other is None:
        raise HTTPException(404, "there is no second index: start with `bcls serve INDEX --compare INDEX2`")
    both = (site.service, site.other)
    values: dict[str, Any] = {"q": q, "photo": None, "columns": [], "labels": site.labels, "wrong": WRONG}
    if photo is not None:
        values["photo"] = info = site.service.describe(photo)
        values["columns"] = [_caption_column(site, one, info) for one in both]
    elif q.strip():
        values["columns"] = [_photo_column(site, one, q) for one in both]
    return render(request, "_compare.html" if is_fragment(request) else "compare.html", values)


def _photo_column(site: Site, service: Service, query: str) -> dict[str, Any]:
    """Photos for a text; those with the text as a caption are correct."""
    hits = service.search(query, _depth(service)).hits
    truths = [any(_normalized(caption) == _normalized(query) for caption in hit.captions) for hit in hits]
    numbers = [site.service.number_of(hit.name) for hit in hits[:_COMPARED]]
    return _column(site, service, hits, truths, numbers, [(hit.captions, query) for hit in hits[:_COMPARED]])


def _caption_column(site: Site, service: Service, photo: PhotoInfo) -> dict[str, Any]:
    """Captions for a photo; its own are correct."""
    number = service.number_of(photo.name)
    if number is None:
        raise HTTPException(404, f"{photo.name} is not in the second index: index the same photos with both models")
    hits = service.captions_for(number, _depth(service)).hits
    truths = [hit.number == number for hit in hits]
    pairs = [(photo.captions, hit.text) for hit in hits[:_COMPARED]]
    return _column(site, service, hits, truths, [photo.number] * len(pairs), pairs)


def _column(
    site: Site, service: Service, hits: Sequence[Any], truths: list[bool], numbers: Sequence[int | None], pairs: Pairs
) -> dict[str, Any]:
    """Variables of the template for the results of one model.

    Args:
        site: Has the encoder of pseudo labels.
        service: Searches with the model.
        hits: The photos or captions.
        truths: Which of them belong to the query.
        numbers: Numbers of the photos of the first hits in the first index, which thumbnails come from.
        pairs: Captions of the photo and text of the first hits, which are shown.
    """
    found = [None] * len(pairs) if site.labels is None else site.labels.of(pairs)
    shown = zip(hits, found, truths, numbers, strict=False)
    results = [{"hit": hit, "label": label, "truth": truth, "photo": photo} for hit, label, truth, photo in shown]
    rank = truths.index(True) + 1 if True in truths else None
    return {"name": _model_name(service), "results": results, "rank": rank, "depth": len(hits)}


def _normalized(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(" .")


def _depth(service: Service) -> int:
    """Number of results among which the correct one is searched: at most those that are reranked anyway."""
    reranked = service.settings.rerank if service.index.manifest.cross else 0
    return max(_COMPARED, reranked) if reranked else _DEPTH


def _model_name(service: Service) -> str:
    """Name of a model for display: the last part of its name, or its run folder, and its index."""
    *before, last = service.index.manifest.model.rstrip("/").split("/")
    run = before[-2] if before[-1:] == [CHECKPOINTS] and len(before) > 1 else last
    return f"{run} ({service.index.folder.name})"
