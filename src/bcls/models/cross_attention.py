"""Cross-attention scoring of SGR and SAF: similarity vectors, the two heads, and blocks that bound the memory.

Letters in shapes: N images, C captions, R regions, L words of the longest caption of a block, D width of the region and
word embeddings, K width of a similarity vector.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear, mse_loss
from torch.utils.checkpoint import checkpoint

from bcls.models.config import DETECTOR_REGIONS, SafConfig, SgrConfig
from bcls.models.layers import EPS, at_least_float32, masked_batch_norm, safe_inverse, unit, xavier_linear
from bcls.models.padded import Padded

#: Negative slope of the leaky ReLU in the attention.
_SLOPE = 0.1
#: Fraction of a block's words that may be padding: captions of a rare length join a block of longer ones.
_MAX_PADDING = 1 / 8


class ImageSide(NamedTuple):
    """The inputs of scoring that depend on images only; computed once by :func:`image_side`.

    Attributes:
        regions: ``(N, R, D)`` unit regions, zero for padding.
        gram: ``(N, R, R)`` dot products of an image's regions, from which the norm of any mixture of them follows.
        mask: ``(N, R)`` bool, true for real regions; ``None`` if all are real.
        vectors: ``(N, D)`` unit vectors of whole images.
    """

    regions: Tensor
    gram: Tensor
    mask: Tensor | None
    vectors: Tensor


class CaptionSide(NamedTuple):
    """A block of captions of similar length.

    Attributes:
        words: ``(C, L, D)`` unit words, zero after a caption's last word.
        mask: ``(C, L + 1)`` bool, true for real nodes, the first of which is the whole caption; ``None`` if all are
            real.
        vectors: ``(C, D)`` unit vectors of whole captions.
    """

    words: Tensor
    mask: Tensor | None
    vectors: Tensor


#: Scores a block: ``(images, captions, *extra) -> (scores (n, c), more (1, c) ...)``.
BlockScores = Callable[..., tuple[Tensor, ...]]


class SelfAttention(nn.Module):
    r"""One vector from several, weighted by their agreement with the mean.

    .. math::
        \bar x = \mathrm{mean}_r x_r, \quad
        a = \mathrm{softmax}_r(w \cdot (g(x_r) \odot h(\bar x)) + b), \quad
        \mathrm{unit}(\textstyle\sum_r a_r x_r)

    with g and h one layer each: linear, tanh, dropout, and for images a batch norm before the tanh.

    Args:
        width: D.
        dropout: Dropout probability.
        regions: For images: their number of regions. The authors' batch norm of g has one mean and variance for each
            of 36 regions; with any other number it has one for each of the D channels. ``None`` for captions, which
            have no batch norm.
    """

    def __init__(self, width: int, dropout: float, regions: int | None = None) -> None:
        super().__init__()
        self.local = xavier_linear(width, width)
        self.whole = xavier_linear(width, width)
        self.common = xavier_linear(width, 1)
        self.dropout = nn.Dropout(dropout)
        self.per_region = regions == DETECTOR_REGIONS
        self.local_norm: nn.BatchNorm1d | None = None
        self.whole_norm: nn.BatchNorm1d | None = None
        if regions is not None:
            self.local_norm = nn.BatchNorm1d(DETECTOR_REGIONS if self.per_region else width)
            self.whole_norm = nn.BatchNorm1d(width)

    def forward(self, items: Padded) -> Tensor:
        """``(N, D)`` unit vectors from ``(N, L, D)``."""
        values, mask = items.values, items.mask
        mean = (values * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        local, whole = self.local(values), self.whole(mean)
        if self.local_norm is not None and self.whole_norm is not None:
            real = None if items.lengths is None else mask
            local = masked_batch_norm(local, real, self.local_norm, axis=1 if self.per_region else 2)
            # A single image has no variance; masked_batch_norm then uses the running one.
            whole = masked_batch_norm(whole[:, None], None, self.whole_norm, axis=2)[:, 0]
        agreement = self.dropout(local.tanh()) * self.dropout(whole.tanh())[:, None]
        logits = self.common(agreement)[..., 0].to(at_least_float32(values.dtype)).masked_fill(~mask, -torch.inf)
        return unit((logits.softmax(1).to(values.dtype)[:, None] @ values)[:, 0])


def image_side(regions: Padded, vectors: Tensor) -> ImageSide:
    """Prepare images for scoring.

    Args:
        regions: ``(N, R, D)`` unit regions, with lengths if images have different numbers of them.
        vectors: ``(N, D)`` unit vectors of whole images.
    """
    values, mask = regions.values, None
    if regions.lengths is not None and bool((regions.lengths < values.shape[1]).any()):
        mask = regions.mask
        values = values * mask[..., None]
    with torch.autocast(values.device.type, enabled=False):
        exact = values.to(at_least_float32(values.dtype))
        gram = exact @ exact.mT
    return ImageSide(values, gram, mask, vectors)


def attention(images: ImageSide, words: Tensor, smooth: float) -> Tensor:
    r"""Weights of the regions in the context vector of each word, scaled so that the context has unit norm.

    .. math::
        a_{rl} = \mathrm{softmax}_r(\lambda \, \mathrm{unit}_l(\mathrm{LeakyReLU}(v_r \cdot t_l))), \qquad
        a'_{rl} = a_{rl} / \lVert \textstyle\sum_r a_{rl} v_r \rVert

    The norm follows from the dot products of the regions, :math:`\lVert \sum_r a_r v_r \rVert^2 = a^\top G a`, so that
    the D-wide contexts are computed once, already normalised.

    Args:
        images: N images.
        words: ``(C, L, D)``.
        smooth: :math:`\lambda`.

    Returns:
        ``(N, R, C * L)`` in float32 or wider.
    """
    captions, length, width = words.shape
    count, regions = images.regions.shape[:2]
    # One matrix product for all images and all captions of the block.
    raw = images.regions.reshape(-1, width) @ words.reshape(-1, width).T
    with torch.autocast(words.device.type, enabled=False):
        raw = leaky_relu(raw.to(images.gram.dtype), _SLOPE).view(count, regions, captions, length)
        scaled = smooth * unit(raw).view(count, regions, captions * length)
        if images.mask is not None:
            scaled = scaled.masked_fill(~images.mask[..., None], -torch.inf)
        weights = scaled.softmax(1)
        square = (weights * (images.gram @ weights)).sum(1, keepdim=True)
        # A zero mixture has no direction; rounding may make its square negative.
        norm = torch.where(square > 0, square, 1).sqrt() * (square > 0)
        return weights * safe_inverse(norm)


class SimilarityHead(nn.Module):
    """Base of both heads: the layers of the similarity vectors, and the last layer.

    A subclass scores one block in ``score_block``, which may be replaced by its compiled form:
    ``head.score_block = torch.compile(head.score_block, dynamic=True)``.

    Args:
        config: Sizes.
    """

    def __init__(self, config: SafConfig) -> None:
        super().__init__()
        self.local = xavier_linear(config.width, config.similarity_width)
        self.whole = xavier_linear(config.width, config.similarity_width)
        self.score = xavier_linear(config.similarity_width, 1)
        self.smooth = config.smooth

    def nodes(self, images: ImageSide, captions: CaptionSide) -> Tensor:
        r"""Similarity vectors of all pairs: of the whole image with the whole caption, then of each word.

        .. math::
            x_0 = \mathrm{unit}(W_g (\bar v - \bar t)^2 + b_g), \qquad
            x_l = \mathrm{unit}(W_l (c_l - t_l)^2 + b_l), \qquad c_l = \textstyle\sum_r a'_{rl} v_r

        Returns:
            ``(N, C, L + 1, K)``. Nodes after a caption's last word are undefined; see ``captions.mask``.
        """
        number, length, width = captions.words.shape
        weights = attention(images, captions.words, self.smooth).mT.to(images.regions.dtype)
        context = weights @ images.regions
        words = captions.words.reshape(1, number * length, width).to(context.dtype).expand_as(context)
        with torch.autocast(context.device.type, enabled=False):
            # The squared difference in a single pass over the largest tensor.
            squares = mse_loss(context, words, reduction="none")
        local = self.local(squares)
        whole = self.whole((images.vectors[:, None] - captions.vectors).square())
        nodes = unit(local).view(len(local), number, length, local.shape[-1])
        return torch.cat([unit(whole)[:, :, None], nodes], 2)

    def pair_scores(self, pairs: Tensor) -> Tensor:
        r"""Scores :math:`\mathrm{sigmoid}(w \cdot x + b)` in float32 or wider, ``(N, C)`` from ``(N, C, K)``.

        Around 0.5 half precision has steps of 0.002 and more, which would make most scores equal.
        """
        with torch.autocast(pairs.device.type, enabled=False):
            exact = at_least_float32(pairs.dtype)
            return linear(pairs.to(exact), self.score.weight.to(exact), self.score.bias.to(exact))[..., 0].sigmoid()


#: Weight ``(K, K)`` and bias ``(K,)`` of a reasoning step's merged query and key layer, and of its output layer.
Step = tuple[Tensor, Tensor, Tensor, Tensor]


class ReasoningStep(nn.Module):
    """Query, key and output layer of one step of graph reasoning."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = xavier_linear(width, width)
        self.key = xavier_linear(width, width)
        self.out = xavier_linear(width, width)

    def forward(self) -> Step:
        r"""The layers with query and key merged into one.

        .. math::
            (W_q x + b_q) \cdot (W_k y + b_k) = (W_k^\top W_q x + W_k^\top b_q) \cdot y + \ldots

        The omitted term is the same for all keys y, so the softmax does not change.
        """
        with torch.autocast(self.query.weight.device.type, enabled=False):
            # The key's bias has no effect. It stays in the graph with a zero gradient, since a parameter without a
            # gradient is an error in distributed training.
            bias = self.query.bias @ self.key.weight + 0 * self.key.bias
            return self.key.weight.T @ self.query.weight, bias, self.out.weight, self.out.bias


