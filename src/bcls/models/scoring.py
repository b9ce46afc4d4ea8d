"""Unit vectors that are safe at zero.

Cosines of all images with all captions.
"""

import torch
from torch import Tensor

from bcls._core.errors import fail

#: Added to a length, as the authors of SCAN and SGRAF do.
EPS = 1e-8
#: Shorter vectors count as zero.
_TINY = 1e-10


def unit(values: Tensor, dim: int = -1) -> Tensor:
    r"""Divide vectors by their length: :math:`x / (\lVert x \rVert + 10^{-8})`.

    A zero vector stays zero and passes no gradient, where the plain formula gives NaN. Lengths are taken in float32 or
    wider; the result has the type of ``values``.

    Args:
        values: Floating point, of any shape.
        dim: The axis of the vectors.

    Example:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    length = torch.linalg.vector_norm(values, dim=dim, keepdim=True, dtype=wide(values.dtype))
    # In the wide type: what a short vector is multiplied by is beyond half precision.
    return (values * inverse(length)).to(values.dtype)


def wide(kind: torch.dtype) -> torch.dtype:
    """The type that lengths, softmaxes and statistics are worked out in: float32, or float64 where that came."""
    return torch.promote_types(kind, torch.float32)


def inverse(length: Tensor) -> Tensor:
    """``1 / (length + 1e-8)``, and 0 without gradient where there is no length."""
    return torch.where(length > _TINY, 1 / (length + EPS), 0)


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
