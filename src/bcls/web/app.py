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
from bcls.web.responses import http_error, problem_response
from bcls.web.runs import routes as run_routes
from bcls.web.security import SecurityMiddleware
from bcls.web.site import Site


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
    for middleware in (LoadLimiter, SecurityMiddleware):
        app.add_middleware(middleware, site=site)
    for kind in (OverloadedError, ValueError, OSError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _handle_error)
    return app


async def _handle_error(request: Request, error: Exception) -> Response:
    return problem_response(request, http_error(error))