class ReasoningHead(SimilarityHead):
    r"""Similarity graph reasoning (SGR).

    .. math::
        X \leftarrow \mathrm{ReLU}(W \, \mathrm{softmax}(Q(X) K(X)^\top) X + b), \qquad
        s = \mathrm{sigmoid}(w \cdot x_0 + b)

    Args:
        config: Sizes and number of steps.
    """

    def __init__(self, config: SgrConfig) -> None:
        super().__init__(config)
        self.steps = nn.ModuleList(ReasoningStep(config.similarity_width) for _ in range(config.steps))

    def forward(self, images: ImageSide, captions: Padded, vectors: Tensor) -> Tensor:
        """``(N, C)`` scores of N images and C captions, given as words with lengths and as ``(C, D)`` vectors."""
        steps = tuple(step() for step in self.steps)
        return all_pairs(self.score_block, images, captions, vectors, steps)[0]

    def score_block(self, images: ImageSide, captions: CaptionSide, steps: tuple[Step, ...]) -> tuple[Tensor, ...]:
        """Score one block: ``(N, C)`` scores in (0, 1), as the only item of a tuple."""
        nodes = self.nodes(images, captions)
        *first, last = steps
        for step in first:
            nodes = _reason(nodes, nodes, captions.mask, step)
        # Only the node of the whole pair is read in the end, so the last step computes only that one.
        top = _reason(nodes[:, :, :1], nodes, captions.mask, last)[:, :, 0]
        return (self.pair_scores(top),)


