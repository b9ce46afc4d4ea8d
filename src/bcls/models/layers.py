"""Padded batches, and layers that several models use: normalization, the GRU over words, pooling, heads, batch norm."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bcls._core.errors import fail

#: Added to a norm, as the authors of SCAN and SGRAF do.
EPS = 1e-8
#: Norms up to this value count as zero.
_TINY = 1e-10
#: Word embeddings are initialized uniformly in [-0.1, 0.1], as in VSE++ and SCAN.
_WORD_RANGE = 0.1
#: Fill value of padding before a maximum or a sort; far below any feature, and representable in float16.
_LOWEST = -1e4
#: GPO: width of the encoded positions and of the GRU over them, and temperature of the softmax.
_POSITION_WIDTH, _TEMPERATURE = 32, 0.1


@dataclass(frozen=True)
class Padded:
    """A batch of vectors, or of sequences padded to the longest; the input and output type of models.

    Attributes:
        values: ``(N, ...)``: token ids ``(N, W)``, vectors ``(N, D)``, regions or words ``(N, L, D)``, pixels
            ``(N, 3, H, W)``.
        lengths: ``(N,)`` int64, the number of real entries among the L of each item; ``None`` if all are real, or if
            an item is one vector or one image.
        host_lengths: ``lengths`` on the host, if they are known there: reading them from a GPU would wait for it.

    Example:
        >>> words = Padded(torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([3, 1]))
        >>> words.mask
        tensor([[ True,  True,  True],
                [ True, False, False]])
        >>> words.take(torch.tensor([1])).values
        tensor([[8, 0, 0]])
    """

    values: Tensor
    lengths: Tensor | None = None
    host_lengths: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mask(self) -> Tensor:
        """``(N, L)`` bool, true for real entries."""
        return torch.arange(self.values.shape[1], device=self.values.device) < self.full_lengths[:, None]

    @property
    def full_lengths(self) -> Tensor:
        """``(N,)`` lengths, also where :attr:`lengths` is ``None``."""
        if self.lengths is None:
            return torch.full(self.values.shape[:1], self.values.shape[1], device=self.values.device)
        return self.lengths

    def to(self, device: torch.device | str) -> "Padded":
        """Copy the batch to a device."""
        # A non-blocking copy to the CPU may not be complete when it is read.
        non_blocking = torch.device(device).type != "cpu"
        lengths = None if self.lengths is None else self.lengths.to(device, non_blocking=non_blocking)
        return Padded(self.values.to(device, non_blocking=non_blocking), lengths, self.host_lengths)

    def float(self) -> "Padded":
        """The batch in float32."""
        return Padded(self.values.float(), self.lengths)

    def take(self, rows: Tensor | slice) -> "Padded":
        """Select items."""
        return Padded(self.values[rows], None if self.lengths is None else self.lengths[rows])


def pad(rows: list[Tensor]) -> Padded:
    """Batch sequences of different lengths, padded with zeros.

    Args:
        rows: At least one tensor, each ``(L_i, ...)``.

    Example:
        >>> pad([torch.tensor([1, 2]), torch.tensor([3])]).values
        tensor([[1, 2],
                [3, 0]])
    """
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    return Padded(nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths)


def trimmed(items: Padded) -> Padded:
    """Remove columns that are padding in every row."""
    if items.lengths is None or not len(items):
        return items
    return Padded(items.values[:, : int(items.lengths.max())], items.lengths)


def joined(batches: list[Padded]) -> Padded:
    """Concatenate batches, padded to the longest."""
    longest = max(batch.values.shape[1] for batch in batches)
    values = torch.cat([widen(batch.values, longest) for batch in batches])
    if all(batch.lengths is None and batch.values.shape[1] == longest for batch in batches):
        return Padded(values)
    return Padded(values, torch.cat([batch.full_lengths for batch in batches]))


def widen(values: Tensor, longest: int) -> Tensor:
    """Pad sequences ``(N, L, ...)`` with zeros to a length."""
    missing = longest - values.shape[1]
    return nn.functional.pad(values, (0, 0) * (values.ndim - 2) + (0, missing)) if missing else values


def unit(values: Tensor, dim: int = -1) -> Tensor:
    r"""Divide vectors by their norm: :math:`x / (\lVert x \rVert + 10^{-8})`.

    A zero vector stays zero and passes no gradient, where the plain formula gives NaN. Norms are computed in float32 or
    wider; the result has the dtype of ``values``.

    Args:
        values: Floating point, any shape.
        dim: Axis of the vectors.

    Example:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    norm = torch.linalg.vector_norm(values, dim=dim, keepdim=True, dtype=at_least_float32(values.dtype))
    # Multiplied in the wider dtype: the inverse of a small norm overflows half precision.
    return (values * safe_inverse(norm)).to(values.dtype)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which norms, softmaxes and statistics are computed: float32, or float64 for float64 input."""
    return dtype if dtype == torch.float64 else torch.float32


def safe_inverse(norm: Tensor) -> Tensor:
    """``1 / (norm + 1e-8)``, and 0 without gradient where the norm is zero."""
    # As 1 / infinity: half as many kernels as a `torch.where`, forward and backward.
    return (nn.functional.threshold(norm, _TINY, math.inf) + EPS).reciprocal()


def cosine(images: Tensor, texts: Tensor) -> Tensor:
    r"""Cosine similarity of every image and every caption, :math:`s_{ij} = \cos(v_i, t_j)`; 0 for zero vectors.

    Args:
        images: ``(N, D)``; rows need not have unit norm.
        texts: ``(C, D)``.

    Returns:
        ``(N, C)`` in float32 or wider, also under autocast, with gradients.

    Raises:
        ValueError: The shapes do not match.

    Example:
        >>> cosine(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.0000]])
    """
    if images.ndim != 2 or texts.ndim != 2 or images.shape[1] != texts.shape[1]:
        got = f"{tuple(images.shape)} and {tuple(texts.shape)}"
        fail("images", "(N, D) and `texts` (C, D)", got, "encode both with the same model")
    with torch.autocast(images.device.type, enabled=False):
        rows, columns = (unit(side.to(at_least_float32(side.dtype))) for side in (images, texts))
        return rows @ columns.T


def xavier_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with Xavier-uniform weights and zero bias, as in VSE++, SCAN and SGRAF.

    Example:
        >>> xavier_linear(3, 2).bias.tolist()
        [0.0, 0.0]
    """
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class WordReader(nn.Module):
    """Word embeddings and a one-layer GRU over them, in one direction or both.

    Captions may come in any order. Nothing is packed: a state never depends on later positions, so the padding after a
    caption changes none of its states, and the backward GRU reads each caption reversed within its own length.
    Therefore lengths may stay on the GPU, and the module can be exported.

    Args:
        words: Size of the vocabulary.
        word_width: Width of the word embeddings.
        width: Width of the states.
        bidirectional: Read captions backwards as well.
        dropout: Dropout on the word embeddings.

    Example:
        >>> reader = WordReader(words=9, word_width=4, width=6, bidirectional=True)
        >>> captions = Padded(torch.tensor([[1, 5, 2], [1, 2, 0]]), torch.tensor([3, 2]))
        >>> reader.last(captions).shape, reader.states(captions).shape
        (torch.Size([2, 6]), torch.Size([2, 3, 6]))
    """

    def __init__(self, words: int, word_width: int, width: int, bidirectional: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, word_width)
        nn.init.uniform_(self.embed.weight, -_WORD_RANGE, _WORD_RANGE)
        self.dropout = nn.Dropout(dropout)
        self.ahead = nn.GRU(word_width, width, batch_first=True)
        self.back = nn.GRU(word_width, width, batch_first=True) if bidirectional else None

    def states(self, captions: Padded) -> Tensor:
        """``(C, W, D)``: one state for each word, the mean of the directions; zero after a caption's last word."""
        vectors = self.dropout(self.embed(captions.values))
        states: Tensor = self.ahead(vectors)[0]
        if self.back is not None:
            order = _reversed_positions(captions)
            states = (states + _reorder(self.back(_reorder(vectors, order))[0], order)) / 2
        return states * captions.mask[..., None]

    def last(self, captions: Padded) -> Tensor:
        """``(C, D)``: the state after the whole caption, the mean of the directions' last states."""
        vectors = self.dropout(self.embed(captions.values))
        rows = torch.arange(vectors.shape[0], device=vectors.device), captions.full_lengths - 1
        state: Tensor = self.ahead(vectors)[0][rows]
        if self.back is None:
            return state
        backward: Tensor = self.back(_reorder(vectors, _reversed_positions(captions)))[0]
        return (state + backward[rows]) / 2


