"""Text encoders: MiniLM, WordLlama, sentence-transformers models and CLIP's text tower."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import check_choice, fail
from bcls._core.extras import MissingExtraError, check_weights, minilm_folder, require
from bcls._core.files import HUB_NAME, user_path
from bcls._core.progress import no_bars

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

#: Called with the number of finished items and the total.
Progress = Callable[[int, int], None]
#: Row numbers of a batch, and their vectors.
Batch = tuple[NDArray[np.int64], Any]

#: Precisions of the matrix products of an encoder.
PRECISIONS = ("float32", "bfloat16")
#: Prefix of the folder or hub name of a CLIP model.
CLIP = "clip:"
_KNOWN = (
    "'minilm', 'wordllama', the folder of a sentence-transformers model or its hub name 'organization/model', or "
    f"'{CLIP}' with a folder or hub name; or several of them joined by '+'"
)


class TextEncoder(ABC):
    """Encodes texts as unit vectors, so that their dot products are cosines.

    Attributes:
        name: The name it was loaded by.
        dimension: Length of the vectors.
    """

    name: str
    dimension: int

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> NDArray[np.float32]:
        """Encode texts.

        Args:
            texts: The texts; a text that occurs more than once is encoded once.
            progress: Called from time to time with the number of distinct texts encoded so far and in all.

        Returns:
            ``(n, d)`` float32 array with unit rows, in the order of ``texts``; ``(0, d)`` for no texts.

        Raises:
            ValueError: ``texts`` is not a sequence of strings.
        """
        expected = "a list of strings"
        if isinstance(texts, str):
            fail("texts", expected, "one string", "put it into a list")
        if not hasattr(texts, "__len__"):
            fail("texts", expected, type(texts).__name__, "convert it with list()")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                fail("texts", expected, f"{type(text).__name__} at index {index}", "remove it, or convert it")
        row_of = {text: row for row, text in enumerate(sorted(set(texts)))}
        vectors = np.empty((len(row_of), self.dimension), dtype=np.float32)
        done = 0
        for rows, values in self._batches(list(row_of)):
            vectors[rows] = values
            done += len(rows)
            if progress is not None:
                progress(done, len(row_of))
        return unit_or_zero(vectors)[[row_of[text] for text in texts]] if len(texts) else vectors

    @abstractmethod
    def _batches(self, texts: list[str]) -> Iterator[Batch]:
        """Encode distinct texts; every row is in one batch."""


def load_text_encoder(name: str | Path, precision: str = "float32") -> TextEncoder:
    """Load a text encoder.

    Args:
        name: ``"minilm"`` (all-MiniLM-L6-v2) or ``"wordllama"`` (static word vectors: faster, less accurate), both from
            installed packages without a download; the folder of a sentence-transformers model, or its name on the hub,
            ``organization/model``; ``"clip:"`` and the folder or hub name of a CLIP model for its text tower. Several
            names joined by ``+``, such as ``"minilm+wordllama"``, give the mean of their cosines.
        precision: ``"float32"``, or ``"bfloat16"`` for the matrix products: faster on hardware that supports it, with
            differences of up to 0.002 per coordinate.

    Returns:
        The encoder.

    Raises:
        ValueError: There is no such encoder, or the packaged weights are not the published ones.
        MissingExtraError: A required package is not installed.

    Example:
        >>> encoder = load_text_encoder("minilm")
        >>> encoder.encode(["a dog runs", "a dog is running"]).shape
        (2, 384)
    """
    check_choice("precision", precision, PRECISIONS)
    key = str(name)
    parts = encoder_parts(key)
    if len(parts) > 1:
        return JoinedEncoder(key, [load_text_encoder(part, precision) for part in parts])
    if key == "minilm":
        return SentenceEncoder(key, minilm_folder(), precision)
    if key == "wordllama":
        return WordLlamaEncoder(precision)
    source = find_source("name", key)
    try:
        return (ClipEncoder if key.startswith(CLIP) else SentenceEncoder)(key, source, precision)
    except MissingExtraError:
        raise
    except Exception as error:
        # The libraries raise exceptions of many types for a damaged folder. The full message stays in the chain.
        reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
        fail("name", _KNOWN, repr(key), f"it did not load: {reason}")


def check_encoder(argument: str, encoder: str) -> None:
    """Check the name of a text encoder without loading the encoder.

    Args:
        argument: Name of the argument, for the message.
        encoder: Name for :func:`load_text_encoder`.

    Raises:
        ValueError: It cannot be the name of an encoder.

    Example:
        >>> check_encoder("--labels", "minilm+wordllama")
    """
    for part in encoder_parts(encoder):
        if part not in {"minilm", "wordllama"}:
            find_source(argument, part)


def encoder_parts(encoder: str) -> list[str]:
    """Split the name of a text encoder at ``+``, unless it is the path of a folder.

    Example:
        >>> encoder_parts("minilm+wordllama")
        ['minilm', 'wordllama']
    """
    if user_path(encoder.removeprefix(CLIP)).is_dir():
        return [encoder]
    return encoder.split("+")


def find_source(argument: str, encoder: str) -> str | Path:
    """Return the folder of an encoder that is not packaged, or its hub name as a string.

    Args:
        argument: Name of the argument, for the message.
        encoder: Name for :func:`load_text_encoder`.

    Raises:
        ValueError: It is neither.
    """
    location = encoder.removeprefix(CLIP)
    folder = user_path(location)
    # The empty name would be the current folder.
    if location and folder.is_dir():
        return folder
    if not HUB_NAME.fullmatch(location):
        fail(argument, _KNOWN, repr(encoder), "check the spelling")
    return location


def unit_or_zero(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Normalize rows in place; zero vectors, which some models return for an empty text, are kept."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.divide(vectors, lengths, out=vectors, where=lengths > 0)
    return vectors


class JoinedEncoder(TextEncoder):
    """Several encoders side by side: the cosine of two texts is the mean of their cosines by the encoders.

    If an encoder has no vector for a text, as WordLlama for an empty one, its cosine counts as 0, and those of the
    others count more: the vector of the text has unit length.

    Args:
        name: Name of the encoder.
        encoders: Encoders, of which each has the same weight.

    Example:
        >>> JoinedEncoder("twice", [WordLlamaEncoder(), WordLlamaEncoder()]).encode(["a dog runs"]).shape
        (1, 512)
    """

    def __init__(self, name: str, encoders: Sequence[TextEncoder]) -> None:
        self.name, self._encoders = name, encoders
        self.dimension = sum(encoder.dimension for encoder in encoders)

    def _batches(self, texts: list[str]) -> Iterator[Batch]:
        for start in range(0, len(texts), _TEXTS_PER_CALL):
            part = texts[start : start + _TEXTS_PER_CALL]
            vectors = [encoder.encode(part) for encoder in self._encoders]
            yield np.arange(start, start + len(part)), np.concatenate(vectors, axis=1)


class WordLlamaEncoder(TextEncoder):
    """Mean of static word vectors, 256 dimensions; see :class:`TextEncoder`.

    Raises:
        ValueError: The weights are missing or not the published ones, or another precision than float32 is requested.
        MissingExtraError: The package is not installed.

    Example:
        >>> WordLlamaEncoder().encode(["a dog runs", "a dog runs"]).shape
        (2, 256)
    """

    name = "wordllama"
    dimension = 256

    def __init__(self, precision: str = "float32") -> None:
        if precision != "float32":
            expected = "'float32' for wordllama, which has no matrix products"
            fail("precision", expected, repr(precision), "omit the precision")
        library = import_wordllama()
        folder = Path(library.__file__ or "").parent
        check_weights(self.name, folder / _WORDLLAMA_WEIGHTS, WEIGHTS_SHA256, "wordllama==0.4.0.post1")
        self._model = library.WordLlama.load(cache_dir=folder, disable_download=True)

    def _batches(self, texts: list[str]) -> Iterator[Batch]:
        for start in range(0, len(texts), _TEXTS_PER_CALL):
            part = texts[start : start + _TEXTS_PER_CALL]
            yield np.arange(start, start + len(part)), self._model.embed(part)


def import_wordllama() -> ModuleType:
    """Import wordllama without its configuration of the root logger, which would print the log of every library.

    Raises:
        MissingExtraError: It is not installed.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        return require("wordllama", "text", "the text encoder 'wordllama'")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


