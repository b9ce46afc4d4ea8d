"""Puts the web app together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException

import bcls
from bcls.web import api, compare, pages, runs
from bcls.web.gate import Gate
from bcls.web.guard import Guard
from bcls.web.outer import Outer
from bcls.web.problem import ProblemError, answer
from bcls.web.site import Site


def create_app(site: Site) -> FastAPI:
    """Make the ASGI app of a site.

    The app closes the site's services when it ends.

    Args:
        site: Index, limits, and what else there is to show.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        # A thread for each request that the gate lets in: nothing waits where nobody counts it.
        anyio.to_thread.current_default_thread_limiter().total_tokens = site.settings.at_once
        yield
        site.close()

    app = FastAPI(
        title="bcls",
        version=bcls.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        # Redirects would be put together from the Host header.
        redirect_slashes=False,
        lifespan=life,
    )
    app.state.site = site
    for part in (api, pages, compare, runs):
        app.include_router(part.routes)
    # The last one added is the first one a request meets.
    for layer in (Gate, Guard, Outer):
        app.add_middleware(layer, site=site)
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _unexpected)
    app.openapi = lambda: _description(app)  # type: ignore[method-assign]
    return app


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)  # noqa: S101 - for the type checker
    return answer(request, error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - for the type checker
    first = error.errors()[0]
    where = str(first["loc"][-1])
    if where == "image":
        expected = "a picture file in a form (multipart/form-data) with the field `image`"
        return answer(request, ProblemError(422, f"`image`: expected {expected}; see /about/api"))
    message = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    got = "" if first["type"] == "missing" else f", got {str(first['input'])[:50]!r}"
    return answer(request, ProblemError(422, f"`{where}`: {message}{got}; see /about/api"))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - for the type checker
    details = {
        404: "there is nothing at this address: see / for the search and /about/api for the API",
        405: "this address cannot be used like that: see /about/api",
    }
    return answer(request, ProblemError(error.status_code, details.get(error.status_code, error.detail)), error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    return answer(request, ProblemError(500, f"an error in the server ({type(error).__name__}): see its output"))


def _description(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description, with problems under their own media type."""
    if app.openapi_schema is None:
        about = "Finds photos of an index by text or by picture. Errors are problems as in RFC 9457."
        found = get_openapi(title=app.title, version=app.version, description=about, routes=app.routes)
        for path in found["paths"].values():
            for operation in path.values():
                for status, response in operation["responses"].items():
                    if status >= "400" and "application/json" in response.get("content", {}):
                        response["content"] = {"application/problem+json": response["content"]["application/json"]}
        app.openapi_schema = found
    return app.openapi_schema
