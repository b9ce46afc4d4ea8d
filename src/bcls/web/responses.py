"""Responses: HTML from templates, problem details (RFC 9457) for errors, and static files."""

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import bcls
from bcls.reports.html import template_environment
from bcls.search.batcher import OverloadedError
from bcls.search.engine import IndexUnavailableError
from bcls.search.service import UnknownPhotoError, unreadable

_PACKAGE = __name__.rpartition(".")[0]
#: Media types of static files, by extension.
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".txt": "text/plain", ".svg": "image/svg+xml"}

#: Details of the errors of the framework.
_DETAILS = {
    "Not Found": "there is nothing at this address: see / for the search and /about/api for the API",
    "Method Not Allowed": "this address does not support the method: see /about/api",
}


def retry_error(status: int, detail: str, seconds: int) -> HTTPException:
    """An error with the number of seconds after which to try again."""
    return HTTPException(status, detail, {"Retry-After": str(seconds)})


def http_error(error: Exception) -> HTTPException:
    """The HTTP error for an exception of the framework or of the search service.

    Its detail states what is wrong and what to do, in one sentence.

    Example:
        >>> http_error(ValueError("`text`: expected some words, got ''; describe the photo")).status_code
        422
        >>> http_error(OverloadedError(3)).headers
        {'Retry-After': '3'}
    """
    match error:
        case HTTPException():
            return HTTPException(error.status_code, _DETAILS.get(error.detail, error.detail), error.headers)
        case RequestValidationError():
            return HTTPException(422, f"{_invalid_part(error)}; see /about/api")
        case OverloadedError():
            return retry_error(503, str(error), error.retry_after)
        case IndexUnavailableError():
            return retry_error(503, str(error), 60)
        case UnknownPhotoError():
            return HTTPException(404, str(error))
        case ValueError():
            # The service calls the query `text`, a request calls it `q`.
            return HTTPException(422, str(error).replace("`text`", "`q`", 1))
        case OSError():
            return retry_error(503, unreadable(error), 60)
    return HTTPException(500, f"an error in the server ({type(error).__name__}): see its output")


def _invalid_part(error: RequestValidationError) -> str:
    first = error.errors()[0]
    where = str(first["loc"][-1])
    if where == "image":
        return "`image`: expected an image file in a form (multipart/form-data) with the field `image`"
    got = "" if first["type"] == "missing" else f", got {str(first['input'])[:50]!r}"
    return f"`{where}`: {first['msg'][:1].lower()}{first['msg'][1:]}{got}"


@contextmanager
def missing_file(name: str) -> Iterator[None]:
    """Turn the errors of reading a photo's file into a 404.

    Raises:
        HTTPException: 404, the file is missing or damaged.
    """
    try:
        yield
    except (IndexUnavailableError, UnknownPhotoError):
        raise
    except (OSError, ValueError) as error:
        reason = (error.strerror or "not found") if isinstance(error, OSError) else str(error)
        detail = f"{name}: the photo is in the index, but its file is missing or cannot be read ({reason})"
        raise HTTPException(404, f"{detail}: restore it, or run `bcls index` again") from error


def problem_response(request: Request, error: HTTPException) -> Response:
    """The response for an error: JSON (RFC 9457), or a page or page fragment for browsers."""
    status = error.status_code
    body = {"title": HTTPStatus(status).phrase, "status": status, "detail": error.detail}
    if wants_page(request):
        template = "_problem.html" if is_fragment(request) else "problem.html"
        return render(request, template, body, status=status, headers=error.headers)
    return JSONResponse({"type": "about:blank", **body}, status, error.headers, "application/problem+json")


def wants_page(request: Request) -> bool:
    """Whether the client is a browser that displays the response."""
    path: str = request.scope["path"]
    if path.startswith("/api/") or path in {"/healthz", "/metrics"}:
        return False
    return is_fragment(request) or "text/html" in request.headers.get("accept", "")


def is_fragment(request: Request) -> bool:
    """Whether the script of the page inserts the response into it."""
    return "x-fragment" in request.headers


def compressed(request: Request, content: bytes, headers: Mapping[str, str], status: int = 200) -> Response:
    """A response that is compressed if the client accepts that."""
    extra = {**headers, "Vary": "Accept-Encoding, X-Fragment"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        content, extra["Content-Encoding"] = gzip.compress(content, 6, mtime=0), "gzip"
    return Response(content, status, extra)


def render(
    request: Request,
    template: str,
    values: Mapping[str, Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Render a page or a page fragment; every value is escaped.

    Args:
        request: The request, whose app's site determines which views exist.
        template: Name of the template.
        values: Variables of the template.
        status: The HTTP status.
        headers: Additional headers.
    """
    site = request.app.state.site
    shared = {
        "path": request.scope["path"],
        "has_compare": site.other is not None,
        "has_runs": site.runs is not None,
        "has_token": site.settings.token is not None,
        "max_upload": site.settings.max_upload,
    }
    text = _templates().get_template(template).render({**shared, **values})
    # Photos are private.
    fixed = {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "private, no-store"}
    return compressed(request, text.encode(), {**fixed, **(headers or {})}, status)


@cache
def _templates() -> Any:
    environment = template_environment(_PACKAGE)
    environment.filters["day"] = lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
    environment.filters["percent"] = _percent
    environment.filters["metric"] = _metric
    environment.globals["static"] = _static_address
    environment.globals["version"] = bcls.__version__
    return environment


def _percent(score: float) -> str:
    """A score as pages show it; no photo is certain.

    Example:
        >>> _percent(0.42), _percent(0.9999)
        ('42%', '>99%')
    """
    return ">99%" if 0.995 <= score < 1 else f"{100 * score:.0f}%"


def _metric(value: object, key: str) -> str:
    """A metric of a training run as tables show it.

    Example:
        >>> _metric(318.64, "rsum"), _metric(0.35712, "i2t_tau_a"), _metric(None, "rsum")
        ('318.6', '0.357', '–')
    """
    if not isinstance(value, int | float):
        return "–"
    return f"{value:.3f}" if "tau" in key or "loss" in key else f"{value:.1f}"


@cache
def static_files() -> dict[str, bytes]:
    """All static files by name, read once; requests never access the disk."""
    files = resources.files(_PACKAGE).joinpath("static").iterdir()
    return {file.name: file.read_bytes() for file in files if PurePosixPath(file.name).suffix in MEDIA_TYPES}


@cache
def _static_address(name: str) -> str:
    """Address of a static file, with a version that changes with its contents."""
    return f"/static/{name}?v={hashlib.sha256(static_files()[name]).hexdigest()[:12]}"
