"""Cosines of all images with all captions."""

import torch
from torch import Tensor

from bcls._checks import fail
from bcls.similarity.unit import unit, wide


def cosine(images: Tensor, texts: Tensor) -> Tensor:
    r"""Cosine of every image with every caption, :math:`s_{ij} = \cos(v_i, t_j)`; 0 where a vector is zero.

    Args:
        images: ``(N, D)``; rows need not have unit length.
        texts: ``(C, D)``.

    Returns:
        ``(N, C)`` in float32 or wider, under autocast too, with gradients.

    Raises:
        ValueError: The shapes do not fit together.

    Example:
        >>> cosine(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.0000]])
    """
    if images.ndim != 2 or texts.ndim != 2 or images.shape[1] != texts.shape[1]:
        got = f"{tuple(images.shape)} and {tuple(texts.shape)}"
        fail("images", "(N, D) and `texts` (C, D)", got, "encode both with one model")
    with torch.autocast(images.device.type, enabled=False):
        return unit(images.to(wide(images.dtype))) @ unit(texts.to(wide(texts.dtype))).T
