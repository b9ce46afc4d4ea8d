# ruff: noqa: ANN001, ANN202, N803
# mypy: ignore-errors
"""Triton kernels of SGR and SAF, for NVIDIA GPUs and half precision.

Letters in shapes: N images, C captions, R regions, P nodes of a pair, S = C P, D width of the region and word
embeddings, K width of a similarity vector. Nothing is added atomically, so equal inputs give equal bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Largest R, P and K whose tiles fit into registers and shared memory.
MOST_REGIONS, MOST_NODES, MOST_WIDTH = 64, 128, 256
#: Rows of a program of the kernels of contexts, columns of D that it loads at a time, warps and pipeline stages.
_FORWARD, _BACKWARD = (128, 64, 8, 3), (128, 64, 8, 2)


@triton.jit
def _shares(raw, gram, real, smooth, slope: tl.constexpr):
    """Attention weights of one image and one caption: ``raw`` is (R, P), ``real`` marks its regions."""
    rectified = tl.where(raw > 0, raw, slope * raw)
    norm = tl.sqrt(tl.sum(rectified * rectified, 1))
    scale = tl.where(norm > 1e-10, smooth / (norm + 1e-8), 0.0)
    scores = rectified * scale[:, None]
    logits = tl.where(real[:, None], scores, -float("inf"))
    powers = tl.exp(logits - tl.max(logits, 0)[None, :])
    shares = powers / tl.sum(powers, 0)[None, :]
    products = tl.dot(gram, shares, input_precision="ieee")
    size = tl.sqrt(tl.maximum(tl.sum(shares * products, 0), 0.0))
    inverse = tl.where(size > 1e-10, 1 / (size + 1e-8), 0.0)
    return shares, products, size, inverse, scores, scale, norm


@triton.jit
def _load_pair(raw_ptr, gram_ptr, mask_ptr, image, caption, number, nodes, captions, R: tl.constexpr, P: tl.constexpr):
    """Dot products (R, P), gram matrix (R, R), real regions, and where the dot products are."""
    region, node = tl.arange(0, R), tl.arange(0, P)
    inside = region < number
    where = (image * number + region[:, None]) * (captions * nodes) + caption * nodes + node[None, :]
    held = inside[:, None] & (node < nodes)[None, :]
    raw = tl.load(raw_ptr + where, mask=held, other=0.0).to(tl.float32)
    square = (image * number + region[:, None]) * number + region[None, :]
    gram = tl.load(gram_ptr + square, mask=inside[:, None] & inside[None, :], other=0.0)
    real = inside
    if mask_ptr is not None:
        real = real & (tl.load(mask_ptr + image * number + region, mask=inside, other=0) != 0)
    return raw, gram, real, where, held


@triton.jit
def _attend_kernel(
    raw_ptr, gram_ptr, mask_ptr, weights_ptr, number, nodes, captions, smooth,
    slope: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    image, caption = (tl.program_id(0) // captions).to(tl.int64), tl.program_id(0) % captions
    raw, gram, real, where, held = _load_pair(
        raw_ptr, gram_ptr, mask_ptr, image, caption, number, nodes, captions, R, P
    )
    shares, _, _, inverse, _, _, _ = _shares(raw, gram, real, smooth, slope)
    tl.store(weights_ptr + where, shares * inverse[None, :], mask=held)


@triton.jit
def _attend_backward_kernel(
    raw_ptr, gram_ptr, mask_ptr, grad_ptr, raw_grad_ptr, shares_ptr, scaled_ptr, number, nodes, captions, smooth,
    slope: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    image, caption = (tl.program_id(0) // captions).to(tl.int64), tl.program_id(0) % captions
    raw, gram, real, where, held = _load_pair(
        raw_ptr, gram_ptr, mask_ptr, image, caption, number, nodes, captions, R, P
    )
    shares, products, size, inverse, scores, scale, norm = _shares(raw, gram, real, smooth, slope)
    grad = tl.load(grad_ptr + where, mask=held, other=0.0)
    # inverse = 1 / (size + EPS), size^2 = shares^T G shares
    along = tl.sum(grad * shares, 0) * inverse * inverse / tl.maximum(size, 1e-8)
    tl.store(shares_ptr + where, shares, mask=held)
    tl.store(scaled_ptr + where, shares * (along * -0.5)[None, :], mask=held)
    grad = grad * inverse[None, :] - products * along[None, :]
    grad = shares * (grad - tl.sum(shares * grad, 0)[None, :])
    # scores = rectified * smooth / (norm + EPS)
    change = tl.sum(grad * scores, 1) / (smooth * tl.maximum(norm, 1e-8))
    grad = grad * scale[:, None] - scores * change[:, None]
    tl.store(raw_grad_ptr + where, tl.where(raw > 0, grad, slope * grad), mask=held)


@triton.jit
def _load_weights(weights_ptr, image, row, region, number, rows):
    """Attention weights (rows, R) of some rows of one image, their places, and which are real."""
    places = (image * number + region[None, :]) * rows + row[:, None]
    held = (row < rows)[:, None] & (region < number)[None, :]
    return tl.load(weights_ptr + places, mask=held, other=0.0), places, held


@triton.jit
def _difference(
    weights, regions_ptr, words_ptr, image, row, region, column, number, rows, width, PRECISION: tl.constexpr
):
    """Regions (R, columns), and contexts less words (rows, columns) in float32, for some columns of D."""
    there = (column < width)[None, :]
    places = (image * number + region[:, None]) * width + column[None, :]
    regions = tl.load(regions_ptr + places, mask=(region < number)[:, None] & there, other=0.0)
    words = tl.load(words_ptr + row[:, None] * width + column[None, :], mask=(row < rows)[:, None] & there, other=0)
    return regions, tl.dot(weights, regions, input_precision=PRECISION) - words.to(tl.float32)


@triton.jit
def _local_kernel(
    regions_ptr, weights_ptr, words_ptr, layer_ptr, bias_ptr, nodes_ptr, norm_ptr, number, rows, width, size,
    R: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Unit similarity vectors of some rows of one image, without the contexts ever being in memory."""
    image = tl.program_id(1).to(tl.int64)
    row, region, out = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, R), tl.arange(0, K)
    weights, _of_weights, _held = _load_weights(weights_ptr, image, row, region, number, rows)
    local = tl.zeros((ROWS, K), dtype=tl.float32)
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        _regions, difference = _difference(
            weights, regions_ptr, words_ptr, image, row, region, column, number, rows, width, PRECISION
        )
        of_layer = out[None, :] * width + column[:, None]
        layer = tl.load(layer_ptr + of_layer, mask=(out < size)[None, :] & (column < width)[:, None], other=0.0)
        local = tl.dot((difference * difference).to(layer.dtype), layer, local, input_precision=PRECISION)
    local += tl.load(bias_ptr + out, mask=out < size, other=0.0).to(tl.float32)[None, :]
    norm = tl.sqrt(tl.sum(local * local, 1))
    inverse = tl.where(norm > 1e-10, 1 / (norm + 1e-8), 0.0)
    places = nodes_ptr + (image * rows + row[:, None]) * size + out[None, :]
    tl.store(places, local * inverse[:, None], mask=(row < rows)[:, None] & (out < size)[None, :])
    tl.store(norm_ptr + image * rows + row, norm, mask=row < rows)


