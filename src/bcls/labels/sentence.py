"""Any sentence-transformers model as a text encoder."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls._extras import require
from bcls._progress import no_bars
from bcls.labels._distinct import Part, encode_distinct
from bcls.labels._modules import encode_usual, is_usual
from bcls.labels.encoder import Progress

_BATCH = 64


class SentenceEncoder:
    """A sentence-transformers model whose rows are unit vectors; see :class:`bcls.labels.TextEncoder`.

    A model of a transformer, a pooling and perhaps a normalisation is called module by module: each different text
    is tokenised once, and texts of equal length go through together. Other models do it with their own ``encode``.

    Args:
        name: What to call it.
        source: The model's folder, a path, or its name on the hub, a string.
        precision: ``"float32"``, or ``"bfloat16"`` for the matrix products of a model of the first kind.

    Raises:
        MissingExtraError: If sentence-transformers is not installed.
        OSError: If there is no such model, or it cannot be reached.
        ValueError: If a model of the second kind is asked for bfloat16.
    """

    def __init__(self, name: str, source: str | Path, precision: str = "float32") -> None:
        library = require("sentence_transformers", "text", f"the text encoder {name!r}")
        self.name = name
        local = isinstance(source, Path)
        # A download may show how far it is; reading a file is over in a moment.
        with no_bars(require("transformers.utils.logging", "text", "text encoders")) if local else nullcontext():
            self._model = library.SentenceTransformer(str(source), local_files_only=local)
        self._model.eval()
        self._precision = precision
        self._usual = is_usual(self._model)
        if precision != "float32" and not self._usual:
            modules = ", ".join(type(module).__name__ for module in self._model)
            fail("precision", f"'float32' for a model of {modules}", repr(precision), "leave it out")
        self.dimension = len(self._model.encode("a text", show_progress_bar=False))

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> NDArray[np.float32]:
        """Encode texts into unit rows, each different text once; see :meth:`bcls.labels.TextEncoder.encode`."""
        return encode_distinct(texts, self.dimension, self._parts, progress)

    def _parts(self, texts: Sequence[str]) -> Iterator[Part]:
        if self._usual:
            yield from encode_usual(self._model, texts, self._precision)
            return
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        order = np.argsort(-lengths, kind="stable")
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            batch = [texts[row] for row in rows]
            yield rows, self._model.encode(batch, batch_size=_BATCH, show_progress_bar=False)
