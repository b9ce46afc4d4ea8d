"""The JSON API."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Query, Request, Response, UploadFile
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from bcls.data.images import FORMATS
from bcls.search.engine import Where
from bcls.search.service import Answer, CaptionAnswer
from bcls.web.asked import asked, photo_of, picture, shown
from bcls.web.facts import facts_of
from bcls.web.schema import FoundCaptions, FoundPhotos, Health, Number, PhotoFacts, Results, Text, limits, problems
from bcls.web.site import Site
from bcls.web.thumbnails import LARGE, SMALL

routes = APIRouter()
Limits = Annotated[Where, Depends(limits)]
Upload = Annotated[UploadFile, File(description="A picture: JPEG, PNG, WebP, GIF, BMP or TIFF.")]
_PICTURE: Mapping[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}, "description": "The picture."}}
#: Bytes of a file that are sent at a time, no more than the server buffers for a client that does not read.
_PART = 2**16
_KINDS = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif", "BMP": "image/bmp"}


def site_of(request: Request) -> Site:
    """The parts of the app that a request came to."""
    site: Site = request.app.state.site
    return site


@routes.get("/healthz", response_model=Health, tags=["server"], responses=problems())
async def healthz() -> Health:
    """Whether the server lives; needs no token."""
    return Health()


@routes.get(
    "/metrics", tags=["server"], response_class=Response, responses={**problems(), 200: {"content": {"text/plain": {}}}}
)
async def metrics(request: Request) -> Response:
    """Counts and times for Prometheus."""
    site = site_of(request)
    values = {f"{name}_total": ("counter", float(value)) for name, value in site.service.counts().items()}
    return Response(site.metrics.text(values), media_type="text/plain; version=0.0.4; charset=utf-8")


@routes.get("/api/search", response_model=FoundPhotos, tags=["search"], responses=problems(422))
def search(request: Request, q: Text, limits: Limits, k: Results = 10) -> JSONResponse:
    """Find photos for a text."""
    with asked():
        return _json(site_of(request).service.search(q, k, limits))


@routes.post("/api/search", response_model=FoundPhotos, tags=["search"], responses=problems(400, 408, 413, 415, 422))
def search_image(request: Request, image: Upload, limits: Limits, k: Results = 10) -> JSONResponse:
    """Find photos like a picture, sent as the field "image" of a form (multipart/form-data)."""
    site = site_of(request)
    with site.turn(), asked():
        return _json(site.service.search_image(picture(image.file.read(), site.settings.max_pixels), k, limits))


@routes.post(
    "/api/captions", response_model=FoundCaptions, tags=["search"], responses=problems(400, 408, 413, 415, 422)
)
def captions_for_image(request: Request, image: Upload, limits: Limits, k: Results = 10) -> JSONResponse:
    """Find captions of the index that describe a picture."""
    site = site_of(request)
    with site.turn(), asked():
        return _json(site.service.captions_for_image(picture(image.file.read(), site.settings.max_pixels), k, limits))


@routes.get("/api/photos/{number}", response_model=PhotoFacts, tags=["photos"], responses=problems(404, 422))
def photo(request: Request, number: Number) -> dict[str, Any]:
    """What is known about a photo."""
    service = site_of(request).service
    known = photo_of(service, number)
    with asked():
        return facts_of(service, known).as_json()


@routes.get(
    "/api/photos/{number}/captions", response_model=FoundCaptions, tags=["photos"], responses=problems(404, 422)
)
def captions(request: Request, number: Number, limits: Limits, k: Results = 10) -> JSONResponse:
    """Find captions of the index that describe a photo; its own are among them."""
    service = site_of(request).service
    photo_of(service, number)
    with asked():
        return _json(service.captions_for(number, k, limits))


@routes.get("/api/photos/{number}/similar", response_model=FoundPhotos, tags=["photos"], responses=problems(404, 422))
def similar(request: Request, number: Number, limits: Limits, k: Results = 10) -> JSONResponse:
    """Find more photos like one of the index."""
    service = site_of(request).service
    photo_of(service, number)
    with asked():
        return _json(service.more_like(number, k, limits))


@routes.get(
    "/api/photos/{number}/thumbnail",
    tags=["photos"],
    response_class=Response,
    responses={**problems(404, 422), **_PICTURE},
)
def thumbnail(
    request: Request,
    number: Number,
    size: Annotated[str, Query(pattern="^(small|large)$", description="small: 320 pixels, large: 1280.")] = "small",
) -> Response:
    """A photo in small, as a JPEG file."""
    site = site_of(request)
    known = photo_of(site.service, number)
    headers = _tagged(f"{known.facts.sha256}-{size}")
    if _has(request, headers):
        return Response(status_code=304, headers=headers)
    with shown(known.facts.name):
        content = site.thumbnails.jpeg(number, SMALL if size == "small" else LARGE)
    return Response(content, media_type="image/jpeg", headers=headers)


@routes.get(
    "/api/photos/{number}/file",
    tags=["photos"],
    response_class=Response,
    responses={**problems(404, 422), 200: {"content": {"image/*": {}}, "description": "The file."}},
)
def file(request: Request, number: Number) -> Response:
    """A photo's own file, as it lies on the disk."""
    service = site_of(request).service
    known = photo_of(service, number)
    headers = _tagged(known.facts.sha256)
    if _has(request, headers):
        return Response(status_code=304, headers=headers)
    with shown(known.facts.name):
        content = service.read_photo(number)
        kind = _kind(content)
    if kind is None:
        headers["Content-Disposition"] = "attachment"
    return _InParts(content, media_type=kind or "image/tiff", headers=headers)


class _InParts(Response):
    """An answer that is sent no faster than the client reads, so that the limits of the gate hold for it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(self.body), _PART):
            await send({"type": "http.response.body", "body": self.body[start : start + _PART], "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _tagged(tag: str) -> dict[str, str]:
    """Headers of a picture: browsers keep it, and ask each time whether it is still that one.

    A number means one picture in one index alone, and another index may be served at the same address tomorrow.
    """
    return {"Cache-Control": "private, no-cache", "ETag": f'"{tag}"'}


def _has(request: Request, headers: Mapping[str, str]) -> bool:
    return headers["ETag"] in request.headers.get("if-none-match", "")


def _kind(content: bytes) -> str | None:
    """The media type of a picture that browsers show, by what is in the file and not by its name."""
    import io

    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            return _KINDS.get(opened.format or "")
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ValueError("it is no picture any more") from error


def _json(found: Answer | CaptionAnswer) -> JSONResponse:
    """An answer as it goes out; the values are ours, and checking them once more would take as long as the search."""
    rows = [hit.as_json() for hit in found.hits]
    return JSONResponse({"results": rows, "fits": found.fits, "reranked": found.reranked})
