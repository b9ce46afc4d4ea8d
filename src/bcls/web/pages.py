"""The pages: search, one photo, comparison of two models, login, and the description of the API."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from starlette.responses import RedirectResponse

from bcls.search.service import Hit, PhotoInfo, SearchResult, Service
from bcls.training.run_folder import CHECKPOINTS
from bcls.web.api import Filters, Number, Results, SiteOf, Upload, uploaded
from bcls.web.responses import ProblemError, is_fragment, render, static_files
from bcls.web.security import COOKIE, check_token
from bcls.web.site import LOGIN_SECONDS, WRONG, Site

routes = APIRouter(include_in_schema=False)
#: Photos on the first page, and photos that each click on "More" adds.
SHOWN = 30
#: Captions and similar photos on the page of a photo.
_CAPTIONS, _SIMILAR = 8, 12
#: In the compare view: results that are shown, and results among which the correct one is searched.
_COMPARED, _DEPTH = 10, 100
_FILTERS = ("after", "before", "under", "words")
#: Captions of a photo, and a text.
Pairs: TypeAlias = Sequence[tuple[Sequence[str], str]]


@dataclass(frozen=True)
class PageQuery:
    """Parameters of the search page; results that are not relevant are left out if ``fitting``."""

    filters: Filters
    q: str = ""
    k: Results = SHOWN
    fitting: Annotated[bool, Query()] = False


Parameters = Annotated[PageQuery, Depends()]


@routes.get("/")
def search_page(request: Request, site: SiteOf, query: Parameters) -> Response:
    """The search page, with results if the address has a query."""
    catalog = site.service.index.catalog
    values = {"q": query.q, "fitting": query.fitting, "filters": _filter_texts(request)}
    values |= {"photos": catalog.count(), "captions": catalog.count("captions")}
    return render(request, "search.html", {**values, "found": _results(request, site, query)})


@routes.get("/results")
def results(request: Request, site: SiteOf, query: Parameters) -> Response:
    """Results for a text, as a page fragment; an empty query has none."""
    found = _results(request, site, query)
    headers = {"HX-Replace-Url": "/?" + _address(request, query) if found else "/"}
    return render(request, "_results.html", {"found": found}, headers=headers)


@routes.post("/results")
def results_for_image(request: Request, site: SiteOf, image: Upload, query: Parameters) -> Response:
    """Results for an image, as a page fragment, without a link to more of them."""
    with uploaded(site, image) as decoded:
        found = site.service.search_image(decoded, query.k, query.filters)
    return render(request, "_results.html", {"found": {**_note(found, query), "more": None}})


@routes.get("/photo/{number}")
def photo_page(request: Request, site: SiteOf, number: Number) -> Response:
    """A photo with its date and captions, the closest captions of the index, and similar photos."""
    photo = site.service.describe(number)
    has_captions = site.service.index.catalog.count("captions") > 0
    captions = site.service.captions_for(number, _CAPTIONS).hits if has_captions else ()
    values = {"photo": photo, "captions": captions, "hits": site.service.more_like(number, _SIMILAR).hits}
    return render(request, "_photo.html" if is_fragment(request) else "photo.html", values)


@routes.get("/login")
async def login_page(request: Request) -> Response:
    """The form for the token."""
    return render(request, "login.html", {"wrong": False})


@routes.post("/login")
async def login(request: Request, site: SiteOf, token: Annotated[str, Form(max_length=1000)] = "") -> Response:
    """Set the login cookie if the token is correct."""
    if site.settings.token is None:
        raise ProblemError(404, "this server has no token: open / instead")
    if not check_token(request, site, token.strip()):
        return render(request, "login.html", {"wrong": True}, status=401)
    response = RedirectResponse("/", 303)
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
async def static_file(name: str) -> Response:
    """A static file."""
    found = static_files().get(name)
    if found is None:
        raise ProblemError(404, "there is no such file: open / instead")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Content-Type": found.media_type}
    return Response(found.content, headers=headers)


def _results(request: Request, site: Site, query: PageQuery) -> dict[str, Any] | None:
    """Variables of the template for the results of a text; ``None`` without a text."""
    if not query.q.strip():
        return None
    found = _note(site.service.search(query.q, query.k, query.filters), query)
    more = len(found["hits"]) == query.k < 10 * SHOWN
    return {**found, "more": f"/results?{_address(request, query)}&k={query.k + SHOWN}" if more else None}


def _note(found: SearchResult[Hit], query: PageQuery) -> dict[str, Any]:
    """The hits that are shown, and a line about them."""
    hits = [hit for hit in found.hits if hit.fits or not query.fitting]
    if not found.hits:
        note = "No photo passes the filters."
    elif not found.fits:
        note = "No relevant photo." if query.fitting else "No relevant photo; these are the nearest."
    else:
        note = f"{len(hits)} photo{'s' * (len(hits) != 1)}, best first."
    if found.reranked:
        note += f" The first {found.reranked} were reranked by cross attention."
    return {"hits": hits, "note": note}


def _filter_texts(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "") for name in _FILTERS}


def _address(request: Request, query: PageQuery) -> str:
    given = {name: value for name, value in _filter_texts(request).items() if value}
    fitting = {"fitting": "true"} if query.fitting else {}
    return urlencode({"q": query.q, **given, **fitting}, errors="replace")


@routes.get("/compare")
def compare_page(
    request: Request, site: SiteOf, q: str = "", photo: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None
) -> Response:
    """Two models side by side: photos for a text, or captions for a photo."""
    if site.other is None:
        raise ProblemError(404, "there is no second index: start with `bcls serve INDEX --compare INDEX2`")
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
        raise ProblemError(404, f"{photo.name} is not in the second index: index the same photos with both models")
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
