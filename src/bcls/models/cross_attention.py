"""Cross-attention scoring of SGR and SAF: self-attention, the two heads, and blocks that bound the memory.

Letters in shapes: N images, C captions, R regions, P nodes of a pair (the whole pair, then the words of the longest
caption of a block), D width of the region and word embeddings, K width of a similarity vector.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from torch.utils.checkpoint import checkpoint

from bcls.models.config import DETECTOR_REGIONS, SafConfig, SgrConfig
from bcls.models.layers import EPS, Padded, at_least_float32, masked_batch_norm, unit, xavier_linear
from bcls.models.similarity_vectors import CaptionSide, ImageSide, kernels_for, similarity_vectors

#: A block costs as much time as this fraction of all nodes: captions of a rare length join a block of longer ones. On a
#: GPU it costs at least as much as this number of nodes, since the host launches its kernels one by one.
_BLOCK_COST, _BLOCK_LAUNCHES = 1 / 16, 100_000
#: On a GPU the nodes of a pair are padded to a multiple of this: matrix products need rows of 16 bytes to be fast.
_ALIGNMENT = 8

#: Scores a block: ``(images, captions, *extra) -> (scores (n, c), more (k, c) ...)``.
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
        # Axes of size 1 are squeezed, not selected: the gradient of a selection is a new tensor filled with zeros.
        values, mask = items.values, None if items.lengths is None else items.mask
        mean = values.mean(1) if mask is None else (values * mask[..., None]).sum(1) / items.full_lengths[:, None]
        local, whole = self.local(values), self.whole(mean)
        if self.local_norm is not None and self.whole_norm is not None:
            local = masked_batch_norm(local, mask, self.local_norm, axis=1 if self.per_region else 2)
            # A single image has no variance; masked_batch_norm then uses the running one.
            whole = masked_batch_norm(whole[:, None], None, self.whole_norm, axis=2).squeeze(1)
        agreement = self.dropout(local.tanh()) * self.dropout(whole.tanh())[:, None]
        logits = self.common(agreement).squeeze(-1).to(at_least_float32(values.dtype))
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        return unit((logits.softmax(1).to(values.dtype)[:, None] @ values).squeeze(1))


def image_side(regions: Padded, vectors: Tensor) -> ImageSide:
    """Prepare images for scoring.

    Args:
        regions: ``(N, R, D)`` unit regions, with lengths if images have different numbers of them.
        vectors: ``(N, D)`` unit vectors of whole images.
    """
    values, mask = regions.values, None
    if regions.lengths is not None:
        mask = regions.mask
        values = values * mask[..., None]
    kind = values.device.type
    # Matrix products have the dtype of autocast, or of the values without autocast.
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype
    with torch.autocast(kind, enabled=False):
        exact = values.to(at_least_float32(values.dtype))
        gram = exact @ exact.mT
    return ImageSide(values.to(dtype), gram, mask, vectors)


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
        """Similarity vectors of all pairs, ``(N, C, P, K)``; see :func:`similarity_vectors`."""
        layers = (self.local.weight, self.local.bias, self.whole.weight, self.whole.bias)
        return similarity_vectors(images, captions, layers, self.smooth)

    def pair_scores(self, pairs: Tensor) -> Tensor:
        r"""Scores :math:`\mathrm{sigmoid}(w \cdot x + b)` in float32 or wider, ``(N, C)`` from ``(N, C, K)``.

        Around 0.5 half precision has steps of 0.002 and more, which would make most scores equal.
        """
        with torch.autocast(pairs.device.type, enabled=False):
            exact = at_least_float32(pairs.dtype)
            return linear(pairs.to(exact), self.score.weight.to(exact), self.score.bias.to(exact)).squeeze(-1).sigmoid()


#: Weight ``(K, K)`` and bias ``(K,)`` of a reasoning step's merged query and key layer, and of its output layer.
Step = tuple[Tensor, Tensor, Tensor, Tensor]


class ReasoningStep(nn.Module):
    """Query, key and output layer of one step of graph reasoning."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = xavier_linear(width, width)
        self.key = xavier_linear(width, width)
        self.out = xavier_linear(width, width)

    def forward(self) -> tuple[Tensor, ...]:
        """Weights and biases of the layers."""
        layers = self.query, self.key, self.out
        return tuple(one for layer in layers for one in (layer.weight, layer.bias))


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
        steps = self.merged_steps(images.regions.dtype)
        return all_pairs(self.score_block, images, captions, vectors, steps, width=self.local.out_features)[0]

    def merged_steps(self, dtype: torch.dtype) -> list[Step]:
        r"""The layers of each step, with query and key merged into one.

        .. math::
            (W_q x + b_q) \cdot (W_k y + b_k) = (W_k^\top W_q x + W_k^\top b_q) \cdot y + \ldots

        The omitted term is the same for all keys y, so the softmax does not change.
        """
        # Stacked: as many kernels for all steps as for one.
        parts = zip(*(step() for step in self.steps), strict=True)
        query, query_bias, key, key_bias, out, out_bias = (torch.stack(one) for one in parts)
        with torch.autocast(query.device.type, enabled=False):
            # The key's bias has no effect. It stays in the graph with a zero gradient, since a parameter without a
            # gradient is an error in distributed training.
            bias = (query_bias[:, None] @ key).squeeze(1) + 0 * key_bias
            layers = [one.to(dtype).unbind() for one in (key.mT @ query, bias, out, out_bias)]
        return list(zip(*layers, strict=True))

    def score_block(self, images: ImageSide, captions: CaptionSide, steps: Sequence[Step]) -> tuple[Tensor, ...]:
        """Score one block: ``(N, C)`` scores in (0, 1), as the only item of a tuple."""
        nodes = self.nodes(images, captions)
        *first, last = steps
        with torch.autocast(nodes.device.type, enabled=False):
            for step in first:
                nodes = _reason(nodes, nodes, captions.mask, step)
            # Only the node of the whole pair is read in the end, so the last step computes only that one.
            top = _reason(nodes[:, :, :1], nodes, captions.mask, last).squeeze(2)
            return (self.pair_scores(top),)


