"""Batching of concurrent queries: texts of several threads share one pass through the model."""

import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_number, check_whole

Vector = npt.NDArray[np.float32]


class OverloadedError(RuntimeError):
    """There are more queries than can be answered in time; the query itself is valid.

    Attributes:
        retry_after: Seconds after which to try again.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many queries at once: try again in {retry_after} s")
        self.retry_after = retry_after


class Batcher:
    """Calls ``encode`` in one thread, with all texts that have arrived since the last call.

    While a batch is in the model, the next one is collected, so ``wait`` adds no delay under load.

    Args:
        encode: ``(n,)`` texts to ``(n, D)`` vectors.
        batch: Maximum number of texts per call.
        wait: Seconds that the first text of a batch waits for others, if the previous batch had several.
        waiting: Maximum number of texts in the queue.
        timeout: Seconds until a text is given up.

    Attributes:
        texts: Number of texts encoded so far.
        batches: Number of calls so far.
    """

    def __init__(
        self, encode: Callable[[list[str]], Vector], *, batch: int, wait: float, waiting: int, timeout: float
    ) -> None:
        self._encode = encode
        self._batch = check_whole("batch", batch, least=1)
        self._wait = check_number("wait", wait, "0.01 is usual", low=0)
        self._timeout = check_number("timeout", timeout, "10 is usual", above=0)
        self._queue: queue.Queue[tuple[str, Future[Vector]] | None] = queue.Queue(
            check_whole("waiting", waiting, least=1)
        )
        self._seconds_per_batch = 0.05
        self.texts = self.batches = 0
        self._closed = False
        self._several = False
        self._thread = threading.Thread(target=self._work, name="bcls-encode", daemon=True)
        self._thread.start()

    def __call__(self, text: str) -> Vector:
        """The vector of a text.

        Raises:
            OverloadedError: The queue is full, the time is over, or the batcher is closed.
        """
        future: Future[Vector] = Future()
        try:
            if self._closed:
                raise queue.Full
            self._queue.put_nowait((text, future))
            return future.result(self._timeout)
        except (queue.Full, FutureTimeoutError):
            future.cancel()
            batches = 1 + self._queue.qsize() / self._batch
            raise OverloadedError(max(1, math.ceil(batches * self._seconds_per_batch))) from None

    def close(self) -> None:
        """Stop after the waiting texts are answered."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            # At most 10 s, also with a long timeout, so that the process can end.
            self._thread.join(min(self._timeout, 10.0))

    def _work(self) -> None:
        running = True
        while running:
            batch, running = self._collect()
            # Texts whose time is over are not encoded.
            wanted = [(text, future) for text, future in batch if future.set_running_or_notify_cancel()]
            if wanted:
                started = time.monotonic()
                self._answer(wanted)
                self.texts += len(wanted)
                self.batches += 1
                self._seconds_per_batch = 0.8 * self._seconds_per_batch + 0.2 * (time.monotonic() - started)

    def _collect(self) -> tuple[list[tuple[str, Future[Vector]]], bool]:
        """The next batch, and whether to continue after it."""
        first = self._queue.get()
        if first is None:
            return [], False
        batch = [first]
        # A single client is answered at once. After a batch of several texts the same clients are likely to send their
        # next queries within a moment, and one larger batch is cheaper than two.
        deadline = time.monotonic() + (self._wait if self._several else 0.0)
        while len(batch) < self._batch:
            try:
                left = deadline - time.monotonic()
                another = self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if another is None:
                return batch, False
            batch.append(another)
        self._several = len(batch) > 1
        return batch, True

    def _answer(self, wanted: list[tuple[str, Future[Vector]]]) -> None:
        texts = list(dict.fromkeys(text for text, _ in wanted))
        try:
            vectors = dict(zip(texts, self._encode(texts), strict=True))
        except Exception as error:  # noqa: BLE001, RUF100 - raised in the thread of the query, not in this one
            if len(texts) > 1:
                # One invalid text must not affect the others.
                for text in texts:
                    self._answer([one for one in wanted if one[0] == text])
                return
            for _, future in wanted:
                future.set_exception(error)
            return
        for text, future in wanted:
            future.set_result(vectors[text])
