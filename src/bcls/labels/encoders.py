"""Text encoders by name: what turns captions into the vectors that labels are made from.

What every text encoder does around its model: each different text once, and unit rows.

Which texts go through a model together: texts of like length, so that little of a batch is padding.

The modules of a sentence-transformers model called directly: tokens once, batches without padding.

Any sentence-transformers model as a text encoder.

CLIP through transformers: its text tower as a text encoder, and its score of a photo against a text.

all-MiniLM-L6-v2 out of an installed package: no download, and the weights checked against the published ones.

WordLlama out of an installed package: static word vectors, small and fast, for when MiniLM takes too long.

What an encoder is made of, as two hashes, without loading it: a cache knows by them who made it.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import check_choice, fail
from bcls._core.extras import MissingExtraError, check_weights, minilm_folder, require, sha256_of
from bcls._core.files import HUB_NAME, user_path
from bcls._core.progress import no_bars

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

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

    return load_minilm(precision)


def _wordllama(precision: str) -> TextEncoder:

    if precision != "float32":
        fail("precision", "'float32' for wordllama, which has no matrix products", repr(precision), "leave it out")
    return WordLlamaEncoder()


def _sentence_transformer(name: str, source: str | Path, precision: str) -> TextEncoder:

    return SentenceEncoder(name, source, precision)


def _clip(name: str, source: str | Path, precision: str) -> TextEncoder:

    return ClipEncoder(name, source, precision)


_PACKAGED: dict[str, Callable[[str], TextEncoder]] = {"minilm": _minilm, "wordllama": _wordllama}


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


#: Tokens of a batch, padding included. Larger batches leave the CPU's caches, smaller ones pay for each call.
TOKENS = 1024
# A batch of fewer texts costs more as a call of its own than its texts cost as padding of their neighbours' batch.
_FEW = 16


def group_by_length(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Put texts into batches, longest first, so that too little memory shows at once.

    A batch holds texts of one length; only where these are few does it go on with the next shorter ones. It has at most
    :data:`TOKENS` tokens, padding included; a longer text has a batch of its own.

    Args:
        lengths: ``(n,)`` number of tokens of each text.

    Returns:
        Rows of each batch; every row is in one.

    Example:
        >>> group_by_length(np.array([300, 900, 300, 300]))
        [array([1]), array([0, 2, 3])]
    """
    order = np.argsort(-lengths, kind="stable")
    sorted_lengths = lengths[order]
    # Where a run of equal lengths ends.
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


# Texts that are tokenised in one call.
_AT_ONCE = 4096
_USUAL = ("Transformer", "Pooling", "Normalize")
# What a tokeniser may give; a model that is handed anything else is left to its own `encode`.
_KNOWN = {"input_ids", "attention_mask", "token_type_ids"}


def is_usual(model: Any) -> bool:
    """Whether a model is a transformer, a pooling and perhaps a normalisation, for texts and without a prompt."""
    names = tuple(type(module).__name__ for module in model)
    if names not in {_USUAL, _USUAL[:2]} or getattr(model, "default_prompt_name", None) is not None:
        return False
    features = tokenise(model, ["a text"])
    return {"input_ids", "attention_mask"} <= features.keys() <= _KNOWN


def tokenise(model: Any, texts: Sequence[str]) -> dict[str, "torch.Tensor"]:
    """Tokens of texts as the model's own ``encode`` makes them: ``(n, W)`` tensors."""
    # `preprocess` replaced `tokenize` in release 5.
    features = (model.preprocess if hasattr(model, "preprocess") else model.tokenize)(list(texts))
    return {name: value for name, value in features.items() if hasattr(value, "shape")}


