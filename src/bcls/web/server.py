"""Runs the web app on a port."""

import ipaddress
import socket
from collections.abc import Callable

from fastapi import FastAPI

from bcls._core.errors import check_whole, fail

#: Longest request line and headers together; longer queries are still answered in words.
_LONGEST = 256 * 1024
_CONNECTIONS = 1024


def check_address(host: str, *, has_token: bool, behind_proxy: bool) -> None:
    """See that nobody else can reach an app without a token.

    Raises:
        ValueError: The address is that of a network, and there is neither a token nor a proxy.

    Example:
        >>> check_address("0.0.0.0", has_token=False, behind_proxy=False)
        Traceback (most recent call last):
        ...
        ValueError: `--host`: expected 127.0.0.1, or --token or --behind_proxy beside it, got 0.0.0.0; everybody in the
        network could see the photos
    """
    if has_token or behind_proxy or is_loopback(host):
        return
    expected = "127.0.0.1, or --token or --behind_proxy beside it"
    fail("--host", expected, host, "everybody in the network could see the photos")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address.

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
    """Take a port; 0 takes any that is free.

    Raises:
        ValueError: The port is taken, or there is no such address here.
    """
    if check_whole("--port", port, least=0) > 65535:
        fail("--port", "a number up to 65535", port, "8000 is usual")
    try:
        # The protocol by its number: asyncio turns Nagle's algorithm off only where it knows that this is TCP, and
        # with it every answer would wait 40 ms for the client to acknowledge its headers.
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        fail("--host", "an address of this machine", f"{host} ({error.strerror})", "127.0.0.1 is usual")
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        # Now and not later: two processes could otherwise bind the same port and find out too late.
        found.listen(_CONNECTIONS)
    except OSError as error:
        found.close()
        fail("--port", f"one that is free at {host}", f"{port} ({error.strerror})", "choose another, or end its user")
    return found


def serve(app: FastAPI, listening: socket.socket, *, behind_proxy: bool, ready: Callable[[], None]) -> None:
    """Answer requests until the process is told to stop.

    Args:
        app: What :func:`bcls.web.create_app` made.
        listening: What :func:`bind` took.
        behind_proxy: Believe what a proxy on this machine says about the address and scheme of a request.
        ready: Called when requests are answered.
    """
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    config = uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=_LONGEST,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10,
        proxy_headers=behind_proxy,
        server_header=False,
        access_log=False,
        log_level="warning",
    )
    Server(config).run(sockets=[listening])
