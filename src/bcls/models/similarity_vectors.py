"""Similarity vectors of SGR and SAF: what every word of every caption says about every image, with their gradient.

Letters in shapes: N images, C captions, R regions, P nodes of a pair (the whole pair, then the words of the longest
caption), S = C P, D width of the region and word embeddings, K width of a similarity vector.

The contexts and their squared differences, ``(N, S, D)``, are by far the largest tensors of these models. They are
computed for some images at a time and again in the backward pass, so that they are never in memory as a whole. The
backward pass is written by hand: autograd would read and write them twice as often and launch three times the kernels.
"""

import math
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu, linear, mse_loss

from bcls.losses.backends import kernels_allowed, triton_runs_on
from bcls.models.layers import EPS, at_least_float32, safe_inverse

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
    inputs = (images.regions, images.gram, images.vectors, captions.words, captions.vectors, *layers)
    with torch.autocast(images.regions.device.type, enabled=False):
        if torch.is_grad_enabled():
            nodes: Tensor = _SimilarityVectors.apply(images.mask, smooth, *inputs)  # type: ignore[no-untyped-call]
            return nodes
        return _forward(images.mask, smooth, *inputs)[0]


class Attention(NamedTuple):
    """Result of :func:`attend`, ``(N, R, S)`` and ``(N, 1, S)``, with what its gradient needs.

    Attributes:
        weights: a, weights of the regions in the unit contexts.
        shares: The softmax.
        products: Dot products of the regions with the contexts before they have unit norm.
        norm: Norm of these contexts.
        inverse: Its inverse.
        scores: ``(N, R, C, P)`` input of the softmax.
        scale: ``(N, R, C, 1)`` factor from the rectified dot products to ``scores``.
        length: ``(N, R, C, 1)`` norm of the rectified dot products.
    """

    weights: Tensor
    shares: Tensor
    products: Tensor
    norm: Tensor
    inverse: Tensor
    scores: Tensor
    scale: Tensor
    length: Tensor


def attend(raw: Tensor, gram: Tensor, mask: Tensor | None, smooth: float) -> Attention:
    r"""Weights of the regions in the context vector of each word, scaled so that the context has unit norm.

    .. math::
        s_{rl} = \mathrm{softmax}_r(\lambda \, \mathrm{unit}_l(\mathrm{LeakyReLU}(v_r \cdot t_l))), \qquad
        a_{rl} = s_{rl} / \lVert \textstyle\sum_r s_{rl} v_r \rVert

    The norm follows from the dot products of the regions, :math:`\lVert \sum_r s_r v_r \rVert^2 = s^\top G s`, so that
    the D-wide contexts are computed once, already normalized.

    Args:
        raw: ``(N, R, C, P)`` dot products of regions and words.
        gram: ``(N, R, R)`` G, in float32 or wider.
        mask: ``(N, R)`` bool, true for real regions; ``None`` if all are real.
        smooth: :math:`\lambda`.
    """
    rectified = leaky_relu(raw.to(gram.dtype), _SLOPE)
    length = torch.linalg.vector_norm(rectified, dim=-1, keepdim=True)
    scale = smooth * safe_inverse(length)
    scores = rectified * scale
    logits = scores.flatten(2)
    if mask is not None:
        logits = logits.masked_fill(~mask[..., None], -torch.inf)
    shares = logits.softmax(1)
    products = gram @ shares
    # A zero mixture has no direction; rounding may make its square negative.
    norm = (shares * products).sum(1, keepdim=True).clamp(min=0).sqrt()
    inverse = safe_inverse(norm)
    return Attention(shares * inverse, shares, products, norm, inverse, scores, scale, length)


def _attend_backward(grad: Tensor, raw: Tensor, found: Attention, smooth: float) -> tuple[Tensor, Tensor]:
    """Gradients of ``raw`` and ``gram`` from that of ``weights``."""
    shares, inverse = found.shares, found.inverse
    # inverse = 1 / (norm + EPS), norm^2 = shares^T G shares
    slope = (grad * shares).sum(1, keepdim=True) * inverse.square() / found.norm.clamp(min=EPS)
    gram = (shares * (-slope / 2)) @ shares.mT
    grad = grad * inverse - found.products * slope
    grad = shares * (grad - (shares * grad).sum(1, keepdim=True))
    grad = grad.view_as(found.scores)
    # scores = rectified * smooth / (length + EPS)
    along = (grad * found.scores).sum(-1, keepdim=True) / (smooth * found.length.clamp(min=EPS))
    grad = (grad * found.scale).sub_(found.scores * along)
    return torch.where(raw > 0, grad, _SLOPE * grad), gram


