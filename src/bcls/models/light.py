"""Exported models on ONNX Runtime: encode images and texts with numpy, without torch.

:func:`bcls.models.export.export_onnx` writes the folder. Importing this module imports neither torch nor ONNX Runtime.
"""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from bcls._core.config import from_plain
from bcls._core.errors import fail, reason_of, refuse_damage
from bcls._core.extras import cpu_count, require
from bcls.data.text_files import read_json
from bcls.data.vocabulary import Vocabulary
from bcls.features.image_processing import Resize, read_image
from bcls.models.folder import CONFIG, ONNX, SHA256, VOCABULARY, WEIGHTS, check_hashes

#: Files of both towers: the graphs, and weights that are not in ``model.safetensors``.
IMAGES, TEXTS = "image.onnx", "text.onnx"
IMAGE_WEIGHTS, TEXT_WEIGHTS = "image.safetensors", "text.safetensors"
TOKENIZER = "tokenizer.json"
#: Version of the description in ``config.json``.
VERSION = 1
#: Crops or texts per run of a graph: with few of them the activations stay in the caches.
_CROPS_TOGETHER, _TEXTS_TOGETHER = 8, 16
_COPY_AGAIN = "copy the whole folder again, or export the model again with `bcls export`"

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Exported:
    """Description of an export, and its agreement with torch: ``"onnx"`` in ``config.json``.

    Attributes:
        model: Registered name of the model.
        width: Width of the vectors, D.
        images: Input of ``image.onnx``: ``pixels`` (uint8, RGB, channels first), ``vectors`` or ``regions``.
        image_shape: Shape of that input; letters are free.
        resize: How images are resized, if the input is pixels. Crops and normalization are part of ``image.onnx``.
        crops: Number of crops of an image that ``image.onnx`` makes and encodes.
        text_files: Files that turn captions into token ids; none if the model accepts token ids only.
        max_tokens: Longest caption in tokens, special tokens included, if there is a limit.
        precision: ``float16`` if large weights are stored in half precision, else ``float32``; both compute in float32.
            ``int8``: as float16, and linear layers of the text encoder compute in int8.
        image_difference: Largest difference between ONNX Runtime and torch in an entry of an image vector.
        text_difference: The same for captions.
        tolerance: Allowed difference with float32, otherwise allowed cosine distance.
        version: Version of this description.
        shared: Folder beside this one with the weights and the tokenizer that this one lacks; empty if it has them.
    """

    model: str
    width: int
    images: str
    image_shape: tuple[str | int, ...]
    resize: Resize | None
    crops: int
    text_files: tuple[str, ...]
    max_tokens: int | None
    precision: str
    image_difference: float
    text_difference: float
    tolerance: float
    version: int = VERSION
    shared: str = ""


class ImageBatch(NamedTuple):
    """Input of ``image.onnx``: pixels ``(N, 3, H, W)``, vectors ``(N, d)``, or regions ``(N, R, d)`` with lengths."""

    values: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64] | None = None


def is_light_folder(folder: Path) -> bool:
    """Whether a folder holds an export."""
    return (folder / IMAGES).is_file() and (folder / CONFIG).is_file()


