"""Pseudo labels of the few pairs that a page shows."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from bcls.labels.encoders import TextEncoder

#: Below this label a result is called plainly wrong, as in the pages of `bcls evaluate`.
WRONG = 0.2
#: Captions whose vectors are remembered.
_REMEMBERED = 20_000


class QueryLabels:
    r"""Labels of pairs, made when they are asked for; threads may share it.

    .. math:: r = \max_k \cos(x_k, y)

    with the captions :math:`x_k` of a photo and a text :math:`y`.

    Args:
        encoder: Makes the vectors.
    """

    def __init__(self, encoder: "TextEncoder") -> None:
        self.name = encoder.name
        self._encoder = encoder
        self._lock = threading.Lock()
        self._vectors: OrderedDict[str, npt.NDArray[np.float32]] = OrderedDict()

    def of(self, pairs: Sequence[tuple[Sequence[str], str]]) -> list[float | None]:
        """Labels of photos' captions with texts; ``None`` where a photo has no captions."""
        vectors = self._encode(text for captions, text in pairs for text in (*captions, text) if captions)
        found: list[float | None] = []
        for captions, text in pairs:
            if not captions:
                found.append(None)
                continue
            if text in captions:
                found.append(1.0)  # exactly, as own pairs have in training
                continue
            cosines = np.stack([vectors[one] for one in captions]) @ vectors[text]
            found.append(float(np.clip(cosines.max(), -1, 1)))
        return found

    def _encode(self, texts: Iterable[str]) -> dict[str, npt.NDArray[np.float32]]:
        wanted = list(dict.fromkeys(texts))
        with self._lock:
            new = [text for text in wanted if text not in self._vectors]
            if new:
                self._vectors.update(zip(new, self._encoder.encode(new), strict=True))
            found = {text: self._vectors[text] for text in wanted}
            for text in wanted:
                self._vectors.move_to_end(text)
            while len(self._vectors) > _REMEMBERED:
                self._vectors.popitem(last=False)
        return found
