"""The site that requests share: its settings, request metrics, thumbnail cache and pseudo labels."""

import io
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily

from bcls._core.errors import check_number, check_whole, fail
from bcls.search.batcher import limit_work
from bcls.search.service import Service

if TYPE_CHECKING:
    from bcls.labels.encoders import TextEncoder

#: Minimum length of a token; shorter ones can be guessed.
SHORTEST_TOKEN = 16
#: Uploads, and photos for thumbnails, that are decoded at the same time; each may take hundreds of megabytes.
_DECODED = 2
#: Bytes of thumbnails in the cache.
_THUMBNAIL_BYTES = 64 * 2**20
#: Results with a lower pseudo label are marked as wrong, as in the pages of `bcls evaluate`.
WRONG = 0.2
#: Seconds that a login is valid.
LOGIN_SECONDS = 30 * 24 * 3600
#: Wrong tokens that an address may send at once; then one per second.
WRONG_TOKENS = 10
#: Addresses, and logins, that are remembered.
_REMEMBERED = 10_000
#: Captions whose vectors are cached.
_CACHED_CAPTIONS = 20_000


@dataclass(frozen=True)
class WebSettings:
    """Limits of the web app.

    Attributes:
        token: Access token that requests must send.
        any_host: Accept any Host header. Otherwise only names of this machine are accepted, so that another site cannot
            reach the app through a domain name that points to this machine.
        at_once: Requests that are processed or waiting; more get status 503.
        timeout: Seconds for a request, and for the arrival of its body.
        max_upload: Maximum size of a body in bytes.
        max_pixels: Maximum number of pixels of an uploaded image.

    Raises:
        ValueError: A setting is out of its range.
    """

    token: str | None = None
    any_host: bool = False
    at_once: int = 64
    timeout: float = 15.0
    max_upload: int = 20 * 2**20
    max_pixels: int = 40_000_000

    def __post_init__(self) -> None:
        if self.token is not None and (len(self.token) < SHORTEST_TOKEN or not self.token.isascii()):
            got = f"{len(self.token)} characters"
            hint = "create one with `python -c 'import secrets; print(secrets.token_urlsafe())'`"
            fail("token", f"at least {SHORTEST_TOKEN} ASCII characters", got, hint)
        for name in ("at_once", "max_upload", "max_pixels"):
            check_whole(name, getattr(self, name), least=1)
        check_number("timeout", self.timeout, "15 is usual", above=0)


@dataclass
class Site:
    """What the requests of a web app share.

    Attributes:
        service: Searches the index.
        settings: Limits.
        other: Searches the second index, for the compare view.
        labels: Pseudo labels for the compare view.
        runs: Folder of training runs.
        metrics: Request metrics.
        thumbnails: Thumbnails of photos.
        logins: Logins of browsers.
        wrong_tokens: Wrong tokens by address.
    """

    service: Service
    settings: WebSettings = field(default_factory=WebSettings)
    other: Service | None = None
    labels: "PairLabels | None" = None
    runs: Path | None = None

    def __post_init__(self) -> None:
        self.metrics = RequestMetrics(self.service)
        self.thumbnails = ThumbnailCache(self.service)
        self.logins = Logins()
        self.wrong_tokens = WrongTokens()
        self._uploads = threading.BoundedSemaphore(_DECODED)

    def upload_slot(self) -> AbstractContextManager[None]:
        """Limit how many uploaded images are decoded at the same time.

        Raises:
            OverloadedError: No slot became free in time.
        """
        return limit_work(self._uploads, self.settings.timeout, "images")

    def close(self) -> None:
        """Close the services."""
        self.service.close()
        if self.other is not None:
            self.other.close()


class Logins:
    """Logins of browsers, in memory: a logout or a restart of the server ends them. Used in the event loop only.

    Example:
        >>> logins = Logins()
        >>> login = logins.start()
        >>> logins.is_valid(login), logins.is_valid("forged")
        (True, False)
        >>> logins.end(login)
        >>> logins.is_valid(login)
        False
    """

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def start(self) -> str:
        """Start a login; returns the value of its cookie."""
        login = secrets.token_urlsafe(32)
        self._ends[login] = time.time() + LOGIN_SECONDS
        if len(self._ends) > _REMEMBERED:
            del self._ends[next(iter(self._ends))]
        return login

    def is_valid(self, login: str) -> bool:
        """Whether a login exists and has not expired."""
        # 256 random bits cannot be found by measuring the time of lookups.
        return time.time() < self._ends.get(login, 0.0)

    def end(self, login: str) -> None:
        """End a login."""
        self._ends.pop(login, None)


