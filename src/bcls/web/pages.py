"""The pages: search, one photo, comparison of two models, login, and the description of the API."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request, Response
from starlette.responses import RedirectResponse

from bcls.search.service import CaptionHit, Hit, PhotoInfo, SearchResult, Service
from bcls.training.run_folder import CHECKPOINTS
from bcls.web.api import Filters, Number, Results, SiteOf, Upload, uploaded
from bcls.web.responses import ProblemError, is_fragment, render, static_files
from bcls.web.security import COOKIE, LOGIN_SECONDS, create_login, is_token
from bcls.web.site import WRONG, PairLabels

routes = APIRouter(include_in_schema=False)
#: Photos on the first page, and photos that each click on "More" adds.
SHOWN = 30
#: Captions and similar photos on the page of a photo.
_CAPTIONS, _SIMILAR = 8, 12
#: In the compare view: results that are shown, and results among which the correct one is searched.
_COMPARED, _DEPTH = 10, 100
_FILTERS = ("after", "before", "under", "words")
Fitting = Annotated[bool, Query()]


@routes.get("/")
def search_page(
    request: Request, site: SiteOf, filters: Filters, q: str = "", k: Results = SHOWN, fitting: Fitting = False
) -> Response:
    """The search page, with results if the address has a query."""
    catalog = site.service.index.catalog
    values: dict[str, Any] = {"q": q, "fitting": fitting, "filters": _filter_texts(request), "found": None}
    values |= {"photos": catalog.count(), "captions": catalog.count("captions")}
    if q.strip():
        values["found"] = _results(request, site.service.search(q, k, filters), k, fitting, q)
    return render(request, "search.html", values)


@routes.get("/results")
def results(
    request: Request, site: SiteOf, filters: Filters, q: str = "", k: Results = SHOWN, fitting: Fitting = False
) -> Response:
    """Results for a text, as a page fragment; an empty query has none."""
    if not q.strip():
        return render(request, "_results.html", {"found": None}, headers={"HX-Replace-Url": "/"})
    values = {"found": _results(request, site.service.search(q, k, filters), k, fitting, q)}
    return render(request, "_results.html", values, headers={"HX-Replace-Url": "/?" + _address(request, q, fitting)})


@routes.post("/results")
def results_for_image(
    request: Request, site: SiteOf, image: Upload, filters: Filters, k: Results = SHOWN, fitting: Fitting = False
) -> Response:
    """Results for an image, as a page fragment."""
    with uploaded(site, image) as decoded:
        found = site.service.search_image(decoded, k, filters)
    return render(request, "_results.html", {"found": _results(request, found, k, fitting, None)})


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
    expected = site.settings.token
    if expected is None:
        raise ProblemError(404, "this server has no token: open / instead")
    if not is_token(expected, token.strip()):
        return render(request, "login.html", {"wrong": True}, status=401)
    response = RedirectResponse("/", 303)
    secure = request.scope["scheme"] == "https"
    value = create_login(expected, time.time())
    response.set_cookie(COOKIE, value, max_age=LOGIN_SECONDS, httponly=True, samesite="strict", secure=secure)
    return response


@routes.post("/logout")
async def logout() -> Response:
    """Delete the login cookie."""
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


def _results(request: Request, found: SearchResult[Hit], k: int, fitting: bool, q: str | None) -> dict[str, Any]:
    """Variables of the template for results; ``q`` is ``None`` for an image, whose results have no "More"."""
    hits = [hit for hit in found.hits if hit.fits or not fitting]
    if not found.hits:
        note = "No photo passes the filters."
    elif not found.fits:
        note = "No relevant photo." if fitting else "No relevant photo; these are the nearest."
    else:
        note = f"{len(hits)} photo{'s' * (len(hits) != 1)}, best first."
    if found.reranked:
        note += f" The first {found.reranked} were reranked by cross attention."
    more = None
    if q is not None and len(hits) == k < 10 * SHOWN:
        more = f"/results?{_address(request, q, fitting)}&k={k + SHOWN}"
    return {"hits": hits, "note": note, "more": more}


def _filter_texts(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "") for name in _FILTERS}


def _address(request: Request, q: str, fitting: bool) -> str:
    given = {name: value for name, value in _filter_texts(request).items() if value}
    return urlencode({"q": q, **given, **({"fitting": "true"} if fitting else {})}, errors="replace")


@dataclass(frozen=True)
class ComparedHit:
    """A result in the compare view.

    Attributes:
        hit: The photo or caption.
        label: Pseudo label of the pair, if there are captions and an encoder.
        truth: Whether it belongs to the query.
        photo: Number of its photo in the first index, which thumbnails come from; ``None`` if it is not there.
    """

    hit: Hit | CaptionHit
    label: float | None
    truth: bool
    photo: int | None

    @property
    def wrong(self) -> bool:
        """Whether the pseudo label marks it as wrong."""
        return not self.truth and self.label is not None and self.label < WRONG


@dataclass(frozen=True)
class Column:
    """The results of one model.

    Attributes:
        name: The model's name.
        results: The first results.
        rank: Rank of the first correct result, from 1; ``None`` if none was found.
        depth: Number of results that were searched for it.
    """

    name: str
    results: list[ComparedHit]
    rank: int | None
    depth: int


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
        values["columns"] = [_caption_column(site.service, one, site.labels, info) for one in both]
    elif q.strip():
        values["columns"] = [_photo_column(site.service, one, site.labels, q) for one in both]
    return render(request, "_compare.html" if is_fragment(request) else "compare.html", values)


def _photo_column(first: Service, service: Service, labels: PairLabels | None, query: str) -> Column:
    """Photos for a text; those with the text as a caption are correct."""
    hits = service.search(query, _depth(service)).hits
    truths = [any(_normalized(caption) == _normalized(query) for caption in hit.captions) for hit in hits]
    numbers = [hit.number if service is first else first.number_of(hit.name) for hit in hits[:_COMPARED]]
    return _column(service, hits, truths, numbers, labels, [(hit.captions, query) for hit in hits[:_COMPARED]])


def _caption_column(first: Service, service: Service, labels: PairLabels | None, photo: PhotoInfo) -> Column:
    """Captions for a photo; its own are correct."""
    number = photo.number if service is first else service.number_of(photo.name)
    if number is None:
        raise ProblemError(404, f"{photo.name} is not in the second index: index the same photos with both models")
    hits = service.captions_for(number, _depth(service)).hits
    truths = [hit.number == number for hit in hits]
    pairs = [(photo.captions, hit.text) for hit in hits[:_COMPARED]]
    return _column(service, hits, truths, [photo.number] * len(pairs), labels, pairs)


def _column(
    service: Service,
    hits: Sequence[Hit | CaptionHit],
    truths: list[bool],
    numbers: Sequence[int | None],
    labels: PairLabels | None,
    pairs: Sequence[tuple[Sequence[str], str]],
) -> Column:
    found = [None] * len(pairs) if labels is None else labels.of(pairs)
    shown = zip(hits[: len(pairs)], found, truths[: len(pairs)], numbers, strict=True)
    rank = truths.index(True) + 1 if True in truths else None
    return Column(_model_name(service), [ComparedHit(*one) for one in shown], rank, len(hits))


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
