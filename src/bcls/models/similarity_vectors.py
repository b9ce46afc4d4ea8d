"""Similarity vectors of SGR and SAF: what every word of every caption says about every image.

Letters in shapes: N images, C captions, R regions, P nodes of a pair (the whole pair, then the words of the longest
caption), S = C P, D width of the region and word embeddings, K width of a similarity vector.

The contexts and their squared differences, ``(N, S, D)``, are by far the largest tensors of these models. They are
computed for some images at a time and again in the backward pass, so that they are never in memory as a whole.
"""

import math
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, linear
from torch.utils.checkpoint import checkpoint

from bcls.losses.backends import kernels_allowed, triton_runs_on
from bcls.models.layers import safe_inverse, unit

#: Negative slope of the leaky ReLU in the attention.
_SLOPE = 0.1


class ImageSide(NamedTuple):
    """The inputs of scoring that depend on images only, from :func:`bcls.models.cross_attention.image_side`.

    Attributes:
        regions: ``(N, R, D)`` unit regions, zero for padding.
        gram: ``(N, R, R)`` dot products of an image's regions, from which the norm of any mixture of them follows.
        mask: ``(N, R)`` bool, true for real regions; ``None`` if all are real.
        vectors: ``(N, D)`` unit vectors of whole images.
    """

    regions: Tensor
    gram: Tensor
    mask: Tensor | None
    vectors: Tensor


class CaptionSide(NamedTuple):
    """A block of captions of similar length.

    Attributes:
        words: ``(C, P, D)``: a zero row for the whole caption, its unit words, and zero rows after the last word.
        mask: ``(C, P)`` bool, true for real nodes: the whole caption and the words.
        vectors: ``(C, D)`` unit vectors of whole captions.
    """

    words: Tensor
    mask: Tensor
    vectors: Tensor


#: Weights ``(K, D)`` and biases ``(K,)`` of the similarity vectors: of words, then of the whole pair.
Layers = tuple[Tensor, Tensor, Tensor, Tensor]


def similarity_vectors(images: ImageSide, captions: CaptionSide, layers: Layers, smooth: float) -> Tensor:
    r"""Similarity vectors of all pairs: of the whole image with the whole caption, then of each word.

    .. math::
        x_0 = \mathrm{unit}(W_g (\bar v - \bar t)^2 + b_g), \qquad
        x_l = \mathrm{unit}(W_l (c_l - t_l)^2 + b_l), \qquad c_l = \textstyle\sum_r a_{rl} v_r

    with the weights a of :func:`attend`.

    Args:
        images: N images.
        captions: C captions.
        layers: Weights and biases; their dtype may be wider than that of the regions.
        smooth: :math:`\lambda` of the attention.

    Returns:
        ``(N, C, P, K)`` in the dtype of the regions. Nodes after a caption's last word are undefined.
    """
    regions, (weight, bias, whole_weight, whole_bias) = images.regions, layers
    parts = _image_parts(len(regions), captions.words.numel(), regions.device)
    kernels = kernels_for(regions, captions.words.shape[1], len(bias))
    with torch.autocast(regions.device.type, enabled=False):
        whole = _recomputed(
            _compare, images.vectors[:, None], captions.vectors, regions.dtype, whole_weight, whole_bias
        )
        if kernels is not None:
            inputs = (unit(whole), regions, images.gram, captions.words, weight, bias)
            found: Tensor = kernels.SimilarityVectors.apply(parts, images.mask, smooth, _SLOPE, *inputs)
            return found
        local = []
        for part in parts:
            mask = None if images.mask is None else images.mask[part]
            arrays = (regions[part], images.gram[part], mask, captions.words, weight, bias)
            local.append(_recomputed(_local_vectors, *arrays, smooth))
        nodes = torch.cat(local) if len(local) > 1 else local[0]
        nodes[:, :, 0] = whole
        return unit(nodes)


