"""A model as the index sees it: pictures and texts in, unit vectors out, and a hash that tells models apart.

Scores of pairs by the whole model, for models that look at regions and words together.

Photos on their way to the model: read, hashed, decoded and prepared by threads, a bounded number ahead.
"""

import hashlib
import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail, visible
from bcls.data.images import decode
from bcls.search.catalog import Facts, Notes, read_notes
from bcls.search.engine import Vectors
from bcls.search.source import FeatureRows, Item, Source

if TYPE_CHECKING:
    from PIL import Image

    from bcls.models.base import RetrievalModel
    from bcls.models.padded import Padded

#: Pictures that go through the model at a time.
BATCH = 64
PRECISIONS = ("float32", "bfloat16")


def hash_of(model: "RetrievalModel") -> str:
    """Hash of a model's kind and of all its weights, frozen ones included."""
    import torch

    digest = hashlib.sha256(f"{type(model).__qualname__} {model.as_dict()!r}".encode())
    for name, value in sorted(model.state_dict().items()):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name} {tuple(plain.shape)} {plain.dtype}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def prepare(model: "RetrievalModel", inputs: "Sequence[Image.Image] | FeatureRows") -> "Padded":
    """What the image encoder takes, from pictures or features."""
    return model.prepare_images(as_inputs(inputs))


def as_inputs(inputs: "Sequence[Image.Image] | FeatureRows") -> Any:
    """Pictures as they are, features as the tensors that models take."""
    if not isinstance(inputs, FeatureRows):
        return inputs
    import torch

    from bcls.models.padded import Padded

    values = torch.from_numpy(inputs.values)
    return values if inputs.counts is None else Padded(values, torch.from_numpy(inputs.counts))


def image_vectors(model: "RetrievalModel", prepared: "Sequence[Padded]", precision: str = "float32") -> Vectors:
    """``(N, D)`` unit vectors of images that were prepared one by one.

    Args:
        model: The model.
        prepared: From :func:`prepare`.
        precision: One of :data:`PRECISIONS`, what layers compute in.
    """
    import torch

    from bcls.models.base import eval_mode
    from bcls.models.padded import Padded

    values = torch.cat([one.values for one in prepared])
    lengths = [one.lengths for one in prepared if one.lengths is not None]
    batch = Padded(values, torch.cat(lengths) if lengths else None)
    short = torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bfloat16")
    with eval_mode(model), short:
        vectors = model.image_vectors(model.image_codes(batch.to(model.device)))
    return np.asarray(vectors.float().cpu().numpy(), dtype=np.float32)


