"""How much is let in at a time: few enough requests, small enough bodies, and an end to each."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bcls.web.problem import ProblemError, answer
from bcls.web.site import Site

#: What is answered at once whatever else goes on.
_FREE = ("/healthz", "/metrics", "/static/")
_BUSY = "too many requests at once: try again in a moment"
#: Bytes of an answer that a client must take in the time of a request; slower ones are cut off.
_TAKEN = 2**20


class Gate:
    """Middleware that answers 503 where a pile would grow, 413 and 408 to bodies that are too large or too slow.

    A request whose time is over is answered, but its place stays taken until the work for it has really ended: threads
    cannot be stopped. A client that does not read its answer is cut off.

    Args:
        app: What comes next.
        site: Has the limits.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app, self._settings = app, site.settings
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request through, or not."""
        if scope["type"] != "http" or scope["path"].startswith(_FREE):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        if len(self._running) >= self._settings.at_once:
            await answer(request, ProblemError(503, _BUSY, 1))(scope, receive, send)
            return
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._settings.max_upload:
            too_large = ProblemError(413, _too_large(self._settings.max_upload))
            await answer(request, too_large, {"Connection": "close"})(scope, receive, send)
            return
        await self._run(request, scope, receive, send)

    async def _run(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        started = given_up = False
        limit = self._settings.timeout
        timed = _timed(send, limit)

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if not given_up:
                started = True
                await timed(message)

        inner = self._app(scope, _limited(receive, self._settings.max_upload, limit), guarded_send)
        task = asyncio.ensure_future(_as_coroutine(inner))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait({task}, timeout=limit + 1)
            if task.done() or started:
                await task
                return
        except _NotTakenError:
            return
        except asyncio.CancelledError:
            task.cancel()
            raise
        given_up = True
        task.add_done_callback(_forget)
        late = ProblemError(503, f"this took longer than {limit:g} s: try again, or ask for less", math.ceil(limit))
        await answer(request, late)(scope, receive, send)


def _limited(receive: Receive, most: int, seconds: float) -> Callable[[], Awaitable[Message]]:
    got, deadline, whole = 0, time.monotonic() + seconds, False

    async def limited() -> Message:
        nonlocal got, whole
        # After the body comes only the news that the client left, which has no deadline.
        if whole:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {seconds:g} s: send it faster") from None
        got += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if got > most:
            raise HTTPException(413, _too_large(most))
        return message

    return limited


class _NotTakenError(Exception):
    """The client does not read its answer."""


def _timed(send: Send, seconds: float) -> Send:
    taken, deadline = 0, math.inf

    async def timed(message: Message) -> None:
        nonlocal taken, deadline
        if message["type"] == "http.response.start" or taken >= _TAKEN:
            taken, deadline = 0, time.monotonic() + seconds
        try:
            await asyncio.wait_for(send(message), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise _NotTakenError from None
        taken += len(message.get("body", b""))

    return timed


def _too_large(most: int) -> str:
    return f"`image`: expected at most {most} bytes; shrink the picture"


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


def _forget(task: "asyncio.Task[None]") -> None:
    """Take an error that nobody waits for any more, so that the loop does not complain about it."""
    if not task.cancelled():
        task.exception()
