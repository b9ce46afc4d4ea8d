"""The layer that VSE++, SCAN and SGRAF start from."""

from torch import nn


def xavier_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with Xavier's uniform weights and no bias to begin with.

    Example:
        >>> xavier_linear(3, 2).bias.tolist()
        [0.0, 0.0]
    """
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
