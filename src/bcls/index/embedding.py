"""A model as the index sees it: pictures and texts in, unit vectors out, and a hash that tells models apart."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bcls._checks import fail
from bcls.index.engine import Vectors
from bcls.index.source import FeatureRows

if TYPE_CHECKING:
    from PIL import Image

    from bcls._padded import Padded
    from bcls.models.base import RetrievalModel

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

    from bcls._padded import Padded

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

    from bcls._padded import Padded
    from bcls.models.base import judging

    values = torch.cat([one.values for one in prepared])
    lengths = [one.lengths for one in prepared if one.lengths is not None]
    batch = Padded(values, torch.cat(lengths) if lengths else None)
    short = torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bfloat16")
    with judging(model), short:
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

    from bcls.models.base import judging

    what = "pictures" if features is None else f"features of shape {features.values.shape[1:]}"
    remedy = "choose another --model" + (", or --features of a dataset" if features is None else " or --features")
    try:
        prepared = prepare(model, [Image.new("RGB", (32, 32))] if features is None else features)
        with judging(model):
            codes = model.image_codes(prepared.to(model.device))
            width = model.image_vectors(codes).shape[1]
    except (ValueError, TypeError, RuntimeError) as error:
        fail("model", f"one that reads {what}", f"an error ({str(error).splitlines()[0]})", remedy)
    try:
        model.encode_texts(["a photo"])
    except ValueError as error:
        fail("model", "one that reads text", f"an error ({error})", "save it together with its vocabulary")
    return int(width), codes.values.ndim > 2
