"""Embedding of photos and texts: unit vectors, pair scores, and the threads that read photos ahead of the model."""

import hashlib
import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail
from bcls._core.extras import check_device, require
from bcls.data.images import decode
from bcls.models.light import ImageBatch, LightModel, is_light_folder
from bcls.models.loading import find_folder, load
from bcls.search.catalog import Photo
from bcls.search.engine import Vectors
from bcls.search.source import ExifInfo, PhotoSource, SourceItem, read_exif

if TYPE_CHECKING:
    from PIL import Image

    from bcls.models.base import RetrievalModel
    from bcls.models.layers import Padded

#: Images per forward pass.
BATCH = 64
PRECISIONS = ("float32", "bfloat16")
#: Dates that :class:`datetime.datetime` can have; file systems allow others.
_EARLIEST, _LATEST = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (1, 9999))
#: A model for torch, or an exported one for ONNX Runtime.
SearchModel: TypeAlias = "RetrievalModel | LightModel"
#: Images that were prepared by a model.
Prepared: TypeAlias = "Padded | ImageBatch"


def load_search_model(name: str | Path, device: str = "cpu") -> SearchModel:
    """Load a model for searches: an exported one for ONNX Runtime, which does not import torch, else one for torch.

    Args:
        name: As for :func:`bcls.models.load`, or the folder of an export.
        device: Device of the model.

    Raises:
        ValueError: There is no such model or device, or its files are damaged.
        MissingExtraError: A package that the model needs is not installed.
    """
    folder = find_folder(name)
    if is_light_folder(folder):
        return LightModel(folder, device)
    require("torch", "train", f"the model {str(name)!r}, which is not exported to ONNX,")
    return load(folder).to(check_device(device)).eval()


def ready_model(model: "str | SearchModel", device: str, precision: str) -> SearchModel:
    """A model for indexing: loaded if it is a name, on the device, in eval mode.

    Raises:
        ValueError: ONNX Runtime or torch cannot use the device or the precision.
    """
    if isinstance(model, str):
        model = load_search_model(model, device)
    if isinstance(model, LightModel):
        if precision != "float32":
            fail("precision", "float32 with a model on ONNX Runtime", repr(precision), "leave it out")
        return model if model.device == device else LightModel(model.folder, device)
    return model.to(check_device(device)).eval()


def runtime_of(model: SearchModel) -> str:
    """``"ONNX Runtime"`` or ``"torch"``."""
    return "ONNX Runtime" if isinstance(model, LightModel) else "torch"


def model_hash(model: SearchModel) -> str:
    """Hash of a model's class, configuration and all weights, frozen ones included."""
    if isinstance(model, LightModel):
        return model.weights
    import torch

    digest = hashlib.sha256(f"{type(model).__qualname__} {model.as_dict()!r}".encode())
    for name, value in sorted(model.state_dict().items()):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name} {tuple(plain.shape)} {plain.dtype}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def model_inputs(model: SearchModel, inputs: "Sequence[Image.Image] | ImageBatch") -> Any:
    """Images unchanged, features as the arrays or tensors that the model takes."""
    if isinstance(model, LightModel) or not isinstance(inputs, ImageBatch):
        return inputs
    import torch

    from bcls.models.layers import Padded

    lengths = None if inputs.lengths is None else torch.from_numpy(inputs.lengths)
    return Padded(torch.from_numpy(inputs.values), lengths)


def image_vectors(model: SearchModel, prepared: Sequence[Any], precision: str = "float32") -> Vectors:
    """``(N, D)`` unit vectors of images.

    Args:
        model: The model.
        prepared: Outputs of ``model.prepare_images``.
        precision: One of :data:`PRECISIONS`, in which the layers compute.
    """
    if isinstance(model, LightModel):
        return model.image_vectors(prepared)
    import torch

    from bcls.models.base import eval_mode
    from bcls.models.layers import Padded

    values = torch.cat([one.values for one in prepared])
    lengths = [one.lengths for one in prepared if one.lengths is not None]
    batch = Padded(values, torch.cat(lengths) if lengths else None)
    autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bfloat16")
    with eval_mode(model), autocast:
        vectors = model.image_vectors(model.image_codes(batch.to(model.device)))
    return np.asarray(vectors.float().cpu().numpy(), dtype=np.float32)


