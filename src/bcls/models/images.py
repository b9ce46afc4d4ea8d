"""Images as features: vectors, or regions side by side."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcls._checks import fail
from bcls._padded import Padded


def feature_batch(images: Any, width: int, *, shapes: str, dimensions: tuple[int, ...]) -> Padded:
    """Features of images, checked.

    Args:
        images: ``(N, d)`` or ``(N, R, d)`` as a tensor or an array; regions with ``(N,)`` lengths as a pair of tensors
            or as :class:`Padded`.
        width: d.
        shapes: What is expected, for the message.
        dimensions: How many axes are allowed.

    Raises:
        ValueError: Something else than features, of another width, with wrong lengths, or not finite.
    """
    if isinstance(images, tuple) and len(images) == 2 and all(isinstance(one, Tensor) for one in images):
        images = Padded(*images)
    lengths = images.lengths if isinstance(images, Padded) else None
    values = images.values if isinstance(images, Padded) else images
    if isinstance(values, np.ndarray):
        values = torch.from_numpy(np.ascontiguousarray(values))
    if isinstance(values, list) and not values:
        values = torch.zeros(0, *[1] * (dimensions[0] - 2), width)
    if not isinstance(values, Tensor):
        got = (
            f"{type(values).__name__} of {type(values[0]).__name__}"
            if isinstance(values, list | tuple)
            else type(values)
        )
        fail("images", shapes, got, "this model takes features; one with a `backbone` sees pictures")
    if values.ndim not in dimensions or values.shape[-1] != width:
        fail("images", shapes, tuple(values.shape), f"the model was made for features of width {width}")
    values = values.float()
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).flatten(1).any(1).nonzero()[0])
        fail("images", "finite features", f"NaN or infinity in row {row}", "extract this image's features again")
    if lengths is not None:
        _check_lengths(lengths, values)
        lengths = lengths.long()
    return Padded(values, lengths)


def _check_lengths(lengths: Tensor, values: Tensor) -> None:
    if values.ndim != 3 or lengths.shape != values.shape[:1]:
        fail(
            "images",
            "lengths (N,) for regions (N, R, d)",
            f"{tuple(lengths.shape)} for {tuple(values.shape)}",
            "one each",
        )
    if len(lengths) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= values.shape[1]:
        wrong = int(lengths.min()) if int(lengths.min()) < 1 else int(lengths.max())
        fail("images", f"lengths from 1 to {values.shape[1]}", wrong, "an image has at least one region")
