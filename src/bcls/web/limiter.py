"""Load limits: number of requests, size of bodies, and time for requests and responses."""

import asyncio
import math
import time

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bcls.web.responses import problem_response, retry_error
from bcls.web.site import Site

#: Paths that are answered under any load.
_UNLIMITED = ("/healthz", "/metrics", "/static/")
#: Bytes of a response that a client must read within the time limit; slower clients are disconnected.
_CHUNK = 2**20


class LoadLimiter:
    """Middleware that answers 503 under overload or after the time limit, and 413 or 408 to large or slow bodies.

    A request that exceeds the time limit is answered, but counts as running until its work has ended, since threads
    cannot be stopped. Clients that do not read the response are disconnected.

    Args:
        app: The next ASGI app.
        site: Has the limits.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app, self._settings = app, site.settings
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http" or scope["path"].startswith(_UNLIMITED):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        length = request.headers.get("content-length", "0")
        if len(self._running) >= self._settings.at_once:
            busy = retry_error(503, "too many requests at once: try again in a moment", 1)
            await problem_response(request, busy)(scope, receive, send)
        elif length.isdecimal() and int(length) > self._settings.max_upload:
            too_large = HTTPException(413, _too_large(self._settings.max_upload), {"Connection": "close"})
            await problem_response(request, too_large)(scope, receive, send)
        else:
            await self._run(request, receive, send)

    async def _run(self, request: Request, receive: Receive, send: Send) -> None:
        started = timed_out = False
        limit = self._settings.timeout
        timed_send = limit_send(send, limit)

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if not timed_out:
                started = True
                await timed_send(message)

        async def work() -> None:
            await self._app(request.scope, limit_body(receive, self._settings.max_upload, limit), guarded_send)

        task = asyncio.create_task(work())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait({task}, timeout=limit + 1)
            if task.done() or started:
                await task
                return
        except _ClientTooSlowError:
            return
        except asyncio.CancelledError:
            task.cancel()
            raise
        timed_out = True
        # Retrieve an error that has no recipient, so that asyncio does not log it.
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        late = retry_error(503, f"this took longer than {limit:g} s: try again, or request less", math.ceil(limit))
        await problem_response(request, late)(request.scope, receive, send)


def limit_body(receive: Receive, most: int, seconds: float) -> Receive:
    """A ``receive`` that raises 413 for bodies over ``most`` bytes, and 408 for those that take too long."""
    size, deadline, complete = 0, time.monotonic() + seconds, False

    async def limited() -> Message:
        nonlocal size, complete
        # After the body, the only message is the disconnect, which has no deadline.
        if complete:
            return await receive()
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {seconds:g} s: send it faster") from None
        size += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if size > most:
            raise HTTPException(413, _too_large(most))
        return message

    return limited


class _ClientTooSlowError(Exception):
    """The client does not read the response."""


def limit_send(send: Send, seconds: float) -> Send:
    """A ``send`` that raises an error if the client reads less than :data:`_CHUNK` bytes in ``seconds``."""
    size, deadline = 0, math.inf

    async def timed(message: Message) -> None:
        nonlocal size, deadline
        if message["type"] == "http.response.start" or size >= _CHUNK:
            size, deadline = 0, time.monotonic() + seconds
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await send(message)
        except TimeoutError:
            raise _ClientTooSlowError from None
        size += len(message.get("body", b""))

    return timed


def _too_large(most: int) -> str:
    return f"`image`: expected at most {most} bytes; shrink the image"
