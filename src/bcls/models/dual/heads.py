"""From features to the common space."""

import torch
from torch import Tensor, nn

from bcls.models.layers import xavier_linear


class Head(nn.Module):
    r"""A linear layer, with or without a two-layer perceptron beside it.

    .. math:: h(x) = W x + b \quad\text{or}\quad h(x) = W x + b + W_2\, relu(W_1 x + b_1) + b_2

    Args:
        kind: ``"linear"``, ``"mlp"``, or ``"none"`` for the features as they are.
        width: Width of the features, d.
        size: Width of the common space, D.
        dropout: Share of the features that training leaves out.
        parts: Heads side by side, each of D / parts: they share the dropout and nothing else.

    Inputs:
        features: ``(N, d)`` or ``(N, L, d)``.

    Returns:
        ``(N, D)`` or ``(N, L, D)``.
    """

    def __init__(self, kind: str, width: int, size: int, dropout: float, parts: int = 1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = xavier_linear(width, size) if kind != "none" else None
        self.mlp = nn.Sequential(xavier_linear(width, size), nn.ReLU(), _last(size, parts)) if kind == "mlp" else None

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        features = self.dropout(features)
        if self.linear is None:
            return features
        straight: Tensor = self.linear(features)
        return straight if self.mlp is None else straight + self.mlp(features)


class SideBySide(nn.Module):
    """Linear layers side by side, each on its own part of the input: ``(..., P d)`` to ``(..., P d)``.

    Args:
        parts: How many, P.
        size: Width of each, d.
    """

    def __init__(self, parts: int, size: int) -> None:
        super().__init__()
        layers = [xavier_linear(size, size) for _ in range(parts)]
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.zeros(parts, size))

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        split = features.view(*features.shape[:-1], *self.bias.shape)
        return (torch.einsum("...pi,poi->...po", split, self.weight) + self.bias).flatten(-2)


def _last(size: int, parts: int) -> nn.Module:
    return xavier_linear(size, size) if parts == 1 else SideBySide(parts, size // parts)
