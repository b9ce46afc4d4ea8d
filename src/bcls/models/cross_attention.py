"""Similarity vectors of words with the regions they attend to: what SGR and SAF reason over.

Letters: N images, C captions, R regions, L words of the longest caption of a block, D width of the codes, K width of a
similarity vector.

Similarity graph reasoning (SGR): scores of all pairs from their similarity vectors.

Similarity attention filtration (SAF): scores of all pairs from their similarity vectors.

Batch norm over items of different lengths.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear, mse_loss

from bcls.models.padded import Padded
from bcls.models.scoring import EPS, inverse, unit, wide

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


class Step(NamedTuple):
    """The layers of one step; weights ``(K, K)`` and biases ``(K,)``."""

    match_weight: Tensor
    """Query and key layer in one, see :func:`reasoning_step`."""
    match_bias: Tensor
    out_weight: Tensor
    out_bias: Tensor


class ReasoningWeights(NamedTuple):
    """All that SGR scores with."""

    nodes: NodeWeights
    steps: tuple[Step, ...]
    score_weight: Tensor
    """``(1, K)``."""
    score_bias: Tensor
    """``(1,)``."""


def reasoning_step(query: nn.Linear, key: nn.Linear, out: nn.Linear) -> Step:
    r"""A step from its three layers, of which query and key act as one.

    .. math::
        (W_q x + b_q) \cdot (W_k y + b_k) = (W_k^\top W_q x + W_k^\top b_q) \cdot y + \ldots

    and what is left out is the same for all keys y, which the softmax does not see.
    """
    with torch.autocast(query.weight.device.type, enabled=False):
        # The key's bias has no effect; it stays in the graph, with a gradient of zero, as a parameter without one is
        # an error where several processes wait for each other's gradients.
        bias = query.bias @ key.weight + 0 * key.bias
        return Step(key.weight.T @ query.weight, bias, out.weight, out.bias)


def reasoned_scores(images: ImageSide, captions: CaptionSide, weights: ReasoningWeights) -> tuple[Tensor]:
    r"""Score all pairs by reasoning over their similarity vectors.

    .. math::
        X \leftarrow \mathrm{ReLU}(W \, \mathrm{softmax}(Q(X) K(X)^\top) X + b), \qquad
        s = \mathrm{sigmoid}(w \cdot x_0 + b)

    Args:
        images: N images.
        captions: C captions.
        weights: The layers.

    Returns:
        ``(N, C)`` scores in (0, 1), alone in a tuple.
    """
    nodes = similarity_nodes(images, captions, weights.nodes)
    *steps, last = weights.steps
    for step in steps:
        nodes = _reasoned(nodes, nodes, captions.mask, step)
    # Only the whole pair's node is read in the end, so only it is worked out in the last step.
    top = _reasoned(nodes[:, :, :1], nodes, captions.mask, last)[:, :, 0]
    return (pair_scores(top, weights.score_weight, weights.score_bias),)


def _reasoned(queries: Tensor, nodes: Tensor, mask: Tensor | None, step: Step) -> Tensor:
    """One step for some of the nodes."""
    logits = linear(queries, step.match_weight, step.match_bias) @ nodes.mT
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None], -torch.inf)
    return linear(logits.softmax(-1).to(nodes.dtype) @ nodes, step.out_weight, step.out_bias).relu()


class FiltrationWeights(NamedTuple):
    """All that SAF scores with."""

    nodes: NodeWeights
    filter_weight: Tensor
    """``(1, K)``."""
    filter_bias: Tensor
    """``(1,)``."""
    scale: Tensor
    """``(1,)``, of the batch norm."""
    shift: Tensor
    """``(1,)``, of the batch norm."""
    mean: Tensor | None
    """``(1,)``, the running mean; ``None`` in training, where each caption has its own."""
    variance: Tensor | None
    """``(1,)``, likewise."""
    eps: float
    """Added to a variance."""
    score_weight: Tensor
    """``(1, K)``."""
    score_bias: Tensor
    """``(1,)``."""


def filtered_scores(images: ImageSide, captions: CaptionSide, weights: FiltrationWeights) -> tuple[Tensor, ...]:
    r"""Score all pairs by a weighted mean of their similarity vectors.

    .. math::
        \beta_l = \mathrm{sigmoid}(\mathrm{BN}(w_f \cdot x_l + b_f)), \qquad
        s = \mathrm{sigmoid}(w \cdot \mathrm{unit}(\textstyle\sum_l \beta_l x_l / \sum_l \beta_l) + b)

    The authors score one caption at a time, so in training the batch norm's mean and variance are those of one caption
    with all N images; that is kept.

    Args:
        images: N images; in training all of the batch.
        captions: C captions.
        weights: The layers. Without ``mean`` and ``variance`` each caption gets its own.

    Returns:
        ``(N, C)`` scores in (0, 1). In training also ``(1, C)`` means and ``(1, C)`` unbiased variances of the
        captions, without gradient, for the running ones.
    """
    nodes = similarity_nodes(images, captions, weights.nodes)
    raw = linear(nodes, weights.filter_weight, weights.filter_bias)[..., 0].to(images.gram.dtype)
    moments: tuple[Tensor, ...] = ()
    if weights.mean is None or weights.variance is None:
        mean, variance, count = _moments(raw, captions.mask)
        moments = (mean.detach()[None], (variance * count / (count - 1).clamp(min=1)).detach()[None])
        mean, variance = mean[:, None], variance[:, None]
    else:
        mean, variance = weights.mean, weights.variance
    share = ((raw - mean) * (variance + weights.eps).rsqrt() * weights.scale + weights.shift).sigmoid()
    if captions.mask is not None:
        share = share * captions.mask
    share = share / (share.sum(-1, keepdim=True) + EPS)
    mixed = unit((share.to(nodes.dtype)[:, :, None] @ nodes)[:, :, 0])
    return (pair_scores(mixed, weights.score_weight, weights.score_bias), *moments)


def _moments(raw: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and number of values of each caption, ``(C,)``, over images and real nodes."""
    real = torch.ones_like(raw[0]) if mask is None else mask.to(raw.dtype)
    count = real.sum(-1) * len(raw)
    mean = (raw * real).sum((0, 2)) / count
    variance = ((raw - mean[:, None]).square() * real).sum((0, 2)) / count
    return mean, variance, count


