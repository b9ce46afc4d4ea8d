"""WordLlama out of an installed package: static word vectors, small and fast, for when MiniLM takes too long."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bcls._extras import require
from bcls._weights import check_weights
from bcls.labels._distinct import Part, encode_distinct
from bcls.labels.encoder import Progress

_BATCH = 4096
_WEIGHTS = "weights/l2_supercat_256.safetensors"
#: Of the weights in wordllama 0.4.0.post1.
WEIGHTS_SHA256 = "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5"


class WordLlamaEncoder:
    """Mean of static word vectors, 256 dimensions; see :class:`bcls.labels.TextEncoder`.

    Raises:
        ValueError: If the weights are missing or not the published ones.
        MissingExtraError: If the package is not installed.

    Example:
        >>> WordLlamaEncoder().encode(["a dog runs", "a dog runs"]).shape
        (2, 256)
    """

    name = "wordllama"
    dimension = 256

    def __init__(self) -> None:
        library = require("wordllama", "text", "the text encoder 'wordllama'")
        folder = Path(library.__file__ or "").parent
        check_weights(self.name, folder / _WEIGHTS, WEIGHTS_SHA256, "wordllama==0.4.0.post1")
        self._model = library.WordLlama.load(cache_dir=folder, disable_download=True)

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> NDArray[np.float32]:
        """Encode texts into unit rows, each different text once; see :meth:`bcls.labels.TextEncoder.encode`."""
        return encode_distinct(texts, self.dimension, self._parts, progress)

    def _parts(self, texts: Sequence[str]) -> Iterator[Part]:
        for start in range(0, len(texts), _BATCH):
            rows = np.arange(start, min(start + _BATCH, len(texts)))
            yield rows, self._model.embed(texts[start : start + _BATCH])