_WORDLLAMA_WEIGHTS = "weights/l2_supercat_256.safetensors"
#: Of the weights in wordllama 0.4.0.post1.
WEIGHTS_SHA256 = "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5"
# Texts that are embedded or tokenized in one call.
_TEXTS_PER_CALL = 4096


class SentenceEncoder(TextEncoder):
    """A sentence-transformers model; see :class:`TextEncoder`.

    The modules of a standard model (a transformer, a pooling and an optional normalization) are called directly: every
    distinct text is tokenized once, and texts of equal length form a batch. Other models use their own ``encode``.

    Args:
        name: Name of the encoder.
        source: Folder of the model, a path, or its name on the hub, a string.
        precision: ``"float32"``, or ``"bfloat16"`` for the matrix products of a standard model.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
        OSError: There is no such model, or it cannot be downloaded.
        ValueError: bfloat16 is requested for a model that is not standard.

    Example:
        >>> SentenceEncoder("mine", minilm_folder()).dimension
        384
    """

    def __init__(self, name: str, source: str | Path, precision: str = "float32") -> None:
        library = require("sentence_transformers", "text", f"the text encoder {name!r}")
        self.name = name
        with _quiet(source):
            self._model = library.SentenceTransformer(str(source), local_files_only=isinstance(source, Path))
        self._model.eval()
        self._precision = precision
        self._standard = _is_standard(self._model)
        if precision != "float32" and not self._standard:
            modules = ", ".join(type(module).__name__ for module in self._model)
            fail("precision", f"'float32' for a model of {modules}", repr(precision), "omit the precision")
        self.dimension = len(self._model.encode("a text", show_progress_bar=False))

    def _batches(self, texts: list[str]) -> Iterator[Batch]:
        if self._standard:
            yield from _encode_standard(self._model, texts, self._precision)
            return
        order = np.argsort([-len(text) for text in texts], kind="stable")
        for start in range(0, len(order), 64):
            rows = order[start : start + 64]
            yield rows, self._model.encode([texts[row] for row in rows], batch_size=64, show_progress_bar=False)


