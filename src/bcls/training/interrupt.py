"""Ctrl-C and SIGTERM: finish the step, write a checkpoint, then leave."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist


class Interrupt:
    """Whether the run was asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def agreed(self, device: torch.device, *, look: bool = True) -> bool:
        """Whether all processes stop now; each asks at the same steps, and one that was told is enough.

        Args:
            device: Where tensors for the question live.
            look: Ask the others now. Without it only a single process answers for itself.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return self.asked
        if not look:
            return False
        flag = torch.tensor([self.asked], dtype=torch.int64, device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


@contextmanager
def listening(interrupt: Interrupt | None = None) -> Iterator[Interrupt]:
    """Turn the first Ctrl-C or SIGTERM into a request; a second Ctrl-C stops at once.

    Outside of the main thread signals cannot be caught, and nothing is changed.

    Args:
        interrupt: What is told, if it was made before.
    """
    interrupt = Interrupt() if interrupt is None else interrupt
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if interrupt.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        interrupt.asked = True
        print("stopping after this step, with a checkpoint ...", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
