"""From features to the common space."""

from torch import Tensor, nn


class Head(nn.Module):
    r"""A linear layer, with or without a two-layer perceptron beside it.

    .. math:: h(x) = W x + b \quad\text{or}\quad h(x) = W x + b + W_2\, relu(W_1 x + b_1) + b_2

    Args:
        kind: ``"linear"``, ``"mlp"``, or ``"none"`` for the features as they are.
        width: Width of the features, d.
        size: Width of the common space, D.
        dropout: Share of the features that training leaves out.

    Inputs:
        features: ``(N, d)`` or ``(N, L, d)``.

    Returns:
        ``(N, D)`` or ``(N, L, D)``.
    """

    def __init__(self, kind: str, width: int, size: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = _linear(width, size) if kind != "none" else None
        self.mlp = nn.Sequential(_linear(width, size), nn.ReLU(), _linear(size, size)) if kind == "mlp" else None

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        features = self.dropout(features)
        if self.linear is None:
            return features
        straight: Tensor = self.linear(features)
        return straight if self.mlp is None else straight + self.mlp(features)


def _linear(width: int, size: int) -> nn.Linear:
    layer = nn.Linear(width, size)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
