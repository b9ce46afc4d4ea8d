"""Text encoders by name: what turns captions into the vectors that labels are made from."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_choice, fail
from bcls._extras import MissingExtraError
from bcls._files import HUB_NAME, user_path

Progress = Callable[[int, int], None]

#: What the matrix products of an encoder may be computed in.
PRECISIONS = ("float32", "bfloat16")
#: In front of the folder or hub name of a CLIP model.
CLIP = "clip:"


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


def load_text_encoder(name: str | Path, precision: str = "float32") -> TextEncoder:
    """Load a text encoder.

    Args:
        name: ``"minilm"`` (all-MiniLM-L6-v2) or ``"wordllama"`` (static word vectors: faster, less good), both from
            installed packages without any download; the folder of a sentence-transformers model, or its name on the
            hub, ``organisation/model``; ``"clip:"`` and the folder or hub name of a CLIP model for its text tower.
        precision: ``"float32"``, or ``"bfloat16"`` for the matrix products where the model has them: faster on
            hardware that knows the format, and off by up to 0.002 in a coordinate.

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
    check_choice("precision", precision, PRECISIONS)
    key = str(name)
    if key in _PACKAGED:
        return _PACKAGED[key](precision)
    build, place = (_clip, key.removeprefix(CLIP)) if key.startswith(CLIP) else (_sentence_transformer, key)
    source = find_source(place)
    if source is None:
        raise ValueError(f"`name`: expected {_expected()}, got {key!r}; check the spelling")
    try:
        return build(key, source, precision)
    except MissingExtraError:
        raise
    except Exception as error:
        # The libraries raise what they like over a damaged folder. Long messages stay in the chain.
        reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
        fail("name", _expected(), repr(key), f"it did not load: {reason}")


def find_source(place: str) -> str | Path | None:
    """A folder as a path, a name on the hub as a string, and ``None`` for anything else."""
    folder = user_path(place)
    # Not the empty name, which as a path is the current folder.
    if place and folder.is_dir():
        return folder
    return place if HUB_NAME.fullmatch(place) else None


def _expected() -> str:
    known = ", ".join(repr(known) for known in _PACKAGED)
    return (
        f"{known}, the folder of a sentence-transformers model or its hub name 'organisation/model', or "
        f"'{CLIP}' with a folder or hub name"
    )


def _minilm(precision: str) -> TextEncoder:
    from bcls.labels.minilm import load_minilm

    return load_minilm(precision)


def _wordllama(precision: str) -> TextEncoder:
    from bcls.labels.wordllama import WordLlamaEncoder

    if precision != "float32":
        fail("precision", "'float32' for wordllama, which has no matrix products", repr(precision), "leave it out")
    return WordLlamaEncoder()


def _sentence_transformer(name: str, source: str | Path, precision: str) -> TextEncoder:
    from bcls.labels.sentence import SentenceEncoder

    return SentenceEncoder(name, source, precision)


def _clip(name: str, source: str | Path, precision: str) -> TextEncoder:
    from bcls.labels.clip import ClipEncoder

    return ClipEncoder(name, source, precision)


_PACKAGED: dict[str, Callable[[str], TextEncoder]] = {"minilm": _minilm, "wordllama": _wordllama}
