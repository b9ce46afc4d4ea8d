"""Run the web app on a port."""

import asyncio
import errno
import gc
import ipaddress
import math
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from bcls._core.errors import check_whole, fail

#: Maximum size of the request line and headers; the app itself rejects queries that are too long.
_MAX_HEADERS = 256 * 1024
#: Open connections. If there are more, the one that has waited longest for a request is closed. Many systems allow a
#: process 1024 open files.
MAX_CONNECTIONS = 500


def check_address(host: str, *, has_token: bool, behind_proxy: bool) -> None:
    """Check that an app without a token is reachable from this machine only.

    Raises:
        ValueError: The address is not a loopback address, and there is neither a token nor a proxy.

    Example:
        >>> check_address("127.0.0.1", has_token=False, behind_proxy=False)
        >>> check_address("0.0.0.0", has_token=False, behind_proxy=False)
        Traceback (most recent call last):
        ...
        ValueError: `--host`: expected 127.0.0.1, or --token or --behind-proxy in addition, got 0.0.0.0; without them,
        the whole network could see the photos
    """
    if has_token or behind_proxy or host == "localhost":
        return
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    expected = "127.0.0.1, or --token or --behind-proxy in addition"
    fail("--host", expected, host, "without them, the whole network could see the photos")


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
        found.listen(MAX_CONNECTIONS)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRNOTAVAIL:
            fail("--host", "an address of this machine", host, "127.0.0.1 is usual")
        fail("--port", f"a free port at {host}", f"{port} ({error.strerror})", "choose another one")
    return found


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for the arrival of a request, from the start of a connection or the last response.

    uvicorn's limit applies only until the first byte of the next request.
    """

    def connection_made(self, transport: Any) -> None:
        """Start the time limit, and close another connection if there are too many."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if len(self.connections) > MAX_CONNECTIONS:
            timers = {one.timeout_keep_alive_task: one for one in self.connections if isinstance(one, H11Protocol)}
            waiting = [timer for timer in timers if timer is not None]
            timers[min(waiting, key=asyncio.TimerHandle.when)].timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes; the time limit ends when the headers are complete."""
        self.conn.receive_data(data)
        self.handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._unset_keepalive_if_required()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, also if the client has not read the last response."""
        self._unset_keepalive_if_required()
        self.transport.abort()


def server_config(app: FastAPI, *, timeout: float = 15.0, behind_proxy: bool = False) -> uvicorn.Config:
    """Configuration of the HTTP server.

    Args:
        app: An app from :func:`bcls.web.create_app`.
        timeout: Seconds for the arrival of the headers of a request.
        behind_proxy: Trust the ``X-Forwarded-*`` headers of a proxy on this machine.
    """
    return uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        h11_max_incomplete_event_size=_MAX_HEADERS,
        timeout_keep_alive=math.ceil(timeout),
        timeout_graceful_shutdown=10,
        proxy_headers=behind_proxy,
        server_header=False,
        access_log=False,
        log_level="warning",
    )


def serve(config: uvicorn.Config, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Answer requests until the process is stopped.

    Args:
        config: From :func:`server_config`.
        listening: A socket from :func:`bind`.
        ready: Called when the server accepts requests.
    """

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            gc.collect()
            gc.freeze()  # the index and the model live as long as the server: collections need not visit their objects
            ready()

    Server(config).run(sockets=[listening])
