"""A budget of time, and requests to stop, both answered without losing anything."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Budget:
    """Whether the time is spent."""

    def __init__(self) -> None:
        self.spent = False


@contextmanager
def budget(seconds: float | None) -> Iterator[Budget]:
    """Stop the work inside after some time, as SIGTERM would: a run in training writes a checkpoint first.

    Between trainings SIGTERM becomes ``KeyboardInterrupt`` too, so that no lock or half of a file stays behind.
    Outside of the main thread signals cannot be caught, and nothing is changed.

    Args:
        seconds: How long; ``None`` for no limit.

    Yields:
        Tells afterwards whether it was the budget that stopped the work.
    """
    state = Budget()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def ring(number: int, frame: FrameType | None) -> None:
        state.spent = True
        signal.raise_signal(signal.SIGTERM)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, leave), signal.SIGALRM: signal.signal(signal.SIGALRM, ring)}
    if seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))
    try:
        yield state
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