def _is_standard(model: Any) -> bool:
    """Return whether a model is a transformer, a pooling and an optional normalization, for texts without a prompt."""
    names = [type(module).__name__ for module in model]
    if names not in (["Transformer", "Pooling", "Normalize"], ["Transformer", "Pooling"]):
        return False
    known = {"input_ids", "attention_mask", "token_type_ids"}
    tokens = tokenize(model, ["a text"]).keys()
    return getattr(model, "default_prompt_name", None) is None and {"input_ids", "attention_mask"} <= tokens <= known


def tokenize(model: Any, texts: Sequence[str]) -> dict[str, "torch.Tensor"]:
    """Tokenize texts as the model's own ``encode`` does: ``(n, W)`` tensors."""
    # `preprocess` replaced `tokenize` in release 5.
    features = (model.preprocess if hasattr(model, "preprocess") else model.tokenize)(list(texts))
    return {name: value for name, value in features.items() if hasattr(value, "shape")}


def _encode_standard(model: Any, texts: list[str], precision: str) -> Iterator[Batch]:
    import torch

    pad = torch.nn.utils.rnn.pad_sequence
    rows: list[dict[str, torch.Tensor]] = []
    for start in range(0, len(texts), _TEXTS_PER_CALL):
        rows += _tokens_of_each(model, texts[start : start + _TEXTS_PER_CALL])
    fill = getattr(model.tokenizer, "pad_token_id", None) or 0
    # One context for all batches, so that autocast converts the weights once.
    with torch.inference_mode(), _autocast(model, precision):
        for chosen in group_by_length(np.array([len(row["input_ids"]) for row in rows], dtype=np.int64)):
            batch = {
                name: pad([rows[row][name] for row in chosen], True, fill * (name == "input_ids")).to(model.device)
                for name in rows[chosen[0]]
            }
            yield chosen, model(batch)["sentence_embedding"].float().cpu().numpy()


def _tokens_of_each(model: Any, texts: Sequence[str]) -> list[dict[str, "torch.Tensor"]]:
    """Return the tokens of each text without padding."""
    import torch

    features = tokenize(model, texts)
    kept = features["attention_mask"].bool()
    sizes = kept.sum(dim=1).tolist()
    parts = {name: torch.split(value[kept], sizes) for name, value in features.items()}
    return [{name: part[row] for name, part in parts.items()} for row in range(len(texts))]


#: Tokens of a batch, padding included. Larger batches exceed the CPU's caches, smaller ones add overhead per call.
TOKENS = 1024
# Fewer texts cost more as a batch of their own than as padded texts of the next batch.
_FEW = 16


