"""Security middleware: response headers, host check, cross-site check, access token and login cookie."""

import hashlib
import hmac
import time

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bcls.web.responses import ProblemError, is_fragment, problem_response, wants_page
from bcls.web.site import Site

#: No inline code, no other hosts, no frames; images may also be blobs of the page itself.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
COOKIE = "bcls"
#: Seconds that a login is valid.
LOGIN_SECONDS = 30 * 24 * 3600
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
#: Paths that need no token: the health check, and what the login page loads.
_PUBLIC = ("/healthz", "/login", "/static/")


class SecurityMiddleware:
    """Adds security headers to every response, and rejects foreign Host headers, other sites, and wrong tokens.

    Starlette's TrustedHostMiddleware would answer 400 without problem details, so the host is checked here. Route,
    status and duration of every request are recorded, those of rejected ones, too.

    Args:
        app: The next ASGI app.
        site: Has the token and the metrics.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app, self._settings, self._metrics = app, site.settings, site.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started = 500, time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            answer = self._rejection(Request(scope)) or self._app
            await answer(scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.observe(route, status, time.perf_counter() - started)

    def _rejection(self, request: Request) -> Response | None:
        problem = self._problem(request)
        if problem is None:
            return None
        if problem.status != 401:
            return problem_response(request, problem)
        if wants_page(request) and not is_fragment(request):
            return RedirectResponse("/login", 303)
        return problem_response(request, problem, {"WWW-Authenticate": "Bearer"})

    def _problem(self, request: Request) -> ProblemError | None:
        if not self._settings.any_host and _host_name(request.headers.get("host", "")) not in _LOCAL_NAMES:
            return ProblemError(421, "this server accepts the hosts localhost and 127.0.0.1 only: use one of these")
        cross_site = request.headers.get("sec-fetch-site") == "cross-site"
        if cross_site and (request.headers.get("sec-fetch-mode") != "navigate" or request.method != "GET"):
            return ProblemError(403, "requests from other sites are rejected: open the app itself")
        # The path of the scope, not of `request.url`, which contains the Host header and so any path a client wants.
        token, path = self._settings.token, request.scope["path"]
        if token is not None and not path.startswith(_PUBLIC) and not _is_authorized(request, token):
            detail = "the token is missing or wrong: send it as `Authorization: Bearer TOKEN`, or log in at /login"
            return ProblemError(401, detail)
        return None


def _is_authorized(request: Request, token: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and is_token(token, given.strip()):
        return True
    return is_login(token, request.cookies.get(COOKIE, ""), time.time())


def is_token(token: str, given: str) -> bool:
    """Whether a token is correct, compared in constant time.

    Example:
        >>> is_token("a secret of the house", "a secret of the house"), is_token("a secret of the house", "")
        (True, False)
    """
    return hmac.compare_digest(token.encode(), given.encode(errors="replace"))


def create_login(token: str, now: float) -> str:
    """Value of a login cookie: its expiry time, and a signature made with the token."""
    expires = str(int(now) + LOGIN_SECONDS)
    return f"{expires}.{_signature(token, expires)}"


def is_login(token: str, value: str, now: float) -> bool:
    """Whether a login cookie is valid and not expired.

    Example:
        >>> value = create_login("a secret of the house", now=0)
        >>> is_login("a secret of the house", value, now=60), is_login("another secret, longer", value, now=60)
        (True, False)
        >>> is_login("a secret of the house", value, now=LOGIN_SECONDS + 1)
        False
    """
    expires, _, signature = value.partition(".")
    valid = hmac.compare_digest(_signature(token, expires).encode(), signature.encode(errors="replace"))
    return valid and expires.isdecimal() and now < int(expires)


def _signature(token: str, expires: str) -> str:
    return hmac.new(token.encode(), f"bcls login until {expires}".encode(errors="replace"), hashlib.sha256).hexdigest()


def _host_name(host: str) -> str:
    """The name in a Host header, without the port.

    Example:
        >>> _host_name("127.0.0.1:8000"), _host_name("[::1]:8000"), _host_name("evil.example:80")
        ('127.0.0.1', '::1', 'evil.example')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
