"""Gradients that are written by hand and cannot be differentiated again: a second derivative is refused, not wrong."""

from typing import Any

import torch
from torch import Tensor


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        ctx.sources = len(sources)
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        raise RuntimeError(
            "the fused and streaming losses have no second derivative; use the plain ones of bcls.losses on a matrix"
        )


def only_once(gradient: Tensor, *sources: Tensor) -> Tensor:
    """A gradient that raises where it is differentiated by what it was made of.

    torch's own ``once_differentiable`` raises only where the upstream gradient needs one, and is silent for a scalar.

    Raises:
        RuntimeError: Not here, but in the second backward pass.
    """
    if not torch.is_grad_enabled():
        return gradient
    refused: Tensor = _Once.apply(gradient, *sources)  # type: ignore[no-untyped-call]
    return refused