def encode_usual(model: Any, texts: Sequence[str], precision: str) -> Iterator[Part]:
    """Encode different texts in batches of like length.

    Args:
        model: A model that :func:`is_usual`.
        texts: n texts.
        precision: ``"float32"``, or ``"bfloat16"`` for the matrix products.

    Yields:
        Rows of a batch, and their ``(b, d)`` float32 vectors, as the model gives them.
    """
    import torch

    rows = [row for start in range(0, len(texts), _AT_ONCE) for row in _rows(model, texts[start : start + _AT_ONCE])]
    lengths = np.array([len(next(iter(row.values()))) for row in rows], dtype=np.int64)
    fill = getattr(model.tokenizer, "pad_token_id", None) or 0
    # One context around all batches: autocast then converts the weights once.
    cast = torch.autocast(model.device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
    with torch.inference_mode(), cast:
        for chosen in group_by_length(lengths):
            batch = [rows[row] for row in chosen]
            features = {name: _stack([row[name] for row in batch], fill * (name == "input_ids")) for name in batch[0]}
            output = model({name: value.to(model.device) for name, value in features.items()})
            yield chosen, output["sentence_embedding"].float().cpu().numpy()


def _rows(model: Any, texts: Sequence[str]) -> list[dict[str, "torch.Tensor"]]:
    """Each text's own tokens, without those that filled it up to the longest."""
    import torch

    features = tokenise(model, texts)
    kept = features["attention_mask"].bool()
    sizes = kept.sum(dim=1).tolist()
    parts = {name: torch.split(value[kept], sizes) for name, value in features.items()}
    return [{name: part[row] for name, part in parts.items()} for row in range(len(texts))]


def _stack(tokens: Sequence["torch.Tensor"], fill: int) -> "torch.Tensor":
    import torch

    if len(tokens[0]) == len(tokens[-1]):  # sorted by length, so all are equal
        return torch.stack(list(tokens))
    return torch.nn.utils.rnn.pad_sequence(list(tokens), batch_first=True, padding_value=fill)


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


# Photos that go through the image tower together.
_PHOTOS = 32


class ClipEncoder:
    """A CLIP model of transformers; see :class:`bcls.labels.TextEncoder`. Models alike, such as SigLIP, work as well.

    Args:
        name: What to call it.
        source: The model's folder, a path, or its name on the hub, a string.
        precision: ``"float32"`` or ``"bfloat16"``.

    Raises:
        MissingExtraError: If transformers is not installed.
        OSError: If there is no such model, or it cannot be reached.
        ValueError: If the model has no text tower of that kind.
    """

    def __init__(self, name: str, source: str | Path, precision: str = "float32") -> None:
        library = require("transformers", "text", f"the text encoder {name!r}")
        self.name = name
        self._source, self._precision = source, precision
        local = isinstance(source, Path)
        with no_bars(require("transformers.utils.logging", "text", "text encoders")) if local else nullcontext():
            self._tokeniser = library.AutoTokenizer.from_pretrained(str(source), local_files_only=local)
            self._model = library.AutoModel.from_pretrained(str(source), local_files_only=local).eval()
        if not hasattr(self._model, "get_text_features"):
            fail("name", "a model with an image and a text tower", type(self._model).__name__, "give a CLIP model")
        self.dimension = self._texts(["a text"]).shape[1]

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> NDArray[np.float32]:
        """Encode texts into unit rows, each different text once; see :meth:`bcls.labels.TextEncoder.encode`."""
        return encode_distinct(texts, self.dimension, self._parts, progress)

    def encode_photos(self, photos: Iterable["Image"], progress: Progress | None = None) -> NDArray[np.float32]:
        """Encode photos into ``(n, d)`` unit rows of the same space.

        Args:
            photos: Pictures in mode RGB; read one after another.
            progress: Called now and then with how many are done, twice.
        """
        import torch

        # The PIL version: the other one needs torchvision.
        library = require("transformers", "text", f"the photos of {self.name!r}")
        local = isinstance(self._source, Path)
        prepare = library.AutoImageProcessor.from_pretrained(
            str(self._source), local_files_only=local, **_pil_only(library)
        )
        parts, done = [np.empty((0, self.dimension), dtype=np.float32)], 0
        source = iter(photos)
        while batch := list(islice(source, _PHOTOS)):
            with torch.inference_mode(), self._cast():
                pixels = prepare(images=batch, return_tensors="pt")["pixel_values"].to(self._model.device)
                parts.append(_clip_rows(self._model.get_image_features(pixel_values=pixels)))
            done += len(batch)
            if progress is not None:
                progress(done, done)
        return unit_or_zero(np.concatenate(parts))

    def _parts(self, texts: Sequence[str]) -> Iterator[Part]:
        for rows in group_by_length(np.array([len(text.split()) + 2 for text in texts], dtype=np.int64)):
            yield rows, self._texts([texts[row] for row in rows])

    def _texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import torch

        # SigLIP was trained on texts padded to full length; CLIP does not see what follows a text.
        padding = "max_length" if "siglip" in self._model.config.model_type else True
        with torch.inference_mode(), self._cast():
            tokens = self._tokeniser(list(texts), padding=padding, truncation=True, return_tensors="pt")
            return _clip_rows(self._model.get_text_features(**tokens.to(self._model.device)))

    def _cast(self) -> AbstractContextManager[Any]:
        import torch

        if self._precision == "float32":
            return nullcontext()
        return torch.autocast(self._model.device.type, torch.bfloat16)


def _clip_rows(output: Any) -> NDArray[np.float32]:
    """The vectors themselves; since release 5 of transformers they come inside an output."""
    rows: NDArray[np.float32] = getattr(output, "pooler_output", output).float().cpu().numpy()
    return rows


def _pil_only(library: Any) -> dict[str, Any]:
    """What asks for the processor that needs no torchvision: ``backend`` since release 5, ``use_fast`` before."""
    return {"backend": "pil"} if int(library.__version__.split(".")[0]) >= 5 else {"use_fast": False}


def load_minilm(precision: str = "float32") -> SentenceEncoder:
    """Load the packaged all-MiniLM-L6-v2, 384 dimensions.

    Args:
        precision: ``"float32"`` or ``"bfloat16"``.

    Raises:
        ValueError: If the weights are missing or not the published ones.
        MissingExtraError: If the package is not installed.

    Example:
        >>> load_minilm().dimension
        384
    """
    return SentenceEncoder("minilm", minilm_folder(), precision)


_BATCH_WORDLLAMA = 4096
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
        for start in range(0, len(texts), _BATCH_WORDLLAMA):
            rows = np.arange(start, min(start + _BATCH_WORDLLAMA, len(texts)))
            yield rows, self._model.embed(texts[start : start + _BATCH_WORDLLAMA])


_WEIGHTS_FINGERPRINT = {".safetensors", ".bin", ".pt", ".pth", ".npy", ".npz"}
_SETTINGS = {".json", ".txt", ".model", ".vocab", ".py"}
# Weights in other formats, which are not what is loaded.
_OTHER_FORMATS = {"onnx", "openvino"}


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of an encoder's files."""

    weights: str
    """sha256 over the names and contents of the files with weights."""
    settings: str
    """sha256 over those with everything else: modules, pooling, longest text, vocabulary."""


def fingerprint(encoder: str | Path) -> Fingerprint:
    """Hash the files of a text encoder.

    Args:
        encoder: A name for :func:`bcls.labels.load_text_encoder`.

    Raises:
        ValueError: If there is no such encoder, or a model of the hub is not on this machine.
        MissingExtraError: If the package with its files is not installed.

    Example:
        >>> len(fingerprint("minilm").weights)
        64
    """
    folder = _folder(str(encoder))
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and _counts(path.relative_to(folder))]
    weights, settings = ([path for path in files if path.suffix in kind] for kind in (_WEIGHTS_FINGERPRINT, _SETTINGS))
    if not weights:
        fail("encoder", f"weights in {folder}", "none", "give the folder of a complete model")
    return Fingerprint(_hash(folder, weights), _hash(folder, settings))


