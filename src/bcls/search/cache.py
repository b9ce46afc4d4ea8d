"""Remembers the last answers of a function."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from bcls._checks import check_whole

Answer = TypeVar("Answer")


class LastUsed(Generic[Answer]):
    """The answers for the ``size`` texts that were asked for last; threads may share it.

    Example:
        >>> lengths = LastUsed(len, 1)
        >>> lengths("abc"), lengths("abc"), lengths.hits
        (3, 3, 1)
    """

    def __init__(self, function: Callable[[str], Answer], size: int) -> None:
        self._function = function
        self._size = check_whole("cache", size, least=0)
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self.hits = 0

    def __call__(self, text: str) -> Answer:
        """The function's answer, remembered or new."""
        with self._lock:
            if text in self._answers:
                self._answers.move_to_end(text)
                self.hits += 1
                return self._answers[text]
        answer = self._function(text)
        with self._lock:
            self._answers[text] = answer
            while len(self._answers) > self._size:
                self._answers.popitem(last=False)
        return answer
