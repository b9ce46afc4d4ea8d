"""The pseudo labels of single pairs, for the few that a page shows."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Below this label a result is called plainly wrong.
WRONG = 0.2


class PairLabels:
    """Labels of pairs, from embeddings of all captions.

    Args:
        encoder: Name of the text encoder.
        vectors: ``(C, d)`` its embeddings of the captions.
        owner: ``(C,)`` image of each caption.
    """

    def __init__(self, encoder: str, vectors: NDArray[np.float32], owner: NDArray[np.int64]) -> None:
        self.encoder = encoder
        self._vectors, self._owner = vectors, owner

    def of(self, image: int, captions: Sequence[int]) -> list[float] | None:
        """Compute the labels of an image with captions, 1 for its own; none where nobody wrote about it.

        Example:
            >>> labels = PairLabels("x", np.eye(3, dtype=np.float32), np.array([0, 0, 1]))
            >>> labels.of(0, [1, 2]), labels.of(2, [1])
            ([1.0, 0.0], None)
        """
        from bcls.labels import relevance

        own = np.flatnonzero(self._owner == image)
        if not own.size:
            return None
        (found,) = relevance(self._vectors[own], self._vectors[list(captions)], np.zeros(len(own), dtype=np.int64))
        labels: list[float] = np.where(self._owner[list(captions)] == image, 1.0, found).tolist()
        return labels
