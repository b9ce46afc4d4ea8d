"""The pages: search, one photo, the login, and the description of the API."""

import time
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request, Response
from starlette.responses import RedirectResponse

from bcls.search.service import Answer
from bcls.web.api import Limits, Upload, site_of
from bcls.web.asked import asked, photo_of, picture
from bcls.web.facts import facts_of
from bcls.web.guard import COOKIE, LASTS, is_token, login_of
from bcls.web.problem import ProblemError, is_part
from bcls.web.rendering import html, static_files
from bcls.web.schema import Number, Results

routes = APIRouter(include_in_schema=False)
#: Photos of a first page, and how many more a click brings.
SHOWN = 30
#: Closest captions and similar photos beside one photo.
_CAPTIONS, _SIMILAR = 8, 12
_FILTERS = ("after", "before", "under", "words")
Fitting = Annotated[bool, Query()]


@routes.get("/")
def search_page(
    request: Request, limits: Limits, q: str = "", k: Results = SHOWN, fitting: Fitting = False
) -> Response:
    """The search; with results where the address has a query."""
    values: dict[str, Any] = {"q": q, "fitting": fitting, "filters": _filters(request), "found": None}
    site = site_of(request)
    with asked():
        catalog = site.service.index.catalog
        values |= {"photos": catalog.count(), "captions": catalog.count("captions")}
        if q.strip():
            values["found"] = _results(site.service.search(q, k, limits), k, fitting, _more(request, q, k, fitting))
    return html(request, "search.html", values)


@routes.get("/results")
def results(request: Request, limits: Limits, q: str = "", k: Results = SHOWN, fitting: Fitting = False) -> Response:
    """Results for a text, a part of the page; nothing for nothing, so that the box may be emptied."""
    if not q.strip():
        return html(request, "_results.html", {"found": None}, headers={"HX-Replace-Url": "/"})
    with asked():
        found = site_of(request).service.search(q, k, limits)
    values = {"found": _results(found, k, fitting, _more(request, q, k, fitting))}
    return html(request, "_results.html", values, headers={"HX-Replace-Url": "/?" + _address(request, q, fitting)})


@routes.post("/results")
def results_for_image(
    request: Request, image: Upload, limits: Limits, k: Results = SHOWN, fitting: Fitting = False
) -> Response:
    """Results for a picture, a part of the page."""
    site = site_of(request)
    with site.turn(), asked():
        found = site.service.search_image(picture(image.file.read(), site.settings.max_pixels), k, limits)
    return html(request, "_results.html", {"found": _results(found, k, fitting, None)})


@routes.get("/photo/{number}")
def photo_page(request: Request, number: Number) -> Response:
    """One photo: what is known, closest captions, more like it."""
    service = site_of(request).service
    known = photo_of(service, number)
    with asked():
        facts = facts_of(service, known)
        has_captions = service.index.catalog.count("captions") > 0
        captions = service.captions_for(number, _CAPTIONS).hits if has_captions else ()
        similar = service.more_like(number, _SIMILAR).hits
    values = {"photo": facts, "captions": captions, "hits": similar}
    return html(request, "_photo.html" if is_part(request) else "photo.html", values)


@routes.get("/login")
async def login_page(request: Request) -> Response:
    """The form for the token."""
    return html(request, "login.html", {"wrong": False})


@routes.post("/login")
async def login(request: Request, token: Annotated[str, Form(max_length=1000)] = "") -> Response:
    """Set the cookie where the token is right."""
    right = site_of(request).settings.token
    if right is None:
        raise ProblemError(404, "this server has no token: open / instead")
    if not is_token(right, token.strip()):
        return html(request, "login.html", {"wrong": True}, status=401)
    answer = RedirectResponse("/", 303)
    secure = request.scope["scheme"] == "https"
    value = login_of(right, time.time())
    answer.set_cookie(COOKIE, value, max_age=LASTS, httponly=True, samesite="strict", secure=secure)
    return answer


@routes.post("/logout")
async def logout() -> Response:
    """Take the cookie back."""
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@routes.get("/about/api")
async def api_page(request: Request) -> Response:
    """The API for people; `/api/openapi.json` is the same for programs."""
    return html(request, "api.html", {"paths": request.app.openapi()["paths"]})


@routes.get("/static/{name}")
async def static_file(name: str) -> Response:
    """A file that pages load."""
    found = static_files().get(name)
    if found is None:
        raise ProblemError(404, "there is no such file: open / instead")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Content-Type": found.kind}
    return Response(found.content, headers=headers)


def _results(answer: Answer, k: int, fitting: bool, more: str | None) -> dict[str, Any]:
    hits = [hit for hit in answer.hits if hit.fits or not fitting]
    if not answer.hits:
        note = "The filters let no photo pass."
    elif not answer.fits:
        note = "Nothing fits." if fitting else "Nothing fits; these are the nearest."
    else:
        note = f"{len(hits)} photo{'s' * (len(hits) != 1)}, best first."
    if answer.reranked:
        note += f" The first {answer.reranked} were ranked again by cross attention."
    return {"hits": hits, "note": note, "more": more if len(hits) == k else None}


def _filters(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "") for name in _FILTERS}


def _address(request: Request, q: str, fitting: bool) -> str:
    given = {name: value for name, value in _filters(request).items() if value}
    return urlencode({"q": q, **given, **({"fitting": "true"} if fitting else {})}, errors="replace")


def _more(request: Request, q: str, k: int, fitting: bool) -> str | None:
    """Where more results are; not for more than a browser should hold at once."""
    return None if k >= 10 * SHOWN else f"/results?{_address(request, q, fitting)}&k={k + SHOWN}"
