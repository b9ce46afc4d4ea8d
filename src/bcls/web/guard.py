"""Who may ask: names of this machine, no other site, and those who know the token."""

import hashlib
import hmac
import time

from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from bcls.web.problem import ProblemError, answer, is_part, wants_page
from bcls.web.site import Site

COOKIE = "bcls"
#: Seconds that a login lasts.
LASTS = 30 * 24 * 3600
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})
#: What is open to those without the token: whether the app lives, and what the login page needs.
_OPEN = ("/healthz", "/login", "/static/")


class Guard:
    """Middleware that lets a request pass or answers why it does not.

    Args:
        app: What comes next.
        site: Has the token.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app, self._settings = app, site.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        problem = self._problem(request)
        if problem is None:
            await self._app(scope, receive, send)
        elif problem.status == 401 and wants_page(request) and not is_part(request):
            await RedirectResponse("/login", 303)(scope, receive, send)
        else:
            headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
            await answer(request, problem, headers)(scope, receive, send)

    def _problem(self, request: Request) -> ProblemError | None:
        # The path of the scope, never of `request.url`: that is put together with the Host header, which anybody can
        # write a path into.
        if not self._settings.any_host and _name(request.headers.get("host", "")) not in _HERE:
            detail = "this server answers to localhost and 127.0.0.1 only: use one of these addresses"
            return ProblemError(421, detail)
        fetched = request.headers.get("sec-fetch-site") == "cross-site"
        if fetched and (request.headers.get("sec-fetch-mode") != "navigate" or request.method != "GET"):
            return ProblemError(403, "another site asked for this: open the app itself")
        token = self._settings.token
        if token is not None and not request.scope["path"].startswith(_OPEN) and not _knows(request, token):
            detail = "the token is missing or wrong: send it as `Authorization: Bearer TOKEN`, or log in at /login"
            return ProblemError(401, detail)
        return None


def _knows(request: Request, token: str) -> bool:
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and is_token(token, given.strip()):
        return True
    return is_login(token, request.cookies.get(COOKIE, ""), time.time())


def is_token(token: str, given: str) -> bool:
    """Whether the token is the right one, in a time that tells nothing about it.

    Example:
        >>> is_token("a secret of the house", "a secret of the house"), is_token("a secret of the house", "")
        (True, False)
    """
    return hmac.compare_digest(token.encode(), given.encode(errors="replace"))


def login_of(token: str, now: float) -> str:
    """Value of the cookie of a login: when it ends, and a signature that only the token makes."""
    ends = str(int(now) + LASTS)
    return f"{ends}.{_signature(token, ends)}"


def is_login(token: str, value: str, now: float) -> bool:
    """Whether a cookie is one of ours and its time is not over.

    Example:
        >>> value = login_of("a secret of the house", now=0)
        >>> is_login("a secret of the house", value, now=60), is_login("another secret, longer", value, now=60)
        (True, False)
        >>> is_login("a secret of the house", value, now=LASTS + 1)
        False
    """
    ends, _, signature = value.partition(".")
    right = hmac.compare_digest(_signature(token, ends).encode(), signature.encode(errors="replace"))
    return right and ends.isdecimal() and now < int(ends)


def _signature(token: str, ends: str) -> str:
    return hmac.new(token.encode(), f"bcls login until {ends}".encode(errors="replace"), hashlib.sha256).hexdigest()


def _name(host: str) -> str:
    """The name in a Host header, without the port.

    Example:
        >>> _name("127.0.0.1:8000"), _name("[::1]:8000"), _name("evil.example:80")
        ('127.0.0.1', '::1', 'evil.example')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