class WrongTokens:
    """Limits how fast an address can try tokens. Used in the event loop only."""

    def __init__(self) -> None:
        # When each address may send wrong tokens at once again.
        self._free: OrderedDict[str, float] = OrderedDict()

    def add(self, address: str) -> None:
        """Record a wrong token."""
        self._free[address] = max(time.monotonic(), self._free.pop(address, 0.0)) + 1
        if len(self._free) > _REMEMBERED:
            self._free.popitem(last=False)

    def wait(self, address: str) -> int:
        """Seconds until the address may try another token; 0 for now."""
        return max(0, math.ceil(self._free.get(address, 0.0) - time.monotonic() - WRONG_TOKENS + 1))


class RequestMetrics:
    """Counts and durations of requests, for Prometheus.

    Args:
        service: Provides counts of encoded texts.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        labels = ["route", "status"]
        self._requests = Counter("bcls_requests", "Requests by route and status", labels, registry=self._registry)
        self._seconds = Histogram("bcls_request_seconds", "Duration", ["route"], registry=self._registry)
        self._registry.register(self)

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Record a request.

        Args:
            route: Pattern of its path, not the path itself, since there are few patterns.
            status: Status of the response.
            seconds: Its duration.
        """
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Counts of the service; called by the registry."""
        for name, value in self._service.counts().items():
            yield CounterMetricFamily(f"bcls_{name}", name.replace("_", " "), value=value)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class ThumbnailCache:
    """Creates thumbnails and keeps recent ones in memory; threads may share it.

    Args:
        service: Reads the photos.
        size: Maximum number of bytes in the cache.
    """

    def __init__(self, service: Service, size: int = _THUMBNAIL_BYTES) -> None:
        self._service, self._size = service, size
        self._lock = threading.Lock()
        self._decoding = threading.BoundedSemaphore(_DECODED)
        self._files: OrderedDict[tuple[str, str, int], bytes] = OrderedDict()

    def jpeg(self, number: int, side: int) -> bytes:
        """A photo as a JPEG file whose longer side is at most ``side`` pixels.

        Raises:
            ValueError: There is no such photo, or it cannot be decoded.
            OSError: Its file is missing.
        """
        # A deleted photo raises an error here, and a replaced one has another stamp.
        key = (self._service.photo(number).sha256, self._service.photo_stamp(number), side)
        with self._lock:
            if key in self._files:
                self._files.move_to_end(key)
                return self._files[key]
        with self._decoding:
            buffer = io.BytesIO()
            self._service.thumbnail(number, side).save(buffer, "JPEG", quality=82, optimize=False)
        with self._lock:
            self._files[key] = buffer.getvalue()
            while sum(map(len, self._files.values())) > self._size:
                self._files.popitem(last=False)
        return buffer.getvalue()


class PairLabels:
    r"""Pseudo labels of the few pairs that a page shows; threads may share it.

    .. math:: r = \max_k \cos(x_k, y)

    with the captions :math:`x_k` of a photo and a text :math:`y`.

    Args:
        encoder: Encodes captions and texts.
    """

    def __init__(self, encoder: "TextEncoder") -> None:
        self.name = encoder.name
        self._encoder = encoder
        self._lock = threading.Lock()
        self._vectors: dict[str, npt.NDArray[np.float32]] = {}

    def of(self, pairs: Sequence[tuple[Sequence[str], str]]) -> list[float | None]:
        """Labels of pairs of a photo's captions and a text; ``None`` if the photo has no captions."""
        texts = dict.fromkeys(one for captions, text in pairs if captions for one in (*captions, text))
        with self._lock:
            if len(self._vectors) > _CACHED_CAPTIONS:
                self._vectors.clear()
            if new := [text for text in texts if text not in self._vectors]:
                self._vectors.update(zip(new, self._encoder.encode(new), strict=True))
            vectors = {text: self._vectors[text] for text in texts}

        def label(captions: Sequence[str], text: str) -> float | None:
            if not captions or text in captions:
                return 1.0 if captions else None  # exactly 1, as in training
            return float(np.clip(max(vectors[one] @ vectors[text] for one in captions), -1, 1))

        return [label(*pair) for pair in pairs]
