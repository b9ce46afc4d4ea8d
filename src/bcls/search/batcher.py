"""Batching of concurrent queries: texts of several threads share one pass through the model."""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_number, check_whole

Vector = npt.NDArray[np.float32]


class OverloadedError(RuntimeError):
    """There are more queries than can be answered in time; the query itself is valid.

    Attributes:
        retry_after: Seconds after which to try again.
    """

    def __init__(self, retry_after: int, work: str = "queries") -> None:
        super().__init__(f"too many {work} at once: try again in {retry_after} s")
        self.retry_after = retry_after


@contextmanager
def limit_work(slots: threading.BoundedSemaphore, timeout: float, work: str = "queries") -> Iterator[None]:
    """Hold one of a few slots for work that needs much memory or time.

    Raises:
        OverloadedError: No slot became free within ``timeout`` seconds.
    """
    if not slots.acquire(timeout=timeout):
        raise OverloadedError(math.ceil(timeout), work)
    try:
        yield
    finally:
        slots.release()


class Batcher:
    """Calls ``encode`` in one thread, with all texts that have arrived since the last call.

    A text is encoded at once if the model is free: waiting for others made a batch larger and every query slower.

    Args:
        encode: ``(n,)`` texts to ``(n, D)`` vectors.
        batch: Maximum number of texts per call.
        waiting: Maximum number of texts in the queue.
        timeout: Seconds until a text is given up.

    Attributes:
        texts: Number of texts encoded so far.
        batches: Number of calls so far.
        closed: Whether :meth:`close` was called.
    """

    def __init__(self, encode: Callable[[list[str]], Vector], *, batch: int, waiting: int, timeout: float) -> None:
        self._encode = encode
        self._batch = check_whole("batch", batch, least=1)
        self._timeout = check_number("timeout", timeout, "10 is usual", above=0)
        self._queue: queue.Queue[tuple[str, Future[Vector]] | None] = queue.Queue(
            check_whole("waiting", waiting, least=1)
        )
        self._seconds_per_batch = 0.05
        self.texts = self.batches = 0
        self.closed = False
        self._thread = threading.Thread(target=self._work, name="bcls-encode", daemon=True)
        self._thread.start()

    def __call__(self, text: str) -> Vector:
        """The vector of a text.

        Raises:
            OverloadedError: The queue is full, the time is over, or the batcher is closed.
        """
        future: Future[Vector] = Future()
        try:
            if self.closed:
                raise queue.Full
            self._queue.put_nowait((text, future))
            return future.result(self._timeout)
        except (queue.Full, TimeoutError):
            future.cancel()
            batches = 1 + self._queue.qsize() / self._batch
            raise OverloadedError(max(1, math.ceil(batches * self._seconds_per_batch))) from None

    def close(self) -> None:
        """Stop after the waiting texts are answered."""
        if not self.closed:
            self.closed = True
            self._queue.put(None)
            # At most 10 s, also with a long timeout, so that the process can end.
            self._thread.join(min(self._timeout, 10.0))

    def _work(self) -> None:
        batch: list[tuple[str, Future[Vector]] | None] = []
        while not batch or batch[-1] is not None:
            batch = [self._queue.get()]
            with suppress(queue.Empty):
                while batch[-1] is not None and len(batch) < self._batch:
                    batch.append(self._queue.get_nowait())
            # Texts whose time is over are not encoded.
            wanted = [one for one in batch if one is not None and one[1].set_running_or_notify_cancel()]
            if wanted:
                started = time.monotonic()
                self._answer(wanted)
                self.texts += len(wanted)
                self.batches += 1
                self._seconds_per_batch = 0.8 * self._seconds_per_batch + 0.2 * (time.monotonic() - started)

    def _answer(self, wanted: list[tuple[str, Future[Vector]]]) -> None:
        texts = list(dict.fromkeys(text for text, _ in wanted))
        try:
            vectors = dict(zip(texts, self._encode(texts), strict=True))
        except Exception as error:  # noqa: BLE001, RUF100 - raised in the thread of the query, not in this one
            for text, future in wanted:
                if len(texts) > 1:  # one invalid text must not affect the others
                    self._answer([(text, future)])
                else:
                    future.set_exception(error)
            return
        for text, future in wanted:
            future.set_result(vectors[text])
