"""Cosines of all images with all captions."""

from collections.abc import Iterator

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
    _check(images, texts)
    return _products(images, unit(texts.to(wide(texts.dtype))).T)


def cosine_blocks(images: Tensor, texts: Tensor, *, elements: int = 1 << 24) -> Iterator[tuple[slice, Tensor]]:
    """The rows of :func:`cosine` in blocks, for collections whose whole matrix does not fit into memory.

    Args:
        images: ``(N, D)``.
        texts: ``(C, D)``.
        elements: How many scores a block may have; one row at least.

    Yields:
        Which rows, and their scores ``(n, C)``.

    Raises:
        ValueError: The shapes do not fit together.
    """
    _check(images, texts)
    columns = unit(texts.to(wide(texts.dtype))).T
    rows = max(1, elements // max(1, len(texts)))
    for start in range(0, len(images), rows):
        part = slice(start, min(start + rows, len(images)))
        yield part, _products(images[part], columns)


def _products(images: Tensor, columns: Tensor) -> Tensor:
    with torch.autocast(images.device.type, enabled=False):
        return unit(images.to(wide(images.dtype))) @ columns


def _check(images: Tensor, texts: Tensor) -> None:
    if images.ndim != 2 or texts.ndim != 2 or images.shape[1] != texts.shape[1]:
        got = f"{tuple(images.shape)} and {tuple(texts.shape)}"
        fail("images", "(N, D) and `texts` (C, D)", got, "encode both with one model")