def _reason(queries: Tensor, nodes: Tensor, mask: Tensor, step: Step) -> Tensor:
    """One reasoning step for some of the nodes."""
    match_weight, match_bias, out_weight, out_bias = step
    queries = linear(queries, match_weight, match_bias)
    kernels = kernels_for(nodes, *nodes.shape[2:])
    if kernels is None:
        # Softmax and ReLU in half precision are computed in float32 and rounded.
        logits = (queries @ nodes.mT).masked_fill_(~mask[:, None], -torch.inf)
        mixed = logits.softmax(-1) @ nodes
    else:
        mixed = kernels.MixNodes.apply(queries, nodes, mask)
    # Flat, since autograd copies a whole tensor four times if a view of it (a batch of matrices) changes in place.
    return linear(mixed.flatten(0, -2), out_weight, out_bias).relu_().view_as(mixed)


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
        width = self.local.out_features
        arguments = (self.score_block, images, captions, vectors)
        scores, *moments = all_pairs(*arguments, width=width, whole_images=self.training)
        if moments:
            self._update_running(moments[0])
        return scores

    def score_block(self, images: ImageSide, captions: CaptionSide) -> tuple[Tensor, ...]:
        """Score one block; in training the images must be the whole batch.

        Returns:
            ``(N, C)`` scores in (0, 1). In training also ``(2, C)`` means and unbiased variances of the captions,
            without gradient, for the running statistics.
        """
        nodes = self.nodes(images, captions)
        dtype, exact = nodes.dtype, images.gram.dtype
        real = captions.mask.to(exact)
        moments: tuple[Tensor, ...] = ()
        with torch.autocast(nodes.device.type, enabled=False):
            raw = linear(nodes, self.filter.weight.to(dtype), self.filter.bias.to(dtype)).squeeze(-1).to(exact)
            if self.training:
                # Mean and variance of each caption, over images and real nodes.
                count = real.sum(-1, keepdim=True) * len(raw)
                weights = real / count
                mean = (raw * weights).sum((0, 2))[:, None]
                centred = raw - mean
                variance = (centred.square() * weights).sum((0, 2))[:, None]
                unbiased = variance.detach() * (count / (count - 1).clamp(min=1))
                moments = (torch.cat([mean.detach(), unbiased], 1).T,)
            else:
                centred, variance = raw - self.norm.get_buffer("running_mean"), self.norm.get_buffer("running_var")
            scale = (variance + self.norm.eps).rsqrt() * self.norm.weight
            share = torch.addcmul(self.norm.bias, centred, scale).sigmoid() * real
            share = share / (share.sum(-1, keepdim=True) + EPS)
            mixed = unit((share.to(dtype)[:, :, None] @ nodes).squeeze(2))
            return (self.pair_scores(mixed), *moments)

    @torch.no_grad()
    def _update_running(self, moments: Tensor) -> None:
        buffers = [self.norm.get_buffer(name) for name in ("running_mean", "running_var")]
        old = torch.stack(buffers)
        averages = running_average(old, moments.to(old.dtype), self.norm.momentum or 0.1)
        torch._foreach_copy_(buffers, averages.unbind())
        self.norm.get_buffer("num_batches_tracked").add_(moments.shape[1])


