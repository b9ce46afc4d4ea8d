"""What every text encoder does around its model: each different text once, and unit rows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls.labels.encoder import Progress

#: Rows of a batch, and their vectors.
Part = tuple[NDArray[np.int64], Any]


def encode_distinct(
    texts: Sequence[str], dimension: int, parts: Callable[[list[str]], Iterator[Part]], progress: Progress | None
) -> NDArray[np.float32]:
    """Do what :meth:`bcls.labels.TextEncoder.encode` says; ``parts`` encodes different texts, every row in one part."""
    expected = "a list of strings"
    if isinstance(texts, str):
        fail("texts", expected, "one string", "put it into a list")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            fail("texts", expected, f"{type(text).__name__} at index {index}", "drop it, or make it a string")
    place = {text: row for row, text in enumerate(sorted(set(texts)))}
    vectors = np.empty((len(place), dimension), dtype=np.float32)
    done = 0
    for rows, values in parts(list(place)):
        vectors[rows] = values
        done += len(rows)
        if progress is not None:
            progress(done, len(place))
    return unit_or_zero(vectors)[[place[text] for text in texts]] if len(texts) else vectors


def unit_or_zero(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of unit length, in place; what some models give an empty text, the zero vector, stays as it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.divide(vectors, lengths, out=vectors, where=lengths > 0)
    return vectors