def _forward(
    mask: Tensor | None,
    smooth: float,
    regions: Tensor,
    gram: Tensor,
    image_vectors: Tensor,
    words: Tensor,
    caption_vectors: Tensor,
    *layers: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes, their norms ``(N, C, P, 1)``, and the dot products of regions and words."""
    dtype, (count, number, width) = regions.dtype, regions.shape
    captions, length, _ = words.shape
    weight, bias, whole_weight, whole_bias = (one.to(dtype) for one in layers)
    kernels = kernels_for(regions, length, len(bias))
    words = words.to(dtype).reshape(-1, width)
    raw = (regions.reshape(-1, width) @ words.T).view(count, number, captions, length)
    whole = linear((image_vectors[:, None] - caption_vectors).square().to(dtype), whole_weight, whole_bias)
    if kernels is not None:
        weights = kernels.attend(raw, gram, mask, smooth, _SLOPE)
        nodes, norm = kernels.local_vectors(regions, weights, words, weight, bias)
        nodes, norm = nodes.view(count, captions, length, -1), norm.view(count, captions, length, 1)
        whole_norm = torch.linalg.vector_norm(whole, dim=-1, keepdim=True, dtype=norm.dtype)
        nodes[:, :, 0], norm[:, :, 0] = whole * safe_inverse(whole_norm), whole_norm
        return nodes, norm, raw
    weights = attend(raw, gram, mask, smooth).weights.to(dtype)
    parts = []
    for part in _image_parts(count, words.numel(), regions.device):
        contexts = weights[part].mT @ regions[part]
        # The squared difference in a single pass over the largest tensor.
        parts.append(linear(mse_loss(contexts, words.expand_as(contexts), reduction="none"), weight, bias))
    nodes = torch.cat(parts) if len(parts) > 1 else parts[0]
    nodes = nodes.view(count, captions, length, len(bias))
    nodes[:, :, 0] = whole
    norm = torch.linalg.vector_norm(nodes, dim=-1, keepdim=True, dtype=at_least_float32(dtype))
    return nodes.mul_(safe_inverse(norm)), norm, raw


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


class _SimilarityVectors(torch.autograd.Function):
    """:func:`similarity_vectors` with its gradient."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor | None, smooth: float, *inputs: Tensor) -> Tensor:
        layers = [one.to(inputs[0].dtype) for one in inputs[5:]]
        nodes, norm, raw = _forward(mask, smooth, *inputs[:5], *layers)
        ctx.save_for_backward(nodes, norm, raw, mask, *inputs[:5], *layers)
        ctx.smooth, ctx.dtypes = smooth, [one.dtype for one in inputs]
        return nodes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        nodes, norm, raw, mask, regions, gram, image_vectors, words, caption_vectors, *layers = ctx.saved_tensors
        dtype, exact, (count, number, width) = regions.dtype, gram.dtype, regions.shape
        weight, _, whole_weight, _ = layers
        flat = words.to(dtype).reshape(-1, width)

        # Through the norm: nodes = local / (norm + EPS).
        kernels = kernels_for(regions, words.shape[1], grad.shape[-1])
        if kernels is None:
            inverse = safe_inverse(norm)
            along = (nodes * grad).sum(-1, keepdim=True, dtype=norm.dtype) / (inverse * norm).clamp(min=EPS)
            grad = torch.addcmul(grad, nodes, along.to(dtype), value=-1).mul_(inverse)
            whole = grad[:, :, 0].clone().view(-1, grad.shape[-1])
            grad[:, :, 0] = 0
        else:
            grad, whole = kernels.through_norm(nodes, grad, norm)

        # The whole pair.
        difference = (image_vectors[:, None] - caption_vectors).to(dtype)
        whole_weights = (whole.T @ difference.square().view(-1, width)).to(exact)
        whole_grad = (whole @ (2 * whole_weight)).view_as(difference).mul_(difference)

        # The words, some images at a time.
        if kernels is None:
            found = attend(raw, gram, mask, ctx.smooth)
            weights, twice = found.weights.to(dtype), 2 * weight
        else:
            weights = kernels.attend(raw, gram, mask, ctx.smooth, _SLOPE)
        local = grad.view(count, len(flat), -1)
        weight_grad = torch.zeros_like(weight, dtype=exact)
        word_grad = torch.zeros_like(flat, dtype=exact)
        parts = []
        for part in _image_parts(count, flat.numel(), regions.device):
            if kernels is None:
                difference = (weights[part].mT @ regions[part]).sub_(flat)
                context_grad = (local[part] @ twice).mul_(difference)
                squares, weights_grad = difference.square_(), regions[part] @ context_grad.mT
            else:
                arrays = (regions[part], weights[part], flat, weight, local[part])
                context_grad, squares, weights_grad = kernels.local_backward(*arrays)
            weight_grad += local[part].flatten(0, 1).T @ squares.flatten(0, 1)
            word_grad -= context_grad.sum(0, dtype=exact)
            parts.append((weights_grad, weights[part] @ context_grad))
        weights_grad, region_grad = (torch.cat(one) if len(one) > 1 else one[0] for one in zip(*parts, strict=True))
        if kernels is None:
            raw_grad, gram_grad = _attend_backward(weights_grad.to(exact), raw, found, ctx.smooth)
        else:
            raw_grad, gram_grad = kernels.attend_backward(weights_grad, raw, gram, mask, ctx.smooth, _SLOPE)
        scores_grad = raw_grad.to(dtype).view(count * number, len(flat))
        region_grad = region_grad + (scores_grad @ flat).view_as(regions)
        word_grad += scores_grad.T @ regions.reshape(-1, width)
        found_grads = (
            region_grad,
            gram_grad,
            whole_grad.sum(1),
            word_grad.view_as(words),
            -whole_grad.sum(0),
            weight_grad,
            local.sum((0, 1), dtype=exact),
            whole_weights,
            whole.sum(0, dtype=exact),
        )
        return None, None, *(one.to(kind) for one, kind in zip(found_grads, ctx.dtypes, strict=True))


def _image_parts(images: int, numbers: int, device: torch.device) -> list[slice]:
    """Slices of images whose contexts, ``numbers`` each, fit into 4 MB of float32 on a CPU or 512 MB elsewhere."""
    most = 1 << 20 if device.type == "cpu" else 1 << 27
    step = max(1, most // max(1, numbers))
    step = max(1, math.ceil(images / max(1, math.ceil(images / step))))
    return [slice(start, start + step) for start in range(0, max(1, images), step)]
