"""Batch norm over items of different lengths."""

import torch
from torch import Tensor, nn

from bcls.similarity import wide


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
