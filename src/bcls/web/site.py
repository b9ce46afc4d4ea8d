"""What one web app is made of."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bcls.search.service import Service
from bcls.web.labels import QueryLabels
from bcls.web.metrics import Metrics
from bcls.web.problem import ProblemError
from bcls.web.settings import WebSettings
from bcls.web.thumbnails import Thumbnails

#: Pictures that were sent and are unpacked at once; each may take hundreds of megabytes.
UNPACKED = 2


@dataclass(frozen=True)
class Site:
    """The parts that requests share.

    Attributes:
        service: Searches the index.
        settings: Limits.
        other: Searches the index that is compared with.
        labels: Pseudo labels for the compare view.
        runs: Folder of training runs.
        metrics: Counts what happens.
        thumbnails: Photos in small.
    """

    service: Service
    settings: WebSettings = field(default_factory=WebSettings)
    other: Service | None = None
    labels: QueryLabels | None = None
    runs: Path | None = None
    metrics: Metrics = field(init=False)
    thumbnails: Thumbnails = field(init=False)
    _turns: threading.BoundedSemaphore = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", Metrics())
        object.__setattr__(self, "_turns", threading.BoundedSemaphore(UNPACKED))
        object.__setattr__(self, "thumbnails", Thumbnails(self.service))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A turn with a picture that was sent.

        Raises:
            ProblemError: 503, others took all the time there was.
        """
        if not self._turns.acquire(timeout=self.settings.timeout):
            busy = "too many pictures at once: try again in a moment"
            raise ProblemError(503, busy, math.ceil(self.settings.timeout))
        try:
            yield
        finally:
            self._turns.release()

    def close(self) -> None:
        """Close the services."""
        self.service.close()
        if self.other is not None:
            self.other.close()
