"""Similarity vectors of words with the regions they attend to: what SGR and SAF reason over.

Letters: N images, C captions, R regions, L words of the longest caption of a block, D width of the codes, K width of a
similarity vector.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, linear, mse_loss

from bcls._padded import Padded
from bcls.similarity.unit import inverse, unit, wide

#: Slope of the attention below zero.
_SLOPE = 0.1


class ImageSide(NamedTuple):
    """What scoring needs of images and does not depend on any caption; made once by :func:`image_side`."""

    regions: Tensor
    """``(N, R, D)`` unit regions, zero where there is none."""
    gram: Tensor
    """``(N, R, R)`` dot products of an image's regions, which give the length of any mixture of them."""
    mask: Tensor | None
    """``(N, R)`` bool, true for real regions; ``None`` where all are."""
    vectors: Tensor
    """``(N, D)`` unit vectors of whole images."""


class CaptionSide(NamedTuple):
    """Captions of similar length."""

    words: Tensor
    """``(C, L, D)`` unit words, zero behind a caption's last word."""
    mask: Tensor | None
    """``(C, L + 1)`` bool, true for real nodes, the first of which is the whole caption; ``None`` where all are."""
    vectors: Tensor
    """``(C, D)`` unit vectors of whole captions."""


class NodeWeights(NamedTuple):
    """The two layers that turn squared differences into similarity vectors, and the factor of the attention."""

    local_weight: Tensor
    """``(K, D)``."""
    local_bias: Tensor
    """``(K,)``."""
    global_weight: Tensor
    """``(K, D)``."""
    global_bias: Tensor
    """``(K,)``."""
    smooth: float
    """Factor before the softmax over regions."""


def image_side(regions: Padded, vectors: Tensor) -> ImageSide:
    """Prepare images for scoring.

    Args:
        regions: ``(N, R, D)`` unit regions, with lengths where images have different numbers of them.
        vectors: ``(N, D)``.
    """
    values, mask = regions.values, None
    if regions.lengths is not None and bool((regions.lengths < values.shape[1]).any()):
        mask = regions.mask
        values = values * mask[..., None]
    with torch.autocast(values.device.type, enabled=False):
        exact = values.to(wide(values.dtype))
        gram = exact @ exact.mT
    return ImageSide(values, gram, mask, vectors)


def attention(images: ImageSide, words: Tensor, smooth: float) -> Tensor:
    r"""How much of each region makes the context of each word, so that the context has unit length.

    .. math::
        a_{rl} = \mathrm{softmax}_r(\lambda \, \mathrm{unit}_l(\mathrm{LeakyReLU}(v_r \cdot t_l))), \qquad
        a'_{rl} = a_{rl} / \lVert \textstyle\sum_r a_{rl} v_r \rVert

    The length comes from the dot products of the regions, :math:`\lVert \sum_r a_r v_r \rVert^2 = a^\top G a`, so that
    the D-wide contexts are made once, already divided.

    Args:
        images: N images.
        words: ``(C, L, D)``.
        smooth: :math:`\lambda`.

    Returns:
        ``(N, R, C * L)`` in float32 or wider.
    """
    captions, length, width = words.shape
    count, regions = images.regions.shape[:2]
    # One product for all images and all captions of the block.
    raw = images.regions.reshape(-1, width) @ words.reshape(-1, width).T
    with torch.autocast(words.device.type, enabled=False):
        raw = leaky_relu(raw.to(images.gram.dtype), _SLOPE).view(count, regions, captions, length)
        scaled = smooth * unit(raw).view(count, regions, captions * length)
        if images.mask is not None:
            scaled = scaled.masked_fill(~images.mask[..., None], -torch.inf)
        weights = scaled.softmax(1)
        square = (weights * (images.gram @ weights)).sum(1, keepdim=True)
        # A mixture that vanishes has no direction; rounding may put its square below zero.
        length_of = torch.where(square > 0, square, 1).sqrt() * (square > 0)
        return weights * inverse(length_of)


def similarity_nodes(images: ImageSide, captions: CaptionSide, weights: NodeWeights) -> Tensor:
    r"""Similarity vectors of all pairs: of the whole image with the whole caption, then of each word.

    .. math::
        x_0 = \mathrm{unit}(W_g (\bar v - \bar t)^2 + b_g), \qquad
        x_l = \mathrm{unit}(W_l (c_l - t_l)^2 + b_l), \qquad c_l = \textstyle\sum_r a'_{rl} v_r

    Args:
        images: N images.
        captions: C captions.
        weights: The layers.

    Returns:
        ``(N, C, L + 1, K)``. Nodes behind a caption's last word mean nothing; ``captions.mask`` tells.
    """
    number, length, width = captions.words.shape
    shares = attention(images, captions.words, weights.smooth).mT.to(images.regions.dtype)
    context = shares @ images.regions
    words = captions.words.reshape(1, number * length, width).to(context.dtype).expand_as(context)
    with torch.autocast(context.device.type, enabled=False):
        # The squared difference in one pass over the one large tensor.
        squares = mse_loss(context, words, reduction="none")
    local = linear(squares, weights.local_weight, weights.local_bias)
    whole = (images.vectors[:, None] - captions.vectors).square()
    top = linear(whole, weights.global_weight, weights.global_bias)
    nodes = unit(local).view(len(local), number, length, local.shape[-1])
    return torch.cat([unit(top)[:, :, None], nodes], 2)


def pair_scores(pairs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    r"""The score of each pair, :math:`\mathrm{sigmoid}(w \cdot x + b)`, in float32 or wider.

    Around 0.5 half precision has steps of 0.002 and more, which would make ties of most scores.

    Args:
        pairs: ``(N, C, K)``.
        weight: ``(1, K)``.
        bias: ``(1,)``.

    Returns:
        ``(N, C)``.
    """
    with torch.autocast(pairs.device.type, enabled=False):
        exact = wide(pairs.dtype)
        return linear(pairs.to(exact), weight.to(exact), bias.to(exact))[..., 0].sigmoid()
