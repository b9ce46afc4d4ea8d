"""The JSON API: its routes, parameters and response models."""

import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, File, Path, Query, Request, Response, UploadFile
from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from bcls.data.images import FORMATS, decode, open_image
from bcls.search.engine import SearchFilter, parse_filter
from bcls.search.service import MAX_RESULTS, MAX_TEXT, SearchResult
from bcls.web.responses import missing_file
from bcls.web.site import Site

routes = APIRouter()
#: Longer sides of thumbnails: in grids, and of a single photo.
_SIDES = {"small": 320, "large": 1280}
#: Bytes of a file that are sent at a time, at most what the server buffers for a client that does not read.
CHUNK = 2**16
#: Formats that browsers display; others are downloaded. JPEG includes MPO, which has more images after the first.
_DISPLAYED = [name for name in FORMATS if name in {"JPEG", "PNG", "WEBP", "GIF", "BMP", "AVIF"}]
#: Parameters that requests with an image have in their address.
_PARAMETERS = ("q", "k", "sort", "after", "before", "under", "words")
#: Maximum length of the text of a filter.
_FILTER_TEXT = 200


class PhotoModel(BaseModel):
    """What the index contains about a photo."""

    number: int = Field(description="Its number in the index.")
    name: str = Field(description="Its name below the photo folder.")
    path: str = Field(description="Path of its file; in an archive, the archive's path and the name inside.")
    date: str
    date_from: Literal["camera", "file"]
    captions: list[str]
    place: list[float] | None = Field(None, description="Latitude and longitude, if the camera recorded them.")


class FoundPhoto(PhotoModel):
    """A photo that was found."""

    score: float = Field(description="Between 0 and 1; `fits` states whether it reaches the threshold of the model.")
    similarity: float | None = Field(description="Similarity by the model, on its own scale.")
    fits: bool


class FoundPhotos(BaseModel):
    """Photos in the order of `sort`."""

    results: list[FoundPhoto]
    fits: bool = Field(description="Whether any photo is relevant.")
    reranked: int = Field(description="Number of results that were reranked by cross attention.")


class FoundCaption(BaseModel):
    """A caption that was found, with its photo."""

    text: str
    score: float
    similarity: float
    fits: bool
    path: str
    name: str
    number: int = Field(description="Number of its photo.")


class FoundCaptions(BaseModel):
    """Captions, best first."""

    results: list[FoundCaption]
    fits: bool
    reranked: int


class Health(BaseModel):
    """State of the server."""

    status: Literal["ok"] = "ok"


class Problem(BaseModel):
    """An error, as in RFC 9457."""

    type: str
    title: str
    status: int
    detail: str = Field(description="What is wrong and what to do.")


async def get_site(request: Request) -> Site:
    """The site of the app."""
    site: Site = request.app.state.site
    return site


async def get_filters(
    after: Annotated[str, Query(max_length=_FILTER_TEXT, description="Earliest date, such as 2024-05.")] = "",
    before: Annotated[str, Query(max_length=_FILTER_TEXT, description="Latest date, exclusive.")] = "",
    under: Annotated[str, Query(max_length=_FILTER_TEXT, description="Prefix of the name.")] = "",
    words: Annotated[str, Query(max_length=_FILTER_TEXT, description="Words that captions must contain.")] = "",
) -> SearchFilter:
    """The filters of a request."""
    return parse_filter(after, before, under, words)


async def get_upload(
    request: Request, image: Annotated[UploadFile, File(description="JPEG, PNG, WebP, GIF, BMP or TIFF.")]
) -> UploadFile:
    """The image of a request.

    Raises:
        HTTPException: 422, the form has a parameter that would be ignored there.
    """
    for name in await request.form():
        if name in _PARAMETERS:
            detail = f"`{name}`: expected in the address, as in /api/search?q=a+dog&k=5, got a field of the form"
            raise HTTPException(422, detail)
    return image