def _reversed_positions(captions: Padded) -> Tensor:
    """``(C, W)``: source position of each word of the reversed captions; padding keeps its position."""
    positions = torch.arange(captions.values.shape[1], device=captions.values.device)
    backwards = captions.full_lengths[:, None] - 1 - positions
    return torch.where(backwards >= 0, backwards, positions)


def _reorder(vectors: Tensor, positions: Tensor) -> Tensor:
    return vectors.gather(1, positions[..., None].expand(-1, -1, vectors.shape[2]))


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
        return values.masked_fill(~mask, _LOWEST).amax(1) * mask.any(1)
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


class GPO(nn.Module):
    r"""Generalised pooling operator: the sorted values of each dimension, weighted by their rank.

    With :math:`v_{(k)}` the k-th largest value of a dimension among the L entries of an item,

    .. math:: p = \sum_{k=1}^{L} \theta_k v_{(k)}, \qquad \theta = softmax(f(L) / 0.1)

    where f encodes the positions 1 .. L as sines and cosines (width 32), applies a bidirectional GRU (32, mean of the
    directions) and scores each position. The weights depend on L alone; mean and max pooling are special cases.

    Inputs:
        items: ``(N, L, D)`` with lengths, at least 1 each.

    Returns:
        ``(N, D)`` float32.

    Reference: Chen et al., Learning the Best Pooling Strategy for Visual Semantic Embedding, CVPR 2021.
    """

    def __init__(self) -> None:
        super().__init__()
        width = _POSITION_WIDTH
        # Two unidirectional layers instead of a packed bidirectional one, so that nothing is sorted or sent to the CPU.
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
        """Weights of the ranks, ``(N, L)`` float32, from the mask of real entries."""
        # The layer is tiny and its softmax sharp: half precision saves nothing here and loses accuracy.
        kind = mask.device.type
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            rows, longest = mask.shape
            position = torch.arange(longest, device=mask.device)
            codes = encode_positions(position, _POSITION_WIDTH)
            # The forward direction is the same for all items, so it runs once.
            along = self.along(codes[None])[0].expand(rows, -1, -1)
            mirrored = (mask.sum(1, keepdim=True) - 1 - position).clamp(min=0)
            against = _reorder(self.against(codes[mirrored])[0], mirrored)
            scores = self.score((along + against) / 2)[:, :, 0].masked_fill(~mask, _LOWEST)
            return torch.softmax(scores / _TEMPERATURE, dim=1)