def _reason(queries: Tensor, nodes: Tensor, mask: Tensor | None, step: Step) -> Tensor:
    """One reasoning step for some of the nodes."""
    match_weight, match_bias, out_weight, out_bias = step
    logits = linear(queries, match_weight, match_bias) @ nodes.mT
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None], -torch.inf)
    return linear(logits.softmax(-1).to(nodes.dtype) @ nodes, out_weight, out_bias).relu()


class FiltrationHead(SimilarityHead):
    r"""Similarity attention filtration (SAF).

    .. math::
        \beta_l = \mathrm{sigmoid}(\mathrm{BN}(w_f \cdot x_l + b_f)), \qquad
        s = \mathrm{sigmoid}(w \cdot \mathrm{unit}(\textstyle\sum_l \beta_l x_l / \sum_l \beta_l) + b)

    The authors score one caption at a time. Therefore, in training, mean and variance of the batch norm are those of
    one caption with all images, and the running ones are updated once for each caption, in the order of the batch.

    Args:
        config: Sizes.
    """

    def __init__(self, config: SafConfig) -> None:
        super().__init__(config)
        self.filter = xavier_linear(config.similarity_width, 1)
        self.norm = nn.BatchNorm1d(1)

    def forward(self, images: ImageSide, captions: Padded, vectors: Tensor) -> Tensor:
        """``(N, C)`` scores of N images and C captions, given as words with lengths and as ``(C, D)`` vectors."""
        scores, *moments = all_pairs(self.score_block, images, captions, vectors, whole_images=self.training)
        if moments:
            self._update_running(moments[0][0], moments[1][0])
        return scores

    def score_block(self, images: ImageSide, captions: CaptionSide) -> tuple[Tensor, ...]:
        """Score one block; in training the images must be the whole batch.

        Returns:
            ``(N, C)`` scores in (0, 1). In training also ``(1, C)`` means and ``(1, C)`` unbiased variances of the
            captions, without gradient, for the running statistics.
        """
        nodes = self.nodes(images, captions)
        raw = self.filter(nodes)[..., 0].to(images.gram.dtype)
        moments: tuple[Tensor, ...] = ()
        mean, variance = self.norm.get_buffer("running_mean"), self.norm.get_buffer("running_var")
        if self.training:
            mean, variance, count = _moments(raw, captions.mask)
            moments = (mean.detach()[None], (variance * count / (count - 1).clamp(min=1)).detach()[None])
            mean, variance = mean[:, None], variance[:, None]
        share = ((raw - mean) * (variance + self.norm.eps).rsqrt() * self.norm.weight + self.norm.bias).sigmoid()
        if captions.mask is not None:
            share = share * captions.mask
        share = share / (share.sum(-1, keepdim=True) + EPS)
        mixed = unit((share.to(nodes.dtype)[:, :, None] @ nodes)[:, :, 0])
        return (self.pair_scores(mixed), *moments)

    @torch.no_grad()
    def _update_running(self, means: Tensor, variances: Tensor) -> None:
        for name, values in (("running_mean", means), ("running_var", variances)):
            buffer = self.norm.get_buffer(name)
            buffer.copy_(running_average(buffer, values.to(buffer.dtype), self.norm.momentum or 0.1))
        self.norm.get_buffer("num_batches_tracked").add_(len(means))