def running_average(value: Tensor, updates: Tensor, momentum: float) -> Tensor:
    r"""A running average after one update for each caption in turn, in closed form.

    .. math::
        r' = (1 - m)^C r + \sum_{c=1}^{C} m (1 - m)^{C - c} x_c

    This equals the authors' C forward passes through the batch norm. With their m = 0.1 and a batch of 128, nothing of
    the old value remains, and the last 20 captions make 88 % of the new one.

    Args:
        value: ``(..., 1)``, the old value.
        updates: ``(..., C)``, the values of the captions in their order.
        momentum: m.

    Example:
        >>> running_average(torch.tensor([1.0]), torch.tensor([0.0, 2.0]), 0.5)
        tensor([1.2500])
    """
    left = (1 - momentum) ** torch.arange(updates.shape[-1], -1, -1, dtype=value.dtype, device=value.device)
    return left[0] * value + momentum * (left[1:] * updates).sum(-1, keepdim=True)


class MemoryBudget(NamedTuple):
    """Memory limits, counted in nodes: similarity vectors of pairs.

    Attributes:
        block: For one block. A block needs about 10 vectors of the width of a node for each.
        kept: For all blocks together, in training: above it, blocks are recomputed in the backward pass.
    """

    block: int
    kept: int


def memory_budget(device: torch.device, width: int) -> MemoryBudget:
    """The default budget of a device for nodes of a width.

    8 MB a block of float32 on a CPU; on an accelerator 512 MB, or a 64th of its memory if that is more.
    """
    if device.type == "cpu":
        return MemoryBudget(max(1, (1 << 21) // width), max(1, (1 << 25) // width))
    numbers = 1 << 27
    if device.type == "cuda" and torch.cuda.is_available():
        numbers = max(numbers, torch.cuda.get_device_properties(device).total_memory // (64 * 4))
    return MemoryBudget(max(1, numbers // width), max(1, numbers // width))


def all_pairs(
    score: BlockScores,
    images: ImageSide,
    captions: Padded,
    vectors: Tensor,
    *extra: Any,
    width: int,
    whole_images: bool = False,
) -> tuple[Tensor, ...]:
    """Score all images against all captions, in blocks.

    Captions are sorted by length and split into a few blocks with little padding. While a CUDA graph is captured the
    host cannot read lengths: captions are then split in their order, each as wide as the longest. With gradients,
    blocks that exceed the budget of kept nodes (:func:`memory_budget`) are checkpointed.

    Args:
        score: Scores a block, plain or compiled.
        images: N images.
        captions: ``(C, W, D)`` words with lengths.
        vectors: ``(C, D)`` vectors of whole captions.
        *extra: Further arguments of ``score``.
        width: K.
        whole_images: Every block has all images, as needed for statistics over them.

    Returns:
        The outputs of ``score``, concatenated: ``(N, C)`` scores first.
    """
    count, device = len(images.regions), captions.values.device
    budget = memory_budget(device, width)
    capturing = _is_capturing(captions)
    lengths = [captions.values.shape[1]] * len(captions) if capturing else _host_lengths(captions)
    alignment, launches = (1, 0) if device.type == "cpu" else (_ALIGNMENT, _BLOCK_LAUNCHES)
    rows = max(1, count if whole_images else min(count, math.isqrt(budget.block)))
    # Parts of equal size, since the last of unequal ones would be small.
    rows = math.ceil(count / max(1, math.ceil(count / rows))) if count else 1
    blocks = caption_blocks(lengths, max(1, budget.block // rows), alignment, launches / max(1, count))
    nodes = count * sum(len(block.captions) * block.nodes for block in blocks)
    recompute = torch.is_grad_enabled() and nodes > budget.kept
    if not blocks:
        return (captions.values.new_zeros(count, 0),)
    columns: list[tuple[Tensor, ...]] = []
    for side in (_captured_blocks if capturing else _gathered_blocks)(captions, vectors, lengths, blocks):
        parts = []
        for start in range(0, max(1, count), rows):
            arguments = (_image_rows(images, start, start + rows), side, *extra)
            if recompute:  # nothing in a block is random
                parts.append(checkpoint(score, *arguments, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(score(*arguments))
        columns.append(tuple(torch.cat(part) if len(parts) > 1 else part[0] for part in zip(*parts, strict=True)))
    joined = tuple(torch.cat(column, 1) for column in zip(*columns, strict=True))
    if capturing:
        return joined
    order = torch.tensor([caption for block in blocks for caption in block.captions]).argsort()
    order = order.to(device, non_blocking=True)
    return tuple(column.index_select(1, order) for column in joined)


class Block(NamedTuple):
    """Captions that are scored together.

    Attributes:
        captions: Their indices.
        nodes: P.
    """

    captions: list[int]
    nodes: int


def caption_blocks(lengths: Sequence[int], most: int, alignment: int = 1, least_cost: float = 0) -> list[Block]:
    """Split captions into blocks, the shortest first, so that padding and number of blocks are small.

    Args:
        lengths: Number of words of each caption.
        most: Maximum number of nodes of a block, padding included; a longer caption gets a block of its own.
        alignment: The nodes of a caption are padded to a multiple of this.
        least_cost: Nodes that take as much time as a block costs at least.

    Example:
        >>> caption_blocks([3, 9, 3, 10], most=100)
        [Block(captions=[0, 2], nodes=4), Block(captions=[1, 3], nodes=11)]
        >>> caption_blocks([3, 9, 3, 10], most=11, alignment=4)
        [Block(captions=[0, 2], nodes=4), Block(captions=[1], nodes=12), Block(captions=[3], nodes=12)]
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    padded = [-(-(lengths[caption] + 1) // alignment) * alignment for caption in order]
    cost = max(least_cost, sum(padded) * _BLOCK_COST)
    # The cheapest way to split the captions up to each change of width, from those of the shorter ones.
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}
    ends = [end for end in range(1, len(order) + 1) if end == len(order) or padded[end] > padded[end - 1]]
    for end in ends:
        best[end] = min((best[start][0] + cost + (end - start) * padded[end - 1], start) for start in best)
    groups, end = [], len(order)
    while end:
        groups.append((best[end][1], end))
        end = best[end][1]
    blocks = []
    for start, end in reversed(groups):
        width = padded[end - 1]
        number = -(-(end - start) // max(1, most // width))
        cuts = [start + (end - start) * cut // number for cut in range(number + 1)]
        blocks += [Block(order[low:high], width) for low, high in pairwise(cuts)]
    return blocks


def _host_lengths(captions: Padded) -> Sequence[int]:
    return captions.full_lengths.tolist() if captions.host_lengths is None else captions.host_lengths


def _is_capturing(captions: Padded) -> bool:
    return captions.values.is_cuda and torch.cuda.is_current_stream_capturing()


def _image_rows(images: ImageSide, start: int, stop: int) -> ImageSide:
    if start == 0 and stop >= len(images.regions):
        return images
    return ImageSide(*(None if part is None else part[start:stop] for part in images))  # type: ignore[arg-type]


def _gathered_blocks(
    captions: Padded, vectors: Tensor, lengths: Sequence[int], blocks: list[Block]
) -> list[CaptionSide]:
    """The captions of each block, with a few kernels for all blocks together."""
    longest, size = captions.values.shape[1:]
    rows, device = [], captions.values.device
    for block in blocks:
        first, position = torch.tensor(block.captions)[:, None] * longest, torch.arange(block.nodes)
        real = position <= torch.tensor([lengths[caption] for caption in block.captions])[:, None]
        word = real & (position > 0)  # the node of the whole caption comes first and has no word
        rows.append(torch.stack([first + (position - 1) * word, word, real]).flatten(1))
    indices = torch.cat(rows, 1)
    if device.type == "cuda":  # a large copy from memory that is not pinned would wait for the GPU
        indices = indices.pin_memory()
    source, word, real = indices.to(device, non_blocking=True)
    words = captions.values.reshape(-1, size).index_select(0, source) * word[:, None]
    order = torch.tensor([caption for block in blocks for caption in block.captions]).to(device, non_blocking=True)
    sides, sizes = [], [one.shape[1] for one in rows]
    of_captions = torch.split(vectors.index_select(0, order), [len(block.captions) for block in blocks])
    for part, mask, whole in zip(torch.split(words, sizes), torch.split(real.bool(), sizes), of_captions, strict=True):
        sides.append(CaptionSide(part.view(len(whole), -1, size), mask.view(len(whole), -1), whole))
    return sides


def _captured_blocks(
    captions: Padded, vectors: Tensor, lengths: Sequence[int], blocks: list[Block]
) -> list[CaptionSide]:
    """Adjacent captions, masked by lengths that only the device knows."""
    nodes = blocks[0].nodes
    position = torch.arange(nodes, device=captions.values.device)
    real = position <= captions.full_lengths[:, None]
    words = pad(captions.values, (0, 0, 1, nodes - 1 - lengths[0])) * real[..., None]
    numbers = [len(block.captions) for block in blocks]
    parts = (torch.split(one, numbers) for one in (words, real, vectors))
    return [CaptionSide(*part) for part in zip(*parts, strict=True)]