def group_by_length(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Group texts of similar length into batches, longest first, so that a lack of memory shows at once.

    A batch holds texts of one length; if these are few, it also takes the next shorter ones. It has at most
    :data:`TOKENS` tokens, padding included; a longer text is a batch of its own.

    Args:
        lengths: ``(n,)`` number of tokens of each text.

    Returns:
        Row numbers of each batch; every row is in one.

    Example:
        >>> group_by_length(np.array([300, 900, 300, 300]))
        [array([1]), array([0, 2, 3])]
    """
    order = np.argsort(-lengths, kind="stable")
    sorted_lengths = lengths[order]
    # Ends of the runs of equal lengths.
    ends = np.append(np.flatnonzero(np.diff(sorted_lengths)) + 1, len(order))
    batches = []
    start = 0
    while start < len(order):
        most = max(1, TOKENS // max(1, int(sorted_lengths[start])))
        run = int(ends[np.searchsorted(ends, start, side="right")])
        stop = min(start + most, max(run, start + _FEW), len(order))
        batches.append(order[start:stop])
        start = stop
    return batches


class ClipEncoder(TextEncoder):
    """A CLIP model of transformers, or a similar one such as SigLIP; see :class:`TextEncoder`.

    Args:
        name: Name of the encoder.
        source: Folder of the model, a path, or its name on the hub, a string.
        precision: ``"float32"`` or ``"bfloat16"``.

    Raises:
        MissingExtraError: transformers is not installed.
        OSError: There is no such model, or it cannot be downloaded.
        ValueError: The model does not have an image and a text tower.
    """

    def __init__(self, name: str, source: str | Path, precision: str = "float32") -> None:
        self._library = require("transformers", "text", f"the text encoder {name!r}")
        self.name = name
        self._source, self._precision = str(source), precision
        self._options = {"local_files_only": isinstance(source, Path)}
        with _quiet(source):
            self._tokenizer = self._library.AutoTokenizer.from_pretrained(self._source, **self._options)
            self._model = self._library.AutoModel.from_pretrained(self._source, **self._options).eval()
        if not hasattr(self._model, "get_text_features"):
            fail("name", "a model with an image and a text tower", type(self._model).__name__, "use a CLIP model")
        self.dimension = self._encode(["a text"]).shape[1]

    def encode_photos(self, photos: Iterable["Image"], progress: Progress | None = None) -> NDArray[np.float32]:
        """Encode photos as ``(n, d)`` unit rows in the same space.

        Args:
            photos: Images in mode RGB; read one after another.
            progress: Called after each batch with the number of photos encoded so far, twice.
        """
        import torch

        # The PIL version of the processor; the other one needs torchvision. `backend` replaced `use_fast` in release 5.
        release = int(self._library.__version__.split(".")[0])
        options = {**self._options, **({"backend": "pil"} if release >= 5 else {"use_fast": False})}
        prepare = self._library.AutoImageProcessor.from_pretrained(self._source, **options)
        batches, done = [np.empty((0, self.dimension), dtype=np.float32)], 0
        remaining = iter(photos)
        while batch := list(islice(remaining, 32)):
            with torch.inference_mode(), _autocast(self._model, self._precision):
                pixels = prepare(images=batch, return_tensors="pt")["pixel_values"].to(self._model.device)
                batches.append(_vectors(self._model.get_image_features(pixel_values=pixels)))
            done += len(batch)
            if progress is not None:
                progress(done, done)
        return unit_or_zero(np.concatenate(batches))

    def _batches(self, texts: list[str]) -> Iterator[Batch]:
        for rows in group_by_length(np.array([len(text.split()) + 2 for text in texts], dtype=np.int64)):
            yield rows, self._encode([texts[row] for row in rows])

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        import torch

        # SigLIP was trained on texts padded to full length; CLIP ignores everything after a text.
        padding = "max_length" if "siglip" in self._model.config.model_type else True
        with torch.inference_mode(), _autocast(self._model, self._precision):
            tokens = self._tokenizer(texts, padding=padding, truncation=True, return_tensors="pt")
            return _vectors(self._model.get_text_features(**tokens.to(self._model.device)))


def _vectors(output: Any) -> NDArray[np.float32]:
    """Return the vectors of a tower; since release 5 of transformers they are part of an output object."""
    rows: NDArray[np.float32] = getattr(output, "pooler_output", output).float().cpu().numpy()
    return rows


def _autocast(model: Any, precision: str) -> AbstractContextManager[Any]:
    import torch

    return torch.autocast(model.device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def _quiet(source: str | Path) -> AbstractContextManager[Any]:
    """Suppress progress bars while a local model is read, but not while one is downloaded."""
    if isinstance(source, str):
        return nullcontext()
    return no_bars(require("transformers.utils.logging", "text", "text encoders"))