def running(value: Tensor, of_captions: Tensor, momentum: float) -> Tensor:
    r"""A running value after one update for each caption in turn, in closed form.

    .. math::
        r' = (1 - m)^C r + \sum_{c=1}^{C} m (1 - m)^{C - c} x_c

    That is what the authors' C forward passes in a row do to the batch norm's running mean and variance: with their
    m = 0.1 and a batch of 128, nothing of the old value is left, and the last 20 captions make 88 % of the new one.

    Args:
        value: ``(1,)``, the old value.
        of_captions: ``(C,)``, the captions' values in their order.
        momentum: m.

    Example:
        >>> running(torch.tensor([1.0]), torch.tensor([0.0, 2.0]), 0.5)
        tensor([1.2500])
    """
    count = len(of_captions)
    left = (1 - momentum) ** torch.arange(count, -1, -1, dtype=value.dtype, device=value.device)
    return left[0] * value + momentum * (left[1:] * of_captions).sum()


def masked_batch_norm(values: Tensor, mask: Tensor | None, norm: nn.BatchNorm1d, *, axis: int) -> Tensor:
    """Normalise ``(N, L, D)`` for each place (``axis=1``) or each channel (``axis=2``), over what is real.

    Without a mask and with several values it is torch's own batch norm. Padding takes no part in means and variances,
    running ones included, and comes out as anything. A place or channel with a single value in training has no
    variance: it gets its running mean and variance, and leaves them as they are.

    Args:
        values: ``(N, L, D)``.
        mask: ``(N, L)`` bool, true where real; ``None`` where all are.
        norm: Weights, running mean and variance, of size L or more for places, of size D for channels.
        axis: 1 or 2.
    """
    features = values.shape[axis]
    count = values.numel() // max(1, features)
    if mask is None and features == norm.num_features and (not norm.training or count > 1):
        moved = values if axis == 1 else values.mT
        done: Tensor = norm(moved)
        return done if axis == 1 else done.mT
    shape = (1, features, 1) if axis == 1 else (1, 1, features)
    weight, bias, mean, variance = (
        one[:features].view(shape) for one in (norm.weight, norm.bias, _of(norm.running_mean), _of(norm.running_var))
    )
    if norm.training:
        mean, variance = _own_moments(values, mask, norm, axis)
    scaled = (values.to(wide(values.dtype)) - mean) * (variance + norm.eps).rsqrt() * weight + bias
    return scaled.to(values.dtype)


def _own_moments(values: Tensor, mask: Tensor | None, norm: nn.BatchNorm1d, axis: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of what is real, and the running ones moved towards them."""
    features = values.shape[axis]
    over = (0, 3 - axis)
    exact = values.to(wide(values.dtype))
    real = torch.ones_like(exact) if mask is None else mask[..., None].to(exact.dtype).expand_as(exact)
    count = real.sum(over, keepdim=True)
    mean = (exact * real).sum(over, keepdim=True) / count.clamp(min=1)
    variance = ((exact - mean).square() * real).sum(over, keepdim=True) / count.clamp(min=1)
    running_mean, running_var = _of(norm.running_mean)[:features], _of(norm.running_var)[:features]
    enough = count > 1
    with torch.no_grad():
        momentum = norm.momentum if norm.momentum is not None else 0.1
        unbiased = variance * count / (count - 1).clamp(min=1)
        for running, now in ((running_mean, mean), (running_var, unbiased)):
            moved = running.lerp(now.flatten().to(running.dtype), momentum)
            running.copy_(torch.where(enough.flatten(), moved, running))
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
    shape = mean.shape
    # Copies of the running values, as they are what later steps change in place.
    old_mean, old_variance = running_mean.clone().view(shape), running_var.clone().view(shape)
    return torch.where(enough, mean, old_mean), torch.where(enough, variance, old_variance)


def _of(buffer: Tensor | None) -> Tensor:
    if buffer is None:
        raise RuntimeError("a batch norm without running statistics")
    return buffer