def text_vectors(model: SearchModel, texts: Sequence[str]) -> Vectors:
    """``(C, D)`` unit vectors of texts, encoded sorted by length to reduce padding."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    if not order:
        return np.empty((0, 0), np.float32)
    rows = np.asarray(model.encode_texts([texts[index] for index in order]))
    vectors = np.empty_like(rows, dtype=np.float32)
    vectors[order] = rows
    return vectors


def probe(model: SearchModel, features: ImageBatch | None) -> tuple[int, bool]:
    """Length of a model's vectors, and whether it scores pairs by more than a dot product (cross attention).

    Args:
        model: The model.
        features: Features of one image, if the index is built from features.

    Raises:
        ValueError: The model cannot read images, texts, or these features.
    """
    from PIL import Image

    kind = "images" if features is None else f"features of shape {features.values.shape[1:]}"
    hint = "choose another --model" + (", or --features of a dataset" if features is None else " or --features")
    inputs = [Image.new("RGB", (32, 32))] if features is None else features
    if isinstance(model, LightModel):  # its errors name the file
        model.encode_texts(["a photo"])
        return model.image_vectors([model.prepare_images(model_inputs(model, inputs))]).shape[1], False
    from bcls.models.base import eval_mode

    try:
        prepared = model.prepare_images(model_inputs(model, inputs))
        with eval_mode(model):
            codes = model.image_codes(prepared.to(model.device))
            dimension = model.image_vectors(codes).shape[1]
    except (ValueError, TypeError, RuntimeError) as error:
        fail("model", f"one that reads {kind}", f"an error ({str(error).splitlines()[0]})", hint)
    try:
        model.encode_texts(["a photo"])
    except ValueError as error:
        fail("model", "one that reads text", f"an error ({error})", "save it together with its vocabulary")
    return int(dimension), codes.values.ndim > 2


def pair_scores(
    model: SearchModel, source: PhotoSource, names: Sequence[str], text: str, *, max_pixels: int
) -> npt.NDArray[np.float64]:
    """Score photos against a text with ``model.similarity``.

    Args:
        model: The model.
        source: Source of the photos or their features.
        names: Names of N photos.
        text: The text.
        max_pixels: Larger images are not read.

    Returns:
        ``(N,)`` scores; minus infinity for a photo that can no longer be read.
    """
    scores = np.full(len(names), -math.inf)
    inputs, readable = read_inputs(model, source, names, max_pixels)
    if readable:
        scores[readable] = np.asarray(model.similarity(inputs, [text]))[:, 0]
    return scores


def read_inputs(
    model: SearchModel, source: PhotoSource, names: Sequence[str], max_pixels: int
) -> tuple[Any, list[int]]:
    """Inputs of ``model.similarity`` for some photos, and the positions of those that could be read."""
    if not names:
        return [], []
    features = source.features(names)
    if features is not None:
        return model_inputs(model, features), list(range(len(names)))
    images: list[Any] = []
    readable = []
    for position, name in enumerate(names):
        with suppress(OSError, ValueError):
            own_source, own_name = source.locate(name)
            images.append(decode(own_source.read(own_name), name, max_pixels=max_pixels))
            readable.append(position)
    return images, readable


class LoadedPhoto(NamedTuple):
    """A photo that was read.

    Attributes:
        photo: Its catalog entry; its number is that of a photo of the index with the same contents, or 0.
        captions: Its captions.
        vector: Vector of that photo, if there is one.
        prepared: Otherwise the input of the model.
    """

    photo: Photo
    captions: tuple[str, ...]
    vector: Vectors | None = None
    prepared: "Prepared | None" = None


def read_ahead(
    items: Iterable[SourceItem], load: Callable[[SourceItem], LoadedPhoto | Exception], workers: int
) -> Generator[LoadedPhoto | Exception]:
    """Read photos in order, with threads that work a bounded number of photos ahead.

    Args:
        items: The photos.
        load: Reads one; see :func:`load_photo`.
        workers: Threads; 0 for one per core.

    Yields:
        One photo or error per item, in order.
    """
    count = workers or os.cpu_count() or 1
    pool = ThreadPoolExecutor(count, thread_name_prefix="bcls-read")
    waiting: deque[Future[LoadedPhoto | Exception]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(load, item))
            # Two batches ahead keep the model busy; prepared images are small.
            if len(waiting) >= 2 * BATCH + count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


#: Number and vector of a photo of the index, by name and hash of the contents.
KnownVector = Callable[[str, str], tuple[int, Vectors] | None]


def load_photo(
    item: SourceItem, source: PhotoSource, model: SearchModel, known: KnownVector, max_pixels: int
) -> LoadedPhoto | Exception:
    """Read a photo; returns the error if it cannot be read.

    Args:
        item: The photo.
        source: Its source.
        model: Prepares the image.
        known: Returns number and vector of an indexed photo with the same contents, or ``None``.
        max_pixels: Larger images are rejected.
    """
    try:
        source, name = source.locate(item.name)
        content = source.read(name)
        sha256 = hashlib.sha256(content).hexdigest()
        features = source.features([name])
        exif = read_exif(content) if features is None else ExifInfo()
        date = exif.date if exif.date is not None else min(max(source.date(name), _EARLIEST), _LATEST)
        photo = Photo(item.name, item.stamp, sha256, date, exif.date is not None, exif.latitude, exif.longitude)
        captions = source.captions(name)
        if (same := known(item.name, sha256)) is not None:
            number, vector = same
            return LoadedPhoto(photo._replace(number=number), captions, vector)
        side = model.side if isinstance(model, LightModel) else 0
        inputs = [decode(content, item.name, max_pixels=max_pixels, side=side)] if features is None else features
        return LoadedPhoto(photo, captions, prepared=model.prepare_images(model_inputs(model, inputs)))
    except (ValueError, MemoryError, OSError) as error:
        return error