def _folder(encoder: str) -> Path:
    if encoder == "minilm":
        return minilm_folder()
    if encoder == "wordllama":
        return Path(require("wordllama", "text", "the text encoder 'wordllama'").__file__ or "").parent
    source = find_source(encoder.removeprefix(CLIP))
    if source is None:
        fail("encoder", "'minilm', 'wordllama', a folder or a hub name", repr(encoder), "check the spelling")
    if isinstance(source, Path):
        return source
    hub = require("huggingface_hub", "text", f"the text encoder {encoder!r}")
    try:
        return Path(hub.snapshot_download(source, local_files_only=True))
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        fail("encoder", f"{source!r} on this machine", reason, f"download it, such as with `hf download {source}`")


def _counts(path: Path) -> bool:
    return not any(part.startswith(".") or part in _OTHER_FORMATS for part in path.parts)


def _hash(folder: Path, paths: Iterable[Path]) -> str:
    listed = "\n".join(f"{path.relative_to(folder).as_posix()} {_known_hash(path)}" for path in paths)
    return hashlib.sha256(listed.encode()).hexdigest()


def _known_hash(path: Path) -> str:
    """Hash a file, once in a process unless it changes: many runs of a sweep ask for the same ones."""
    about = path.stat()
    return _hash_of(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=64)
def _hash_of(path: Path, _size: int, _changed: int) -> str:
    return sha256_of(path)