def _recomputed(function: Any, *arguments: Any) -> Tensor:
    """The result of a function whose intermediate tensors are not kept for the backward pass."""
    if torch.is_grad_enabled():
        function = partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)
    result: Tensor = function(*arguments)
    return result


def _compare(left: Tensor, right: Tensor, dtype: torch.dtype, weight: Tensor, bias: Tensor) -> Tensor:
    """Similarity vectors of pairs of vectors."""
    return linear((left - right).square().to(dtype), weight.to(dtype), bias.to(dtype))


def _local_vectors(
    regions: Tensor, gram: Tensor, mask: Tensor | None, words: Tensor, weight: Tensor, bias: Tensor, smooth: float
) -> Tensor:
    """Similarity vectors of words, ``(N, C, P, K)``."""
    dtype, (count, number, width) = regions.dtype, regions.shape
    flat = words.to(dtype).reshape(-1, width)
    raw = (regions.reshape(-1, width) @ flat.T).view(count, number, *words.shape[:2])
    contexts = attend(raw, gram, mask, smooth).to(dtype).mT @ regions
    return _compare(contexts, flat, dtype, weight, bias).view(count, *words.shape[:2], len(bias))


def attend(raw: Tensor, gram: Tensor, mask: Tensor | None, smooth: float) -> Tensor:
    r"""Weights of the regions in the context vector of each word, scaled so that the context has unit norm.

    .. math::
        s_{rl} = \mathrm{softmax}_r(\lambda \, \mathrm{unit}_l(\mathrm{LeakyReLU}(v_r \cdot t_l))), \qquad
        a_{rl} = s_{rl} / \lVert \textstyle\sum_r s_{rl} v_r \rVert

    The norm follows from the dot products of the regions, :math:`\lVert \sum_r s_r v_r \rVert^2 = s^\top G s`, so that
    the D-wide contexts are computed once, already normalised.

    Args:
        raw: ``(N, R, C, P)`` dot products of regions and words.
        gram: ``(N, R, R)`` G, in float32 or wider.
        mask: ``(N, R)`` bool, true for real regions; ``None`` if all are real.
        smooth: :math:`\lambda`.

    Returns:
        ``(N, R, S)``.
    """
    logits = smooth * unit(leaky_relu(raw.to(gram.dtype), _SLOPE)).flatten(2)
    if mask is not None:
        logits = logits.masked_fill(~mask[..., None], -torch.inf)
    shares = logits.softmax(1)
    # A zero mixture has no direction; rounding may make its square negative.
    square = (shares * (gram @ shares)).sum(1, keepdim=True)
    norm = torch.where(square > 0, square, 1).sqrt() * (square > 0)
    return shares * safe_inverse(norm)


def kernels_for(values: Tensor, nodes: int, width: int) -> ModuleType | None:
    """:mod:`bcls.models.cross_kernels` if it can process regions ``(N, R, D)`` or nodes ``(N, C, P, K)``.

    On a GPU the kernels are for half precision: in float32 cuBLAS is as fast. Triton's interpreter has no bfloat16.
    """
    known = (torch.float16, torch.bfloat16) if values.is_cuda else (torch.float16, torch.float32)
    runs = values.dtype in known and values.numel() and triton_runs_on(values.device)
    if not (runs and kernels_allowed(values)):
        return None
    from bcls.models import cross_kernels  # importing Triton takes a second

    regions = values.shape[1] if values.ndim == 3 else 1
    fits = regions <= cross_kernels.MOST_REGIONS and nodes <= cross_kernels.MOST_NODES
    return cross_kernels if fits and width <= cross_kernels.MOST_WIDTH else None


def _image_parts(images: int, numbers: int, device: torch.device) -> list[slice]:
    """Slices of images whose contexts, ``numbers`` each, fit into 4 MB of float32 on a CPU or 512 MB elsewhere."""
    most = 1 << 20 if device.type == "cpu" else 1 << 27
    step = max(1, most // max(1, numbers))
    step = max(1, math.ceil(images / max(1, math.ceil(images / step))))
    return [slice(start, start + step) for start in range(0, max(1, images), step)]