def _moments(raw: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and number of values of each caption, ``(C,)``, over images and real nodes."""
    real = torch.ones_like(raw[0]) if mask is None else mask.to(raw.dtype)
    count = real.sum(-1) * len(raw)
    mean = (raw * real).sum((0, 2)) / count
    variance = ((raw - mean[:, None]).square() * real).sum((0, 2)) / count
    return mean, variance, count


def running_average(value: Tensor, updates: Tensor, momentum: float) -> Tensor:
    r"""A running average after one update for each caption in turn, in closed form.

    .. math::
        r' = (1 - m)^C r + \sum_{c=1}^{C} m (1 - m)^{C - c} x_c

    This equals the authors' C forward passes through the batch norm. With their m = 0.1 and a batch of 128, nothing of
    the old value remains, and the last 20 captions make 88 % of the new one.

    Args:
        value: ``(1,)``, the old value.
        updates: ``(C,)``, the values of the captions in their order.
        momentum: m.

    Example:
        >>> running_average(torch.tensor([1.0]), torch.tensor([0.0, 2.0]), 0.5)
        tensor([1.2500])
    """
    left = (1 - momentum) ** torch.arange(len(updates), -1, -1, dtype=value.dtype, device=value.device)
    return left[0] * value + momentum * (left[1:] * updates).sum()


class MemoryBudget(NamedTuple):
    """Memory limits, counted in D-wide vectors of pairs of an image and a word.

    Attributes:
        block: For one block. A block needs about 2 such vectors and 10 similarity vectors for each.
        kept: For all blocks together, in training: above it, blocks are recomputed in the backward pass.
    """

    block: int
    kept: int


def memory_budget(device: torch.device, width: int) -> MemoryBudget:
    """The default budget of a device.

    16 MB a block of float32 on a CPU; on an accelerator 1 GB, or a 32nd of its memory if that is more.
    """
    if device.type == "cpu":
        return MemoryBudget(max(1, (1 << 22) // width), max(1, (1 << 26) // width))
    numbers = 1 << 28
    if device.type == "cuda" and torch.cuda.is_available():
        numbers = max(numbers, torch.cuda.get_device_properties(device).total_memory // (32 * 4))
    return MemoryBudget(max(1, numbers // width), max(1, numbers // width))


def all_pairs(
    score: BlockScores,
    images: ImageSide,
    captions: Padded,
    vectors: Tensor,
    *extra: Any,
    budget: MemoryBudget | None = None,
    whole_images: bool = False,
) -> tuple[Tensor, ...]:
    """Score all images against all captions, in blocks.

    Captions are sorted by length and split into blocks with little padding, so that the work is a few large products
    instead of a small one for each caption. While a CUDA graph is captured the host cannot read lengths: captions are
    then split in their order, each as wide as the longest. With gradients, blocks that exceed ``budget.kept`` are
    checkpointed.

    Args:
        score: Scores a block, plain or compiled.
        images: N images.
        captions: ``(C, W, D)`` words with lengths.
        vectors: ``(C, D)`` vectors of whole captions.
        *extra: Further arguments of ``score``.
        budget: Memory limits; default: :func:`memory_budget` of the device.
        whole_images: Every block has all images, as needed for statistics over them.

    Returns:
        The outputs of ``score``, concatenated: ``(N, C)`` scores first.
    """
    count, device = len(images.regions), captions.values.device
    budget = memory_budget(device, captions.values.shape[2]) if budget is None else budget
    capturing = _is_capturing(captions)
    lengths = [captions.values.shape[1]] * len(captions) if capturing else _host_lengths(captions)
    rows = max(1, count if whole_images else min(count, math.isqrt(budget.block)))
    # Parts of equal size, since the last of unequal ones would be small.
    rows = math.ceil(count / max(1, math.ceil(count / rows))) if count else 1
    blocks = caption_blocks(lengths, max(1, budget.block // rows))
    recompute = torch.is_grad_enabled() and count * sum(lengths) > budget.kept
    columns: list[tuple[Tensor, ...]] = []
    for block in blocks:
        side = _captured_block(captions, vectors, block) if capturing else _block(captions, vectors, block, lengths)
        parts = []
        for start in range(0, max(1, count), rows):
            arguments = (_image_rows(images, start, start + rows), side, *extra)
            if recompute:  # nothing in a block is random
                parts.append(checkpoint(score, *arguments, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(score(*arguments))
        columns.append(tuple(torch.cat(part) for part in zip(*parts, strict=True)))
    if not columns:
        return (captions.values.new_zeros(count, 0),)
    joined = tuple(torch.cat(column, 1) for column in zip(*columns, strict=True))
    if capturing:
        return joined
    order = torch.tensor([caption for block in blocks for caption in block]).argsort().to(device)
    return tuple(column.index_select(1, order) for column in joined)


def caption_blocks(lengths: Sequence[int], words: int) -> list[list[int]]:
    """Split captions into blocks, the shortest first.

    Args:
        lengths: Number of words of each caption.
        words: Maximum number of words of a block, padding included; a longer caption gets a block of its own.

    Returns:
        Indices of the captions of each block.

    Example:
        >>> caption_blocks([3, 9, 3, 10], words=20)
        [[0, 2], [1, 3]]
        >>> caption_blocks([3, 9, 3, 10], words=10)
        [[0, 2], [1], [3]]
    """
    blocks: list[list[int]] = []
    real = 0
    for caption in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[caption]
        padded = (len(blocks[-1]) + 1) * length if blocks else math.inf
        if padded <= words and padded - (real + length) <= _MAX_PADDING * padded:
            blocks[-1].append(caption)
            real += length
        else:
            blocks.append([caption])
            real = length
    return blocks


def _host_lengths(captions: Padded) -> list[int]:
    lengths: list[int] = captions.full_lengths.tolist()
    return lengths


def _is_capturing(captions: Padded) -> bool:
    return captions.values.is_cuda and torch.cuda.is_current_stream_capturing()


def _image_rows(images: ImageSide, start: int, stop: int) -> ImageSide:
    if start == 0 and stop >= len(images.regions):
        return images
    return ImageSide(*(None if part is None else part[start:stop] for part in images))  # type: ignore[arg-type]


def _block(captions: Padded, vectors: Tensor, block: list[int], lengths: list[int]) -> CaptionSide:
    device = captions.values.device
    own = [lengths[caption] for caption in block]
    longest = max(own)
    rows = torch.tensor(block).to(device)
    words = captions.values[:, :longest].index_select(0, rows)
    mask = None
    if min(own) < longest:
        # The node of the whole caption comes first and is always real.
        mask = torch.arange(longest + 1, device=device) <= torch.tensor(own).to(device)[:, None]
        words = words * mask[:, 1:, None]
    return CaptionSide(words, mask, vectors.index_select(0, rows))


def _captured_block(captions: Padded, vectors: Tensor, block: list[int]) -> CaptionSide:
    """Adjacent captions, masked by lengths that only the device knows."""
    part = slice(block[0], block[-1] + 1)
    words = captions.values[part]
    if captions.lengths is None:
        return CaptionSide(words, None, vectors[part])
    mask = torch.arange(words.shape[1] + 1, device=words.device) <= captions.lengths[part, None]
    return CaptionSide(words * mask[:, 1:, None], mask, vectors[part])