def encode_positions(position: Tensor, width: int) -> Tensor:
    """Positions as sines (even columns) and cosines (odd columns) of decreasing frequency, ``(L, width)``.

    Example:
        >>> encode_positions(torch.tensor([0]), 4)
        tensor([[0., 1., 0., 1.]])
    """
    frequency = torch.exp(torch.arange(0, width, 2, device=position.device) * -(math.log(10000.0) / width))
    angle = position[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)


class Head(nn.Module):
    r"""Head of a dual encoder: a linear layer, optionally with a two-layer perceptron added to it.

    .. math:: h(x) = W x + b \quad\text{or}\quad h(x) = W x + b + W_2\, relu(W_1 x + b_1) + b_2

    Args:
        kind: ``"linear"``, ``"mlp"``, or ``"none"`` to return the features unchanged.
        width: Width of the features, d.
        size: Width of the embeddings, D.
        dropout: Dropout on the features.
        parts: Number of parallel heads, each of width D / parts; they share nothing but the dropout.

    Inputs:
        features: ``(N, d)`` or ``(N, L, d)``.

    Returns:
        ``(N, D)`` or ``(N, L, D)``.
    """

    def __init__(self, kind: str, width: int, size: int, dropout: float, parts: int = 1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = xavier_linear(width, size) if kind != "none" else None
        self.mlp: nn.Sequential | None = None
        if kind == "mlp":
            first = xavier_linear(width, size)
            last = xavier_linear(size, size) if parts == 1 else BlockLinear(parts, size // parts)
            self.mlp = nn.Sequential(first, nn.ReLU(), last)

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        features = self.dropout(features)
        if self.linear is None:
            return features
        projected: Tensor = self.linear(features)
        return projected if self.mlp is None else projected + self.mlp(features)


class BlockLinear(nn.Module):
    """Parallel linear layers, each on its own part of the input: ``(..., P d)`` to ``(..., P d)``.

    Args:
        parts: Number of layers, P.
        size: Width of each, d.
    """

    def __init__(self, parts: int, size: int) -> None:
        super().__init__()
        layers = [xavier_linear(size, size) for _ in range(parts)]
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.zeros(parts, size))

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        split = features.reshape(-1, *self.bias.shape).transpose(0, 1)
        return torch.baddbmm(self.bias[:, None], split, self.weight.mT).transpose(0, 1).reshape(features.shape)


def masked_batch_norm(values: Tensor, mask: Tensor | None, norm: nn.BatchNorm1d, *, axis: int) -> Tensor:
    """Batch norm of ``(N, L, D)`` for each position (``axis=1``) or channel (``axis=2``), over real entries only.

    Without a mask and with several values it is torch's own batch norm. Padding does not influence means and variances,
    running ones included; its output is undefined. A position or channel with a single value in training has no
    variance: it is normalized with the running statistics, which stay unchanged.

    Args:
        values: ``(N, L, D)``.
        mask: ``(N, L)`` bool, true for real entries; ``None`` if all are real.
        norm: Weights and running statistics, of size L or more for positions, of size D for channels.
        axis: 1 or 2.
    """
    features = values.shape[axis]
    count = values.numel() // max(1, features)
    if mask is None and features == norm.num_features and (not norm.training or count > 1):
        normalized: Tensor = norm(values if axis == 1 else values.mT)
        return normalized if axis == 1 else normalized.mT
    exact = values.to(at_least_float32(values.dtype))
    shape = (1, features, 1) if axis == 1 else (1, 1, features)
    # Selected sizes: fewer regions than the norm has. Copies, since later steps change the running values in place.
    weight, bias = norm.weight[:features].view(shape), norm.bias[:features].view(shape)
    mean, variance = (norm.get_buffer(name)[:features].clone().view(shape) for name in ("running_mean", "running_var"))
    if norm.training:
        real = torch.ones_like(exact) if mask is None else mask[..., None].to(exact.dtype).expand_as(exact)
        over = (0, 3 - axis)
        number = real.sum(over, keepdim=True)
        own_mean = (exact * real).sum(over, keepdim=True) / number.clamp(min=1)
        own_variance = ((exact - own_mean).square() * real).sum(over, keepdim=True) / number.clamp(min=1)
        mean, variance = torch.where(number > 1, own_mean, mean), torch.where(number > 1, own_variance, variance)
        unbiased = torch.where(number > 1, own_variance * number / (number - 1).clamp(min=1), variance)
        _update_running(norm, mean.flatten(), unbiased.flatten())
    return ((exact - mean) * (variance + norm.eps).rsqrt() * weight + bias).to(values.dtype)


@torch.no_grad()
def _update_running(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor) -> None:
    """Move the running statistics of the first positions or channels towards new ones."""
    momentum = norm.momentum if norm.momentum is not None else 0.1
    for name, current in (("running_mean", mean), ("running_var", variance)):
        running = norm.get_buffer(name)[: len(current)]
        running.lerp_(current.to(running.dtype), momentum)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
