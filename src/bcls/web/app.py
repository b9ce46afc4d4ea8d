"""The ASGI app: routes, middleware and error handlers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import bcls
from bcls.search.batcher import OverloadedError
from bcls.web.api import routes as api_routes
from bcls.web.limiter import LoadLimiter
from bcls.web.pages import routes as page_routes
from bcls.web.responses import ProblemError, http_error, problem_response
from bcls.web.runs import routes as run_routes
from bcls.web.security import AuthMiddleware, SecurityHeadersMiddleware
from bcls.web.site import Site

_DETAILS = {
    404: "there is nothing at this address: see / for the search and /about/api for the API",
    405: "this address does not support the method: see /about/api",
}


def create_app(site: Site) -> FastAPI:
    """Create the ASGI app of a site.

    The app closes the site's services when it ends.

    Args:
        site: Index, limits, and what else to show.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # One thread per request that the limiter accepts, so that no request waits for a thread.
        anyio.to_thread.current_default_thread_limiter().total_tokens = site.settings.at_once
        yield
        site.close()

    app = FastAPI(
        title="bcls",
        description="Finds photos of an index by text or by image. Errors are problem details as in RFC 9457.",
        version=bcls.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        # Redirects would contain the Host header.
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.site = site
    for routes in (api_routes, page_routes, run_routes):
        app.include_router(routes)
    # The last one added handles a request first.
    for middleware in (LoadLimiter, AuthMiddleware, SecurityHeadersMiddleware):
        app.add_middleware(middleware, site=site)
    for kind in (ProblemError, OverloadedError, ValueError, OSError, Exception):
        app.add_exception_handler(kind, _service_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_exception)
    return app


async def _service_error(request: Request, error: Exception) -> Response:
    return problem_response(request, http_error(error))


async def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - for the type checker
    first = error.errors()[0]
    where = str(first["loc"][-1])
    if where == "image":
        expected = "an image file in a form (multipart/form-data) with the field `image`"
        return problem_response(request, ProblemError(422, f"`image`: expected {expected}; see /about/api"))
    message = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    got = "" if first["type"] == "missing" else f", got {str(first['input'])[:50]!r}"
    return problem_response(request, ProblemError(422, f"`{where}`: {message}{got}; see /about/api"))


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - for the type checker
    problem = ProblemError(error.status_code, _DETAILS.get(error.status_code, error.detail))
    return problem_response(request, problem, error.headers)
