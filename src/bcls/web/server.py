"""Run the web app on a port."""

import ipaddress
import socket
from collections.abc import Callable

from fastapi import FastAPI

from bcls._core.errors import check_whole, fail

#: Maximum size of the request line and headers; the app itself rejects queries that are too long.
_MAX_HEADERS = 256 * 1024
_CONNECTIONS = 1024


def check_address(host: str, *, has_token: bool, behind_proxy: bool) -> None:
    """Check that an app without a token is reachable from this machine only.

    Raises:
        ValueError: The address is not a loopback address, and there is neither a token nor a proxy.

    Example:
        >>> check_address("0.0.0.0", has_token=False, behind_proxy=False)
        Traceback (most recent call last):
        ...
        ValueError: `--host`: expected 127.0.0.1, or --token or --behind-proxy in addition, got 0.0.0.0; without them,
        the whole network could see the photos
    """
    if has_token or behind_proxy or is_loopback(host):
        return
    expected = "127.0.0.1, or --token or --behind-proxy in addition"
    fail("--host", expected, host, "without them, the whole network could see the photos")


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 selects a free one.

    Raises:
        ValueError: The port is in use, or this machine has no such address.
    """
    if check_whole("--port", port, least=0) > 65535:
        fail("--port", "a number up to 65535", port, "8000 is usual")
    try:
        # With the protocol number: asyncio disables Nagle's algorithm only for sockets that are known to be TCP, and
        # with it every response would wait 40 ms for the acknowledgement of its headers.
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        fail("--host", "an address of this machine", f"{host} ({error.strerror})", "127.0.0.1 is usual")
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        # Listen now: otherwise two processes could bind the same port and notice too late.
        found.listen(_CONNECTIONS)
    except OSError as error:
        found.close()
        fail("--port", f"a free port at {host}", f"{port} ({error.strerror})", "choose another one")
    return found


def serve(app: FastAPI, listening: socket.socket, *, behind_proxy: bool, ready: Callable[[], None]) -> None:
    """Answer requests until the process is stopped.

    Args:
        app: An app from :func:`bcls.web.create_app`.
        listening: A socket from :func:`bind`.
        behind_proxy: Trust the ``X-Forwarded-*`` headers of a proxy on this machine.
        ready: Called when the server accepts requests.
    """
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    config = uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=_MAX_HEADERS,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10,
        proxy_headers=behind_proxy,
        server_header=False,
        access_log=False,
        log_level="warning",
    )
    Server(config).run(sockets=[listening])
