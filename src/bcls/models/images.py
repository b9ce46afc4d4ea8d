"""Images as features: vectors, or regions side by side."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcls._checks import fail
from bcls._padded import Padded


def feature_batch(
    images: Any, width: int, *, shapes: str, dimensions: tuple[int, ...], argument: str = "images"
) -> Padded:
    """Features of images, checked; of captions as well, where their encoder is frozen.

    Args:
        images: ``(N, d)`` or ``(N, R, d)`` as a tensor or an array; regions with ``(N,)`` lengths as a pair of tensors
            or as :class:`Padded`.
        width: d.
        shapes: What is expected, for the message.
        dimensions: How many axes are allowed.
        argument: What the caller calls them.

    Raises:
        ValueError: Something else than features, of another width, with wrong lengths, or not finite.
    """
    if isinstance(images, tuple) and len(images) == 2 and all(isinstance(one, Tensor) for one in images):
        images = Padded(*images)
    lengths = images.lengths if isinstance(images, Padded) else None
    values = images.values if isinstance(images, Padded) else images
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        values = torch.from_numpy(np.ascontiguousarray(values))
    if isinstance(values, list | tuple) and not values:
        values = torch.zeros(0, *[1] * (dimensions[0] - 2), width)
    if not isinstance(values, Tensor):
        got = (
            f"{type(values).__name__} of {type(values[0]).__name__}"
            if isinstance(values, list | tuple)
            else type(values).__name__
        )
        fail(argument, shapes, got, "this model takes features; one with a `backbone` sees pictures")
    if values.ndim not in dimensions or values.shape[-1] != width:
        fail(argument, shapes, tuple(values.shape), f"the model was made for features of width {width}")
    values = values.float()
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).flatten(1).any(1).nonzero()[0])
        fail(argument, "finite features", f"NaN or infinity in row {row}", "make the features of this item again")
    if lengths is not None:
        lengths = _checked_lengths(argument, lengths, values)
    return Padded(values, lengths)


def _checked_lengths(argument: str, lengths: Any, values: Tensor) -> Tensor:
    if not isinstance(lengths, Tensor) or values.ndim != 3 or lengths.shape != values.shape[:1]:
        told = tuple(lengths.shape) if isinstance(lengths, Tensor) else type(lengths).__name__
        got = f"{told} for {tuple(values.shape)}"
        fail(argument, "lengths (N,), as a tensor, for items (N, L, d)", got, "one each")
    if len(lengths) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= values.shape[1]:
        wrong = int(lengths.min()) if int(lengths.min()) < 1 else int(lengths.max())
        fail(argument, f"lengths from 1 to {values.shape[1]}", wrong, "an item has at least one region or word")
    return lengths.long()