def text_vectors(model: "RetrievalModel", texts: Sequence[str]) -> Vectors:
    """``(C, D)`` unit vectors of texts; those of like length go together, so that little is padding."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    if not order:
        return np.empty((0, 0), np.float32)
    rows = model.encode_texts([texts[place] for place in order]).numpy()
    vectors = np.empty_like(rows, dtype=np.float32)
    vectors[order] = rows
    return vectors


def probe(model: "RetrievalModel", features: FeatureRows | None) -> tuple[int, bool]:
    """Length of a model's vectors, and whether it scores pairs by more than one product of vectors.

    Args:
        model: The model.
        features: Those of one image, where the index is made from features.

    Raises:
        ValueError: The model cannot read pictures, or texts, or these features.
    """
    from PIL import Image

    from bcls.models.base import eval_mode

    what = "pictures" if features is None else f"features of shape {features.values.shape[1:]}"
    remedy = "choose another --model" + (", or --features of a dataset" if features is None else " or --features")
    try:
        prepared = prepare(model, [Image.new("RGB", (32, 32))] if features is None else features)
        with eval_mode(model):
            codes = model.image_codes(prepared.to(model.device))
            width = model.image_vectors(codes).shape[1]
    except (ValueError, TypeError, RuntimeError) as error:
        fail("model", f"one that reads {what}", f"an error ({str(error).splitlines()[0]})", remedy)
    try:
        model.encode_texts(["a photo"])
    except ValueError as error:
        fail("model", "one that reads text", f"an error ({error})", "save it together with its vocabulary")
    return int(width), codes.values.ndim > 2


def scores_of(
    model: "RetrievalModel", source: Source, names: Sequence[str], text: str, *, max_pixels: int
) -> npt.NDArray[np.float64]:
    """Score photos against a text with ``model.similarity``.

    Args:
        model: The model.
        source: Where the photos, or their features, are.
        names: N photos.
        text: The text.
        max_pixels: Pictures with more are not read.

    Returns:
        ``(N,)`` scores; minus infinity for a photo that cannot be read any more.
    """
    scores = np.full(len(names), -math.inf)
    inputs, there = read_inputs(source, names, max_pixels)
    if there:
        scores[there] = model.similarity(inputs, [text])[:, 0].numpy()
    return scores


def read_inputs(source: Source, names: Sequence[str], max_pixels: int) -> tuple[Any, list[int]]:
    """Pictures or features as ``model.similarity`` takes them, and which of the names could be read."""
    if not names:
        return [], []
    features = source.features(names)
    if features is not None:
        return as_inputs(features), list(range(len(names)))
    pictures: list[Any] = []
    there = []
    for place, name in enumerate(names):
        try:
            pictures.append(decode(source.read(name), name, max_pixels=max_pixels))
            there.append(place)
        except (OSError, ValueError):
            continue
    return pictures, there


@dataclass(frozen=True)
class Ready:
    """A photo that was read.

    Attributes:
        item: Which.
        facts: What is known about it, or ``None`` if it cannot be read.
        captions: What is written about it.
        known: Number of a photo in the index with the same contents, whose vector can be used again.
        prepared: What the model takes, where the vector is not known.
        problem: Why it cannot be read.
    """

    item: Item
    facts: Facts | None = None
    captions: tuple[str, ...] = ()
    known: int | None = None
    prepared: "Padded | None" = None
    problem: str = ""


def read_ahead(
    items: Iterable[Item],
    source: Source,
    model: "RetrievalModel",
    known: Callable[[str, str], int | None],
    *,
    workers: int,
    max_pixels: int,
) -> Generator[Ready]:
    """Read photos in order, some ahead of the one that is asked for.

    Args:
        items: The photos.
        source: Where they are.
        model: Says how pictures are prepared.
        known: Number of a photo with given contents that has a vector, if any; that of the given name first.
        workers: Threads; 0 for one a core.
        max_pixels: Pictures with more are refused.

    Yields:
        One for each item, in order.
    """
    count = workers or os.cpu_count() or 1
    pool = ThreadPoolExecutor(count, thread_name_prefix="bcls-read")
    waiting: deque[Future[Ready]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(_read, item, source, model, known, max_pixels))
            # Two batches ahead keep the model busy; what is prepared is small, and each thread holds one whole picture.
            if len(waiting) >= 2 * BATCH + count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _read(
    item: Item, source: Source, model: "RetrievalModel", known: Callable[[str, str], int | None], max_pixels: int
) -> Ready:
    try:
        content = source.read(item.name)
        sha256 = hashlib.sha256(content).hexdigest()
        features = source.features([item.name])
        notes = read_notes(content) if features is None else Notes()
        taken = notes.date is not None
        date = notes.date if notes.date is not None else source.date(item.name)
        facts = Facts(item.name, item.look, sha256, date, taken, notes.latitude, notes.longitude)
        captions = source.captions(item.name)
        same = known(item.name, sha256)
        if same is not None:
            return Ready(item, facts, captions, known=same)
        given = [decode(content, item.name, max_pixels=max_pixels)] if features is None else features
        return Ready(item, facts, captions, prepared=prepare(model, given))
    except (ValueError, MemoryError) as error:
        return Ready(item, problem=" ".join(str(error).split()) or "too large for the memory")
    except OSError as error:
        return Ready(item, problem=visible(f"`{item.name}`: {error.strerror or error}"))
