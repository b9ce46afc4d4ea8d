"""Security middleware: response headers, host check, cross-site check, access token and login cookie."""

import hmac
import time
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bcls.web.responses import is_fragment, problem_response, retry_error, wants_page
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
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
#: Paths that need no token: the health check, and what the login page loads.
_PUBLIC = ("/healthz", "/login", "/static/")


class SecurityMiddleware:
    """Adds security headers to every response, and rejects foreign Host headers, other sites, and wrong tokens.

    Starlette's TrustedHostMiddleware would answer 400 without problem details, so the host is checked here. Route,
    status and duration of every request are recorded, those of rejected ones, too. HEAD is handled as GET; servers do
    not send the body.

    Args:
        app: The next ASGI app.
        site: Has the token, the logins and the metrics.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app, self._site, self._settings = app, site, site.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started = 500, time.perf_counter()
        if scope["method"] == "HEAD":
            headers = [pair for pair in scope["headers"] if pair[0] != b"range"]  # RFC 9110: Range is for GET only
            scope = {**scope, "method": "GET", "headers": headers}

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
            self._site.metrics.observe(route, status, time.perf_counter() - started)

    def _rejection(self, request: Request) -> Response | None:
        try:
            self._check(request)
        except HTTPException as error:
            if error.status_code == 401 and wants_page(request) and not is_fragment(request):
                return RedirectResponse(_login_address(request), 303)
            return problem_response(request, error)
        return None

    def _check(self, request: Request) -> None:
        if not self._settings.any_host and _host_name(request.headers.get("host", "")) not in _LOCAL_NAMES:
            raise HTTPException(421, "this server accepts the hosts localhost and 127.0.0.1 only: use one of these")
        if _is_foreign(request):
            raise HTTPException(403, "requests from other sites are rejected: open the app itself")
        # The path of the scope, not of `request.url`, which contains the Host header and so any path a client wants.
        token, path = self._settings.token, request.scope["path"]
        if token is None or path.startswith(_PUBLIC) or self._site.logins.is_valid(request.cookies.get(COOKIE, "")):
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not check_token(request, self._site, given.strip()):
            detail = "the token is missing or wrong: send it as `Authorization: Bearer TOKEN`, or log in at /login"
            raise HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})


def _login_address(request: Request) -> str:
    """Address of the login page, with the page that the login leads to."""
    path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
    page = f"{path}?{query}" if query else path
    return "/login" if page == "/" or request.method != "GET" else f"/login?{urlencode({'to': page})}"


def _is_foreign(request: Request) -> bool:
    """Whether a page of another site, or of another port of this machine, sends the request; links to pages may."""
    source = request.headers.get("sec-fetch-site")
    if source is None:  # old browsers, and addresses without TLS
        host, origin = request.headers.get("host", ""), request.headers.get("origin", "")
        return bool(origin) and urlsplit(origin).netloc.lower() != host.lower()
    is_link = request.headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
    return source not in {"same-origin", "none"} and not is_link


def check_token(request: Request, site: Site, given: str) -> bool:
    """Whether a token is correct, compared in constant time.

    Raises:
        HTTPException: 429, too many wrong tokens came from this address.
    """
    address = request.client.host if request.client else ""
    wait = site.wrong_tokens.wait(address)
    if wait > 0:
        raise retry_error(429, f"too many wrong tokens: try again in {wait} s", wait)
    expected = site.settings.token or ""
    if expected and hmac.compare_digest(expected.encode(), given.encode(errors="replace")):
        return True
    site.wrong_tokens.add(address)
    return False


def _host_name(host: str) -> str:
    """The name in a Host header, without the port.

    Example:
        >>> _host_name("127.0.0.1:8000"), _host_name("[::1]:8000"), _host_name("evil.example:80")
        ('127.0.0.1', '::1', 'evil.example')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