class LightModel:
    """An exported model. Files are checked when they are first used, so that a text query reads the text tower only.

    Threads may encode at the same time.

    Args:
        folder: Folder that ``bcls export`` wrote.
        device: ``"cpu"``, or ``"cuda"`` or ``"cuda:1"`` with the package ``onnxruntime-gpu``.

    Attributes:
        folder: The folder.
        about: Its description.
        weights: Hash of the hashes of all files, which identifies the model.
        side: Largest side of the resized image in pixels; 0 if the model reads features.

    Raises:
        ValueError: The folder is not an export, or ONNX Runtime cannot use the device.
        MissingExtraError: ONNX Runtime or tokenizers is not installed.
    """

    def __init__(self, folder: str | Path, device: str = "cpu") -> None:
        self.folder, self.device = Path(folder), device
        content = read_json(self.folder / CONFIG)
        where = str(self.folder / CONFIG)
        if not isinstance(content, dict) or not isinstance(content.get(ONNX), dict):
            fail(where, f'the config of an exported model, with "{ONNX}"', "none", "export it with `bcls export`")
        if content[ONNX].get("version") != VERSION:
            got = f"version {content[ONNX].get('version')!r}"
            fail(where, f"an export of version {VERSION}", got, "export the model again with `bcls export`")
        hashes = content.get(SHA256)
        if not isinstance(hashes, dict) or not {IMAGES, TEXTS} <= hashes.keys():
            fail(where, f'"{SHA256}" with the hashes of the files', "none", _COPY_AGAIN)
        self._hashes: dict[str, Any] = hashes
        self.about: Exported = from_plain(Exported, content[ONNX], CONFIG)
        self.weights = hashlib.sha256(repr(sorted(self._hashes.items())).encode()).hexdigest()
        resize = self.about.resize
        self.side = 0 if resize is None else max(resize.height, resize.width)
        self._providers = _providers(device)
        self._cores = cpu_count() if device == "cpu" else 1
        require("tokenizers", "search", "a photo search")

    def encode_images(self, images: Sequence[str | Path | Image.Image]) -> Vectors:
        """``(N, D)`` unit vectors of paths or PIL images."""
        return self.image_vectors([self.prepare_images([image]) for image in images])

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """``(C, D)`` unit vectors of texts; neighbors in the sequence should have similar lengths."""
        _ = self._text_tower  # loaded in one thread
        step = min(_TEXTS_TOGETHER, max(8, -(-len(texts) // self._cores)))
        return self._encode(self._encode_tokens, [self._tokens(text) for text in texts], step)

    def _encode(self, encode: Callable[[Any], Vectors], items: Sequence[Any], step: int) -> Vectors:
        """``(N, D)`` vectors of items, some at a time in each thread."""
        groups = [items[start : start + step] for start in range(0, len(items), step)]
        found = map(encode, groups) if len(groups) == 1 else self._threads.map(encode, groups)
        return np.concatenate([np.empty((0, self.about.width), np.float32), *found])

    def _encode_tokens(self, rows: Sequence[Sequence[int]]) -> Vectors:
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        numbers = np.zeros((len(rows), lengths.max()), dtype=np.int64)
        for place, row in enumerate(rows):
            numbers[place, : len(row)] = row
        vectors: Vectors = self._text_tower.run(None, {"numbers": numbers, "lengths": lengths})[0]
        return vectors

    def similarity(self, images: Sequence[str | Path | Image.Image], texts: Sequence[str]) -> Vectors:
        """``(N, C)`` scores of all pairs."""
        return np.asarray(self.encode_images(images) @ self.encode_texts(texts).T)

    def prepare_images(self, images: Any) -> ImageBatch:
        """Convert images to the input of :meth:`image_vectors`.

        Args:
            images: Paths or PIL images; an :class:`ImageBatch` of features if the model reads features.

        Raises:
            ValueError: The model reads something else, or an image is damaged.
        """
        about = self.about
        if isinstance(images, ImageBatch):
            rank, width = (2 if about.images == "vectors" else 3), about.image_shape[-1]
            if about.images == "pixels" or images.values.ndim != rank or images.values.shape[-1] != width:
                expected = f"{about.images} of shape {' x '.join(map(str, about.image_shape))}"
                fail("images", expected, f"features {images.values.shape}", "use the features of this model")
            full = np.full(len(images.values), images.values.shape[1], dtype=np.int64)
            lengths = (full if images.lengths is None else images.lengths) if rank == 3 else None
            return ImageBatch(np.asarray(images.values, dtype=np.float32), lengths)
        if about.resize is None:
            fail("images", f"{about.images} of features", "images", "index a dataset with --features")
        return ImageBatch(np.stack([about.resize.pixels(read_image(image)) for image in images]))

    def image_vectors(self, batches: Sequence[ImageBatch]) -> Vectors:
        """``(N, D)`` unit vectors of prepared images; each core encodes a few images at a time."""
        step = max(1, _CROPS_TOGETHER // self.about.crops) if self.device == "cpu" else 64
        _ = self._image_tower  # loaded in one thread
        return self._encode(self._encode_images, batches, step)

    def _encode_images(self, batches: Sequence[ImageBatch]) -> Vectors:
        given = {"images": np.concatenate([batch.values for batch in batches])}
        lengths = [batch.lengths for batch in batches if batch.lengths is not None]
        if lengths:
            given["lengths"] = np.concatenate(lengths)
        vectors: Vectors = self._image_tower.run(None, given)[0]
        return vectors

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        # One thread for each core, each with a run of its own: faster than several threads within a run.
        return ThreadPoolExecutor(self._cores, thread_name_prefix="bcls-encode")

    @cached_property
    def _image_tower(self) -> Any:
        return self._session(IMAGES, (IMAGES, IMAGE_WEIGHTS, WEIGHTS))

    @cached_property
    def _text_tower(self) -> Any:
        return self._session(TEXTS, (TEXTS, TEXT_WEIGHTS, WEIGHTS))

    def _session(self, name: str, files: Sequence[str]) -> Any:
        folders = {one: self._folder_of(one) for one in files if one in self._hashes}
        for one, folder in folders.items():
            check_hashes(folder, self._hashes, [one])
        runtime = require("onnxruntime", "search", "a photo search")
        options = runtime.SessionOptions()
        if self.about.shared:  # the runtime itself does not read files of other folders
            weights = {one: (folder / one).read_bytes() for one, folder in folders.items() if one != name}
            sizes = [len(one) for one in weights.values()]
            options.add_external_initializers_from_files_in_memory([*weights], [*weights.values()], sizes)
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        path = self.folder / name
        try:
            # Adding before a layer norm is faster than the operator for both.
            disabled = ["SkipLayerNormFusion"] if self.device == "cpu" else None
            return runtime.InferenceSession(str(path), options, providers=self._providers, disabled_optimizers=disabled)
        except Exception as error:  # noqa: BLE001, RUF100 - the runtime has many types of errors
            fail(str(path), "a graph that ONNX Runtime can read", f"an error ({reason_of(error)})", _COPY_AGAIN)

    def _folder_of(self, name: str) -> Path:
        """The folder with a file: this one, or the one that it shares files with."""
        shared = self.about.shared and not (self.folder / name).exists()
        return self.folder.parent / self.about.shared if shared else self.folder

    def _tokens(self, text: str) -> list[int]:
        if isinstance(self._tokenizer, Vocabulary):
            return self._tokenizer.encode(text)
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids or [0]

    @cached_property
    def _tokenizer(self) -> Any:
        files = self.about.text_files
        if not files:
            fail(str(self.folder), "a tokenizer or vocabulary", "none", "export the model with its vocabulary")
        path = self._folder_of(files[0]) / files[0]
        check_hashes(path.parent, self._hashes, files)
        if not path.is_file():
            fail(str(path), "the tokenizer of the model", "no such file", _COPY_AGAIN)
        if path.name == VOCABULARY:
            return Vocabulary.read(path)
        with refuse_damage(str(path), "a tokenizer", _COPY_AGAIN, Exception):  # tokenizers raises plain exceptions
            return require("tokenizers", "search", "a photo search").Tokenizer.from_file(str(path))


def _providers(device: str) -> list[Any]:
    """Execution providers of ONNX Runtime for a device."""
    available = require("onnxruntime", "search", "a photo search").get_available_providers()
    kind, _, number = device.partition(":")
    if device == "cpu":
        return ["CPUExecutionProvider"]
    if kind != "cuda" or (number and not number.isdecimal()):
        fail("device", "cpu, cuda or cuda:NUMBER for a model on ONNX Runtime", repr(device), "choose one of these")
    if "CUDAExecutionProvider" not in available:
        hint = "pip uninstall onnxruntime, then pip install onnxruntime-gpu"
        fail("device", "an ONNX Runtime with CUDA", f"one with {', '.join(available)}", hint)
    return [("CUDAExecutionProvider", {"device_id": int(number or 0)}), "CPUExecutionProvider"]
