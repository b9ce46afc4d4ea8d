"""Any sentence-transformers model as a text encoder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls._extras import require
from bcls.labels.encoder import Progress

_BATCH = 64


class SentenceEncoder:
    """A sentence-transformers model whose rows are unit vectors; see :class:`bcls.labels.TextEncoder`.

    Args:
        name: What to call it.
        source: The model's folder, a path, or its name on the hub, a string.

    Raises:
        MissingExtraError: If sentence-transformers is not installed.
        OSError: If there is no such model, or it cannot be reached.
    """

    def __init__(self, name: str, source: str | Path) -> None:
        library = require("sentence_transformers", "text", f"the text encoder {name!r}")
        self.name = name
        local = isinstance(source, Path)
        # A download may show how far it is; reading a file is over in a moment.
        with _no_bars() if local else nullcontext():
            self._model = library.SentenceTransformer(str(source), local_files_only=local)
        self.dimension = len(self._model.encode("a text", show_progress_bar=False))

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> NDArray[np.float32]:
        """Encode texts into unit rows, each different text once; see :meth:`bcls.labels.TextEncoder.encode`."""
        check_texts(texts)
        # Texts of like length share a batch, so that little of it is padding; the longest come first, so that too
        # little memory shows at once.
        distinct = sorted(set(texts), key=lambda text: (-len(text), text))
        vectors = np.empty((len(distinct), self.dimension), dtype=np.float32)
        for start in range(0, len(distinct), _BATCH):
            batch = distinct[start : start + _BATCH]
            rows = self._model.encode(batch, batch_size=_BATCH, show_progress_bar=False)
            vectors[start : start + len(batch)] = rows
            if progress is not None:
                progress(start + len(batch), len(distinct))
        place = {text: row for row, text in enumerate(distinct)}
        return unit_or_zero(vectors)[[place[text] for text in texts]] if len(texts) else vectors


@contextmanager
def _no_bars() -> Iterator[None]:
    logging = require("transformers.utils.logging", "text", "text encoders")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def check_texts(texts: Sequence[str]) -> None:
    """Check that there are texts to encode, and not one text or something else."""
    expected = "a list of strings"
    if isinstance(texts, str):
        fail("texts", expected, "one string", "put it into a list")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            fail("texts", expected, f"{type(text).__name__} at index {index}", "drop it, or make it a string")


def unit_or_zero(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of unit length, in place; what some models give an empty text, the zero vector, stays as it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.divide(vectors, lengths, out=vectors, where=lengths > 0)
    return vectors
