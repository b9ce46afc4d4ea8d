"""All images against all captions, in blocks of captions of like length and of bounded memory."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bcls.models.cross_attention import CaptionSide, ImageSide
from bcls.models.padded import Padded

#: Scores a block: ``(images, captions, weights) -> (scores (n, c), more (1, c) ...)``.
BlockScores = Callable[[ImageSide, CaptionSide, Any], tuple[Tensor, ...]]

#: Share of a block's words that may be padding: a few captions of a rare length join a longer one's block.
_WASTE = 1 / 8


@dataclass(frozen=True)
class Budget:
    """How much may be in memory at a time, counted in D-wide vectors of pairs of an image and a word."""

    block: int
    """Of one block. A block needs about 2 such vectors and 10 similarity vectors for each."""
    kept: int
    """Of all blocks together, in training: with more, blocks are worked out again in the backward pass."""


def budget_for(device: torch.device, width: int) -> Budget:
    """A budget that fills the device without crowding it.

    16 MB a block of float32 on a CPU; on an accelerator 1 GB, or a 32nd of its memory where that is more.
    """
    if device.type == "cpu":
        return Budget(max(1, (1 << 22) // width), max(1, (1 << 26) // width))
    numbers = 1 << 28
    if device.type == "cuda" and torch.cuda.is_available():
        numbers = max(numbers, torch.cuda.get_device_properties(device).total_memory // (32 * 4))
    return Budget(max(1, numbers // width), max(1, numbers // width))


def all_pairs(
    score: BlockScores,
    images: ImageSide,
    captions: Padded,
    vectors: Tensor,
    weights: Any,
    *,
    budget: Budget | None = None,
    whole_images: bool = False,
) -> tuple[Tensor, ...]:
    """Score all images against all captions.

    Captions are sorted by length and cut into blocks with little padding, so the work is a few large products instead
    of one small one for each caption. While a CUDA graph is recorded the host cannot know lengths: captions are then
    cut by their place, each as wide as the longest. With gradients, what does not fit ``budget.kept`` is checkpointed
    block by block.

    Args:
        score: What scores a block, plain or compiled.
        images: N images.
        captions: ``(C, W, D)`` words with lengths.
        vectors: ``(C, D)`` of whole captions.
        weights: Passed on to ``score``.
        budget: Memory; chosen by the device where left out.
        whole_images: Every block has all images, as statistics over them need.

    Returns:
        What ``score`` gives, put together: ``(N, C)`` scores first.
    """
    count, width = len(images.regions), captions.values.shape[2]
    budget = budget_for(captions.values.device, width) if budget is None else budget
    fixed = _recording(captions)
    lengths = [captions.values.shape[1]] * len(captions) if fixed else _lengths(captions)
    rows = max(1, count if whole_images else min(count, math.isqrt(budget.block)))
    # Images in parts of equal size, as the last of unequal ones would be small.
    rows = math.ceil(count / max(1, math.ceil(count / rows))) if count else 1
    blocks = caption_blocks(lengths, max(1, budget.block // rows))
    again = torch.is_grad_enabled() and count * sum(lengths) > budget.kept
    columns: list[tuple[Tensor, ...]] = []
    for block in blocks:
        side = _fixed_side(captions, vectors, block) if fixed else _caption_side(captions, vectors, block, lengths)
        parts = []
        for start in range(0, max(1, count), rows):
            some = _some(images, start, start + rows)
            parts.append(_scored(score, some, side, weights, again=again))
        columns.append(tuple(torch.cat(part) for part in zip(*parts, strict=True)))
    if not columns:
        return (captions.values.new_zeros(count, 0),)
    if fixed:
        return tuple(torch.cat(column, 1) for column in zip(*columns, strict=True))
    place = torch.empty(len(lengths), dtype=torch.int64)
    place[torch.tensor([one for block in blocks for one in block])] = torch.arange(len(lengths))
    place = place.to(captions.values.device)
    return tuple(torch.cat(column, 1).index_select(1, place) for column in zip(*columns, strict=True))


def caption_blocks(lengths: Sequence[int], words: int) -> list[list[int]]:
    """Cut captions into blocks, the shortest first.

    Args:
        lengths: Words of each caption.
        words: How many words a block may have, padding included; a longer caption gets a block of its own.

    Returns:
        The captions of each block by their place.

    Example:
        >>> caption_blocks([3, 9, 3, 10], words=20)
        [[0, 2], [1, 3]]
        >>> caption_blocks([3, 9, 3, 10], words=10)
        [[0, 2], [1], [3]]
    """
    blocks: list[list[int]] = []
    real = 0
    for one in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[one]
        if blocks:
            padded = (len(blocks[-1]) + 1) * length
            if padded <= words and padded - (real + length) <= _WASTE * padded:
                blocks[-1].append(one)
                real += length
                continue
        blocks.append([one])
        real = length
    return blocks


def _scored(
    score: BlockScores, images: ImageSide, side: CaptionSide, weights: Any, *, again: bool
) -> tuple[Tensor, ...]:
    if not again:
        return score(images, side, weights)
    # Nothing in a block is random.
    done: tuple[Tensor, ...] = checkpoint(score, images, side, weights, use_reentrant=False, preserve_rng_state=False)
    return done


def _lengths(captions: Padded) -> list[int]:
    if captions.lengths is None:
        return [captions.values.shape[1]] * len(captions)
    lengths: list[int] = captions.lengths.tolist()
    return lengths


def _some(images: ImageSide, start: int, stop: int) -> ImageSide:
    if start == 0 and stop >= len(images.regions):
        return images
    mask = None if images.mask is None else images.mask[start:stop]
    return ImageSide(images.regions[start:stop], images.gram[start:stop], mask, images.vectors[start:stop])


def _caption_side(captions: Padded, vectors: Tensor, block: list[int], lengths: list[int]) -> CaptionSide:
    device = captions.values.device
    own = [lengths[one] for one in block]
    longest = max(own)
    rows = torch.tensor(block).to(device)
    words = captions.values[:, :longest].index_select(0, rows)
    mask = None
    if min(own) < longest:
        # The whole caption's node comes first and is always there.
        mask = torch.arange(longest + 1, device=device) <= torch.tensor(own).to(device)[:, None]
        words = words * mask[:, 1:, None]
    return CaptionSide(words, mask, vectors.index_select(0, rows))


def _recording(captions: Padded) -> bool:
    return captions.values.is_cuda and torch.cuda.is_current_stream_capturing()


def _fixed_side(captions: Padded, vectors: Tensor, block: list[int]) -> CaptionSide:
    """Captions that lie together, masked by lengths that only the device knows."""
    part = slice(block[0], block[-1] + 1)
    words = captions.values[part]
    if captions.lengths is None:
        return CaptionSide(words, None, vectors[part])
    # The whole caption's node comes first and is always there.
    mask = torch.arange(words.shape[1] + 1, device=words.device) <= captions.lengths[part, None]
    return CaptionSide(words * mask[:, 1:, None], mask, vectors[part])
