"""Similarity attention filtration (SAF): scores of all pairs from their similarity vectors."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from bcls.similarity.nodes import CaptionSide, ImageSide, NodeWeights, pair_scores, similarity_nodes
from bcls.similarity.unit import EPS, unit


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
