"""From regions or words to one vector: mean, max, first, or a learnt weighting of the sorted values (GPO).

From features to the common space.
"""

import math
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from bcls.models.padded import Padded
from bcls.models.vsepp import xavier_linear

#: Values that stand for "not there" before a maximum or a sort; far below any feature, and a number in float16.
_LOWEST = -1e4
#: Width of the encoded positions and of the recurrent layer over them, and the temperature of the weights.
_POSITION_WIDTH, _TEMPERATURE = 32, 0.1


def pool(kind: str, items: Padded) -> Tensor:
    """Pool the real entries of each item.

    Args:
        kind: ``"mean"``, ``"max"``, or ``"cls"`` for the first entry.
        items: ``(N, L, D)`` with lengths. An item of length 0 becomes the zero vector.

    Returns:
        ``(N, D)`` float32.

    Example:
        >>> items = Padded(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([2]))
        >>> [pool(kind, items).item() for kind in ("mean", "max", "cls")]
        [2.0, 3.0, 1.0]
    """
    values = items.values.float()
    if kind == "cls":
        return values[:, 0]
    mask = items.mask[:, :, None]
    if kind == "max":
        highest = values.masked_fill(~mask, _LOWEST).amax(1)
        return highest * mask.any(1)
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


class GPO(nn.Module):
    r"""Generalised pooling: each dimension's values in falling order, weighted by their place.

    With :math:`v_{(k)}` the k-th largest value of a dimension among the L entries of an item,

    .. math:: p = \sum_{k=1}^{L} \theta_k v_{(k)}, \qquad \theta = softmax(f(L) / 0.1)

    where f encodes the places 1 .. L as sines and cosines (width 32), reads them with a bidirectional GRU (32, mean of
    the directions) and gives each a score. The weights depend on L alone, so mean and max are among what it can learn.

    Inputs:
        items: ``(N, L, D)`` with lengths, at least 1 each.

    Returns:
        ``(N, D)`` float32.

    Reference: Chen et al., Learning the Best Pooling Strategy for Visual Semantic Embedding, CVPR 2021.
    """

    def __init__(self) -> None:
        super().__init__()
        width = _POSITION_WIDTH
        # Two one-way layers instead of a packed two-way one: no batch has to be sorted, cut or sent to the CPU.
        self.along = nn.GRU(width, width, batch_first=True)
        self.against = nn.GRU(width, width, batch_first=True)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, items: Padded) -> Tensor:
        """See the class."""
        mask = items.mask
        values = items.values.float().masked_fill(~mask[:, :, None], _LOWEST)
        ordered = values.sort(dim=1, descending=True).values.masked_fill(~mask[:, :, None], 0)
        return (ordered * self.weights(mask)[:, :, None]).sum(1)

    def weights(self, mask: Tensor) -> Tensor:
        """The weights of the places, ``(N, L)`` float32, from which places are there."""
        # The layer is tiny and its softmax sharp: nothing is saved in half precision, and much is lost.
        kind = mask.device.type
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            rows, longest = mask.shape
            place = torch.arange(longest, device=mask.device)
            codes = encode_places(place, _POSITION_WIDTH)
            # Everybody's first places are the same, so the layer that runs along them does so once.
            along = self.along(codes[None])[0].expand(rows, -1, -1)
            mirrored = (mask.sum(1, keepdim=True) - 1 - place).clamp(min=0)
            against = self.against(codes[mirrored])[0]
            against = against.gather(1, mirrored[:, :, None].expand(-1, -1, _POSITION_WIDTH))
            scores = self.score((along + against) / 2)[:, :, 0].masked_fill(~mask, _LOWEST)
            return torch.softmax(scores / _TEMPERATURE, dim=1)


def encode_places(place: Tensor, width: int) -> Tensor:
    """Places as sines (even columns) and cosines (odd columns) of falling frequency, ``(L, width)``.

    Example:
        >>> encode_places(torch.tensor([0]), 4)
        tensor([[0., 1., 0., 1.]])
    """
    frequency = torch.exp(torch.arange(0, width, 2, device=place.device) * -(math.log(10000.0) / width))
    angle = place[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)


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