@triton.jit
def _local_backward_kernel(
    regions_ptr, weights_ptr, words_ptr, layer_ptr, local_ptr, context_ptr, squares_ptr, grad_ptr,
    number, rows, width, size,
    R: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of contexts and of attention weights, and the squared differences, from the gradient of a layer."""
    image = tl.program_id(1).to(tl.int64)
    row, region, out = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, R), tl.arange(0, K)
    weights, of_weights, held = _load_weights(weights_ptr, image, row, region, number, rows)
    of_nodes = (image * rows + row[:, None]) * size + out[None, :]
    local = tl.load(local_ptr + of_nodes, mask=(row < rows)[:, None] & (out < size)[None, :], other=0.0)
    total = tl.zeros((ROWS, R), dtype=tl.float32)
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        regions, difference = _difference(
            weights, regions_ptr, words_ptr, image, row, region, column, number, rows, width, PRECISION
        )
        of_layer = out[:, None] * width + column[None, :]
        layer = tl.load(layer_ptr + of_layer, mask=(out < size)[:, None] & (column < width)[None, :], other=0.0)
        context = (2 * tl.dot(local, layer, input_precision=PRECISION) * difference).to(regions.dtype)
        of_contexts = (image * rows + row[:, None]) * width + column[None, :]
        both = (row < rows)[:, None] & (column < width)[None, :]
        tl.store(context_ptr + of_contexts, context, mask=both)
        tl.store(squares_ptr + of_contexts, difference * difference, mask=both)
        total = tl.dot(context, tl.trans(regions), total, input_precision=PRECISION)
    tl.store(grad_ptr + of_weights, total, mask=held)


@triton.jit
def _through_norm_kernel(
    nodes_ptr, grad_ptr, norm_ptr, local_ptr, whole_ptr, rows, nodes, size, K: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    row, column = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, K)
    there = (row < rows)[:, None] & (column < size)[None, :]
    places, first = row[:, None] * size + column[None, :], (row % nodes == 0)[:, None]
    values = tl.load(nodes_ptr + places, mask=there, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + places, mask=there, other=0.0).to(tl.float32)
    norm = tl.load(norm_ptr + row, mask=row < rows, other=0.0)
    inverse = tl.where(norm > 1e-10, 1 / (norm + 1e-8), 0.0)
    along = tl.sum(values * grad, 1) / tl.maximum(inverse * norm, 1e-8)
    grad = (grad - values * along[:, None]) * inverse[:, None]
    tl.store(local_ptr + places, tl.where(first, 0.0, grad), mask=there)
    tl.store(whole_ptr + (row // nodes)[:, None] * size + column[None, :], grad, mask=there & first)


@triton.jit
def _mix(
    queries_ptr, nodes_ptr, mask_ptr, pair, asked, nodes, captions, size,
    Q: tl.constexpr, P: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Queries (Q, K), real nodes (P, K), shares (Q, P), and places and masks of queries and nodes."""
    query, node, column = tl.arange(0, Q), tl.arange(0, P), tl.arange(0, K)
    there = (column < size)[None, :]
    asking, holding = (query < asked)[:, None] & there, (node < nodes)[:, None] & there
    where = (pair * asked + query[:, None]) * size + column[None, :]
    queries = tl.load(queries_ptr + where, mask=asking, other=0.0)
    places = (pair * nodes + node[:, None]) * size + column[None, :]
    real = tl.load(mask_ptr + (pair % captions) * nodes + node, mask=node < nodes, other=0) != 0
    keys = tl.where(real[:, None], tl.load(nodes_ptr + places, mask=holding, other=0.0), 0.0)
    logits = tl.where(real[None, :], tl.dot(queries, tl.trans(keys), input_precision="ieee"), -float("inf"))
    powers = tl.exp(logits - tl.max(logits, 1)[:, None])
    return queries, keys, powers / tl.sum(powers, 1)[:, None], where, asking, places, holding


@triton.jit
def _mix_kernel(
    queries_ptr, nodes_ptr, mask_ptr, out_ptr, asked, nodes, captions, size,
    Q: tl.constexpr, P: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    _, keys, shares, where, asking, _, _ = _mix(
        queries_ptr, nodes_ptr, mask_ptr, pair, asked, nodes, captions, size, Q, P, K
    )
    tl.store(out_ptr + where, tl.dot(shares.to(keys.dtype), keys, input_precision="ieee"), mask=asking)


@triton.jit
def _mix_backward_kernel(
    queries_ptr, nodes_ptr, mask_ptr, grad_ptr, queries_grad_ptr, nodes_grad_ptr, asked, nodes, captions, size,
    Q: tl.constexpr, P: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    queries, keys, shares, where, asking, places, holding = _mix(
        queries_ptr, nodes_ptr, mask_ptr, pair, asked, nodes, captions, size, Q, P, K
    )
    grad = tl.load(grad_ptr + where, mask=asking, other=0.0)
    change = tl.dot(grad, tl.trans(keys), input_precision="ieee")
    change = (shares * (change - tl.sum(shares * change, 1)[:, None])).to(keys.dtype)
    tl.store(queries_grad_ptr + where, tl.dot(change, keys, input_precision="ieee"), mask=asking)
    of_nodes = tl.dot(tl.trans(shares.to(keys.dtype)), grad, input_precision="ieee")
    of_nodes = tl.dot(tl.trans(change), queries, of_nodes, input_precision="ieee")
    tl.store(nodes_grad_ptr + places, of_nodes, mask=holding)


def _power(number: int) -> int:
    """Side of a tile: a power of 2, and at least the 16 of a matrix product."""
    return max(16, triton.next_power_of_2(number))


def _precision(dtype: torch.dtype) -> str:
    return "ieee" if dtype == torch.float32 else "tf32"


def attend(raw: Tensor, gram: Tensor, mask: Tensor | None, smooth: float, slope: float) -> Tensor:
    """Weights of the regions in the contexts ``(N, R, S)``, in the dtype of ``raw`` ``(N, R, C, P)``."""
    images, number, captions, nodes = raw.shape
    weights = torch.empty_like(raw)
    sizes = {"R": _power(number), "P": _power(nodes)}
    _attend_kernel[(images * captions,)](
        raw, gram, mask, weights, number, nodes, captions, smooth, slope, **sizes, num_warps=4
    )
    return weights.flatten(2)


def attend_backward(
    grad: Tensor, raw: Tensor, gram: Tensor, mask: Tensor | None, smooth: float, slope: float
) -> tuple[Tensor, Tensor]:
    """Gradients of ``raw``, in its dtype, and of ``gram`` from the float32 gradient of the weights ``(N, R, S)``."""
    images, number, captions, nodes = raw.shape
    raw_grad, shares, scaled = torch.empty_like(raw), torch.empty_like(grad), torch.empty_like(grad)
    sizes = {"R": _power(number), "P": _power(nodes)}
    _attend_backward_kernel[(images * captions,)](
        raw, gram, mask, grad, raw_grad, shares, scaled, number, nodes, captions, smooth, slope, **sizes, num_warps=4
    )
    return raw_grad, scaled @ shares.mT


def local_vectors(
    regions: Tensor, weights: Tensor, words: Tensor, layer: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Unit similarity vectors ``(N, S, K)`` of words ``(S, D)`` and the contexts of ``weights``, and their norms."""
    images, number, width = regions.shape
    rows, size = len(words), len(bias)
    nodes = regions.new_empty(images, rows, size)
    norm = torch.empty(images, rows, device=regions.device)
    block, columns, warps, stages = _FORWARD
    _local_kernel[(triton.cdiv(rows, block), images)](
        regions, weights, words, layer, bias, nodes, norm, number, rows, width, size,
        R=_power(number), K=_power(size), ROWS=block, COLUMNS=columns, PRECISION=_precision(regions.dtype),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return nodes, norm


def local_backward(
    regions: Tensor, weights: Tensor, words: Tensor, layer: Tensor, local: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of the contexts and squared differences, ``(N, S, D)``, and gradient of the weights in float32.

    Args:
        regions: ``(N, R, D)``.
        weights: ``(N, R, S)``.
        words: ``(S, D)``.
        layer: ``(K, D)``.
        local: ``(N, S, K)``, gradient of the output of the layer.
    """
    images, number, width = regions.shape
    rows, size = len(words), len(layer)
    context = regions.new_empty(images, rows, width)
    squares, grad = torch.empty_like(context), torch.empty(images, number, rows, device=regions.device)
    block, columns, warps, stages = _BACKWARD
    _local_backward_kernel[(triton.cdiv(rows, block), images)](
        regions, weights, words, layer, local, context, squares, grad, number, rows, width, size,
        R=_power(number), K=_power(size), ROWS=block, COLUMNS=columns, PRECISION=_precision(regions.dtype),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return context, squares, grad


def through_norm(nodes: Tensor, grad: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the words' vectors, 0 for the whole pair, and of the whole pairs' ``(N C, K)``, before the norm.

    Args:
        nodes: ``(N, C, P, K)`` unit vectors.
        grad: Their gradient.
        norm: ``(N, C, P, 1)`` in float32, the norm that the vectors had.
    """
    images, captions, number, size = nodes.shape
    local, whole = torch.empty_like(nodes), nodes.new_empty(images * captions, size)
    _through_norm_kernel[(triton.cdiv(norm.numel(), 16),)](
        nodes, grad.contiguous(), norm, local, whole, norm.numel(), number, size, K=_power(size), ROWS=16, num_warps=4
    )
    return local, whole


class MixNodes(torch.autograd.Function):
    """``softmax(queries nodes^T) nodes`` of every pair: ``(N, C, Q, K)`` and ``(N, C, P, K)``, mask ``(C, P)``."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, nodes: Tensor, mask: Tensor) -> Tensor:
        """Mix the real nodes for every query."""
        queries, nodes, mask = queries.contiguous(), nodes.contiguous(), mask.contiguous()
        ctx.save_for_backward(queries, nodes, mask)
        mixed = torch.empty_like(queries)
        images, captions, asked, size = queries.shape
        sizes = {"Q": _power(asked), "P": _power(nodes.shape[2]), "K": _power(size)}
        _mix_kernel[(images * captions,)](
            queries, nodes, mask, mixed, asked, nodes.shape[2], captions, size, **sizes, num_warps=4
        )
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients of queries and nodes."""
        queries, nodes, mask = ctx.saved_tensors
        queries_grad, nodes_grad = torch.empty_like(queries), torch.empty_like(nodes)
        images, captions, asked, size = queries.shape
        sizes = {"Q": _power(asked), "P": _power(nodes.shape[2]), "K": _power(size)}
        _mix_backward_kernel[(images * captions,)](
            queries, nodes, mask, grad.contiguous(), queries_grad, nodes_grad, asked, nodes.shape[2], captions, size,
            **sizes, num_warps=4,
        )  # fmt: skip
        return queries_grad, nodes_grad, None
