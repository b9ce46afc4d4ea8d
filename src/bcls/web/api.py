"""The JSON API."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Query, Request, Response, UploadFile
from starlette.responses import JSONResponse

from bcls.data.images import FORMATS
from bcls.index import Where
from bcls.search import Answer, CaptionAnswer
from bcls.web.asked import asked, photo_of, picture, shown
from bcls.web.facts import facts_of
from bcls.web.schema import FoundCaptions, FoundPhotos, Health, Number, PhotoFacts, Results, Text, limits, problems
from bcls.web.site import Site
from bcls.web.thumbnails import LARGE, SMALL

routes = APIRouter()
Limits = Annotated[Where, Depends(limits)]
Upload = Annotated[UploadFile, File(description="A picture: JPEG, PNG, WebP, GIF, BMP or TIFF.")]
_PICTURE: Mapping[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}, "description": "The picture."}}
#: A number always means the same picture, so browsers may keep it.
_KEEP = {"Cache-Control": "private, max-age=86400, immutable"}
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
    with shown(known.facts.name):
        content = site.thumbnails.jpeg(number, SMALL if size == "small" else LARGE)
    return Response(content, media_type="image/jpeg", headers=_KEEP)


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
    with shown(known.facts.name):
        content = service.read_photo(number)
        kind = _kind(content)
    headers = _KEEP if kind else {**_KEEP, "Content-Disposition": "attachment"}
    return Response(content, media_type=kind or "image/tiff", headers=headers)


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
