"""Answers for what went wrong: JSON (RFC 9457) for programs, a page or a part of one for people."""

from collections.abc import Mapping
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bcls.web.rendering import html


class ProblemError(Exception):
    """A request that is answered with a problem.

    Args:
        status: The HTTP status.
        detail: What is wrong and what to do, one sentence.
        retry_after: Seconds after which it is worth trying again.
    """

    def __init__(self, status: int, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.retry_after = status, detail, retry_after


def answer(request: Request, problem: ProblemError, headers: Mapping[str, str] | None = None) -> Response:
    """The answer for a problem, in the form that the request asks for."""
    extra = dict(headers or {})
    if problem.retry_after is not None:
        extra["Retry-After"] = str(problem.retry_after)
    title = HTTPStatus(problem.status).phrase
    if wants_page(request):
        values = {"title": title, "status": problem.status, "detail": problem.detail}
        template = "_problem.html" if is_part(request) else "problem.html"
        return html(request, template, values, status=problem.status, headers=extra)
    body = {"type": "about:blank", "title": title, "status": problem.status, "detail": problem.detail}
    return JSONResponse(body, problem.status, extra, media_type="application/problem+json")


def wants_page(request: Request) -> bool:
    """Whether a person looks at the answer."""
    path: str = request.scope["path"]
    if path.startswith("/api/") or path in {"/healthz", "/metrics"}:
        return False
    return is_part(request) or "text/html" in request.headers.get("accept", "")


def is_part(request: Request) -> bool:
    """Whether the answer is put into a page that is already there."""
    return request.headers.get("hx-request") == "true"
