"""Text encoders by name: what turns captions into the vectors that labels are made from."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Progress = Callable[[int, int], None]


class TextEncoder(Protocol):
    """Turns texts into unit vectors, so that their dot products are cosines."""

    @property
    def name(self) -> str:
        """The name it was loaded by."""
        ...

    @property
    def dimension(self) -> int:
        """The length of its vectors."""
        ...

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> NDArray[np.float32]:
        """Encode texts into ``(n, d)`` float32 unit rows, in the order of ``texts``.

        Args:
            texts: The texts; those that occur more than once are encoded once.
            progress: Called now and then with how many of the different texts are done, and how many there are.

        Returns:
            ``(n, d)`` float32 array with unit rows; ``(0, d)`` for no texts.

        Raises:
            ValueError: If ``texts`` is no sequence of strings.
        """
        ...


def load_text_encoder(name: str | Path) -> TextEncoder:
    """Load a text encoder.

    Args:
        name: ``"minilm"`` (all-MiniLM-L6-v2) or ``"wordllama"`` (static word vectors: faster, less good), both from
            installed packages without any download; the folder of a sentence-transformers model, or its name on the
            hub, ``organisation/model``.

    Returns:
        The encoder.

    Raises:
        ValueError: If there is no such encoder, or the packaged weights are not the published ones.
        MissingExtraError: If the packages that it needs are not installed.

    Example:
        >>> encoder = load_text_encoder("minilm")
        >>> encoder.encode(["a dog runs", "a dog is running"]).shape
        (2, 384)
    """
    key = str(name)
    if key in _PACKAGED:
        return _PACKAGED[key]()
    folder = Path(name).expanduser()
    # Not the empty name, which as a path is the current folder.
    if key and folder.is_dir():
        return _sentence_transformer(key, folder)
    if isinstance(name, str) and _HUB_NAME.fullmatch(name):
        return _sentence_transformer(key, key)
    raise ValueError(f"`name`: expected {_expected()}, got {key!r}; check the spelling")


# Both parts begin with a letter or digit, so that "./model" and "../model" are folders and no hub names.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def _expected() -> str:
    known = ", ".join(repr(known) for known in _PACKAGED)
    return f"{known}, the folder of a sentence-transformers model or its hub name 'organisation/model'"


def _minilm() -> TextEncoder:
    from bcls.labels.minilm import load_minilm

    return load_minilm()


def _wordllama() -> TextEncoder:
    from bcls.labels.wordllama import WordLlamaEncoder

    return WordLlamaEncoder()


def _sentence_transformer(name: str, source: str | Path) -> TextEncoder:
    from bcls.labels.sentence import SentenceEncoder

    try:
        return SentenceEncoder(name, source)
    except (OSError, ValueError) as error:
        # The library's own message runs over many lines; it stays in the chain for whoever needs it.
        reason = str(error).strip().split("\n", 1)[0]
        raise ValueError(f"`name`: expected {_expected()}, got {name!r}, which did not load: {reason}") from error


_PACKAGED: dict[str, Callable[[], TextEncoder]] = {"minilm": _minilm, "wordllama": _wordllama}