SiteOf = Annotated[Site, Depends(get_site)]
Filters = Annotated[SearchFilter, Depends(get_filters)]
Upload = Annotated[UploadFile, Depends(get_upload)]
Text = Annotated[
    str,
    Query(
        description="What the photos should show.",
        json_schema_extra={"minLength": 1, "maxLength": MAX_TEXT},
        examples=["a dog on the beach"],
    ),
]
Results = Annotated[int, Query(ge=1, le=MAX_RESULTS, description="Number of results.")]
Sort = Annotated[Literal["score", "date"], Query(description="Best first, or the newest first of those that fit.")]
Number = Annotated[int, Path(ge=1, le=2**63 - 1, description="Number of a photo, from a search.")]


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error responses of a route; every route may return 401, 403, 421, 429 and 503."""
    content = {"application/problem+json": {"schema": Problem.model_json_schema()}}
    return {status: {"content": content} for status in sorted({*statuses, 401, 403, 421, 429, 503})}


_UPLOAD = _problems(400, 408, 413, 415, 422)
_PHOTO = _problems(404, 422)
_METRICS = {**_problems(), 200: {"content": {"text/plain": {}}}}
_THUMBNAIL = {**_PHOTO, 200: {"content": {"image/jpeg": {}}, "description": "The thumbnail."}}
_FILE = {
    **_problems(404, 416, 422),
    206: {"description": "Part of the file."},
    200: {"content": {"image/*": {}}, "description": "The file."},
}


@routes.get("/healthz", tags=["server"], responses=_problems())
async def healthz() -> Health:
    """Whether the server is up; needs no token."""
    return Health()


@routes.get("/metrics", tags=["server"], response_class=Response, responses=_METRICS)
async def metrics(site: SiteOf) -> Response:
    """Metrics in the text format of Prometheus."""
    return Response(site.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@routes.get("/api/search", response_model=FoundPhotos, tags=["search"], responses=_problems(422))
def search(site: SiteOf, q: Text, filters: Filters, k: Results = 10, sort: Sort = "score") -> JSONResponse:
    """Find photos for a text."""
    return _json(site.service.search(q, k, filters, sort=sort))


@routes.post("/api/search", response_model=FoundPhotos, tags=["search"], responses=_UPLOAD)
def search_image(
    site: SiteOf,
    image: Upload,
    filters: Filters,
    q: Annotated[str, Query(description="A text that is combined with the image.")] = "",
    k: Results = 10,
    sort: Sort = "score",
) -> JSONResponse:
    """Find photos that are similar to an image, sent as the field "image" of a form (multipart/form-data)."""
    with uploaded(site, image) as decoded:
        return _json(site.service.search(q.strip() or None, k, filters, image=decoded, sort=sort))


@routes.post("/api/captions", response_model=FoundCaptions, tags=["search"], responses=_UPLOAD)
def captions_for_image(site: SiteOf, image: Upload, filters: Filters, k: Results = 10) -> JSONResponse:
    """Find captions of the index that describe an image."""
    with uploaded(site, image) as decoded:
        return _json(site.service.captions_for_image(decoded, k, filters))


@routes.get("/api/photos/{number}", response_model=PhotoModel, tags=["photos"], responses=_PHOTO)
def photo(site: SiteOf, number: Number) -> dict[str, Any]:
    """What the index contains about a photo."""
    return site.service.describe(number).as_json()


@routes.get("/api/photos/{number}/captions", response_model=FoundCaptions, tags=["photos"], responses=_PHOTO)
def captions(site: SiteOf, number: Number, filters: Filters, k: Results = 10) -> JSONResponse:
    """Find captions of the index that describe a photo, including its own."""
    return _json(site.service.captions_for(number, k, filters))


@routes.get("/api/photos/{number}/similar", response_model=FoundPhotos, tags=["photos"], responses=_PHOTO)
def similar(site: SiteOf, number: Number, filters: Filters, k: Results = 10, sort: Sort = "score") -> JSONResponse:
    """Find photos that are similar to one of the index."""
    return _json(site.service.more_like(number, k, filters, sort=sort))


@routes.get("/api/photos/{number}/thumbnail", tags=["photos"], response_class=Response, responses=_THUMBNAIL)
def thumbnail(
    request: Request,
    site: SiteOf,
    number: Number,
    size: Annotated[str, Query(pattern="^(small|large)$", description="small: 320 pixels, large: 1280.")] = "small",
) -> Response:
    """A small version of a photo, as a JPEG file."""
    with missing_file(site.service.photo(number).name):
        content = site.thumbnails.jpeg(number, _SIDES[size])
    return _image(request, content, {"Content-Type": "image/jpeg"})


@routes.get("/api/photos/{number}/file", tags=["photos"], response_class=Response, responses=_FILE)
def file(request: Request, site: SiteOf, number: Number) -> Response:
    """The unchanged file of a photo, or the part of it that a Range header names."""
    name = site.service.photo(number).name
    with missing_file(name):
        content = site.service.read_photo(number)
        media_type = _media_type(content, name)
    disposition = "inline" if media_type else "attachment"
    headers = {
        "Content-Type": media_type or "application/octet-stream",
        "Content-Disposition": f"{disposition}; filename*=utf-8''{quote(PurePosixPath(name).name, safe='')}",
    }
    return _image(request, content, headers)


@contextmanager
def uploaded(site: Site, image: UploadFile) -> Iterator[Image.Image]:
    """The decoded image of a request; few are in memory at the same time."""
    with site.upload_slot():
        yield decode_upload(image.file.read(), site.settings.max_pixels)


def decode_upload(content: bytes, max_pixels: int) -> Image.Image:
    """Decode an uploaded image.

    Args:
        content: The bytes of its file.
        max_pixels: Larger images are rejected before they are decoded.

    Raises:
        HTTPException: 415 if it is not an image or damaged, 413 if it is too large.
    """
    try:
        return decode(content, "image", max_pixels=max_pixels)
    except ValueError as error:
        problem = str(error).rpartition("; ")[0]
        if f"at most {max_pixels} pixels" in problem:
            raise HTTPException(413, f"{problem}; shrink the image") from error
        raise HTTPException(415, f"{problem}; send a JPEG, PNG, WebP, GIF, BMP or TIFF file") from error


class _ChunkedResponse(Response):
    """A response that is sent at the speed of the client, so that the time limit applies to it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(self.body), CHUNK):
            await send({"type": "http.response.body", "body": self.body[start : start + CHUNK], "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _image(request: Request, content: bytes, headers: dict[str, str]) -> Response:
    """An image that browsers cache, and revalidate with the hash of its bytes before each use."""
    tag = f'"{hashlib.sha256(content).hexdigest()}"'
    headers |= {"Cache-Control": "private, no-cache", "ETag": tag, "Accept-Ranges": "bytes"}
    known = request.headers.get("if-none-match", "")
    if tag in known or known.strip() == "*":
        return Response(status_code=304, headers=headers)
    part = _range(request.headers.get("range", ""), len(content))
    if part is None or request.headers.get("if-range", tag) != tag:
        return _ChunkedResponse(content, headers=headers)
    if not part:
        detail = f"`Range`: expected bytes below {len(content)}: request an earlier part"
        raise HTTPException(416, detail, {"Content-Range": f"bytes */{len(content)}"})
    headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{len(content)}"
    return _ChunkedResponse(content[part.start : part.stop], 206, headers)


def _range(header: str, size: int) -> range | None:
    """The bytes that a Range header requests; empty if there are none, ``None`` for the whole file.

    Several ranges in one header are not supported; then the whole file is sent, as RFC 9110 allows.

    Example:
        >>> _range("bytes=0-9", 100), _range("bytes=95-", 100), _range("bytes=-5", 100), _range("lines=1-2", 100)
        (range(0, 10), range(95, 100), range(95, 100), None)
    """
    found = re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", header)
    if found is None or header == "bytes=-" or (all(found.groups()) and int(found[1]) > int(found[2])):
        return None
    if not found[1]:
        return range(max(0, size - int(found[2])), size)
    return range(int(found[1]), min(size, int(found[2] or size) + 1))


def _media_type(content: bytes, name: str) -> str | None:
    """Media type of a file that browsers display, ``None`` for other images.

    Raises:
        ValueError: It is not an image.
    """
    with suppress(UnidentifiedImageError), Image.open(io.BytesIO(content), formats=_DISPLAYED) as opened:
        return "image/jpeg" if opened.format == "MPO" else Image.MIME[str(opened.format)]
    try:
        open_image(content, name).close()
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ValueError("it is no longer an image") from error
    return None


def _json(found: SearchResult[Any]) -> JSONResponse:
    """Results as JSON. Validating our own values again would take as long as the search."""
    rows = [hit.as_json() for hit in found.hits]
    return JSONResponse({"results": rows, "fits": found.fits, "reranked": found.reranked})
