"""Similarity graph reasoning (SGR): scores of all pairs from their similarity vectors."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from bcls.similarity.nodes import CaptionSide, ImageSide, NodeWeights, pair_scores, similarity_nodes


class Step(NamedTuple):
    """The layers of one step; weights ``(K, K)`` and biases ``(K,)``."""

    match_weight: Tensor
    """Query and key layer in one, see :func:`reasoning_step`."""
    match_bias: Tensor
    out_weight: Tensor
    out_bias: Tensor


class ReasoningWeights(NamedTuple):
    """All that SGR scores with."""

    nodes: NodeWeights
    steps: tuple[Step, ...]
    score_weight: Tensor
    """``(1, K)``."""
    score_bias: Tensor
    """``(1,)``."""


def reasoning_step(query: nn.Linear, key: nn.Linear, out: nn.Linear) -> Step:
    r"""A step from its three layers, of which query and key act as one.

    .. math::
        (W_q x + b_q) \cdot (W_k y + b_k) = (W_k^\top W_q x + W_k^\top b_q) \cdot y + \ldots

    and what is left out is the same for all keys y, which the softmax does not see.
    """
    with torch.autocast(query.weight.device.type, enabled=False):
        # The key's bias has no effect; it stays in the graph, with a gradient of zero, as a parameter without one is
        # an error where several processes wait for each other's gradients.
        bias = query.bias @ key.weight + 0 * key.bias
        return Step(key.weight.T @ query.weight, bias, out.weight, out.bias)


def reasoned_scores(images: ImageSide, captions: CaptionSide, weights: ReasoningWeights) -> tuple[Tensor]:
    r"""Score all pairs by reasoning over their similarity vectors.

    .. math::
        X \leftarrow \mathrm{ReLU}(W \, \mathrm{softmax}(Q(X) K(X)^\top) X + b), \qquad
        s = \mathrm{sigmoid}(w \cdot x_0 + b)

    Args:
        images: N images.
        captions: C captions.
        weights: The layers.

    Returns:
        ``(N, C)`` scores in (0, 1), alone in a tuple.
    """
    nodes = similarity_nodes(images, captions, weights.nodes)
    *steps, last = weights.steps
    for step in steps:
        nodes = _reasoned(nodes, nodes, captions.mask, step)
    # Only the whole pair's node is read in the end, so only it is worked out in the last step.
    top = _reasoned(nodes[:, :, :1], nodes, captions.mask, last)[:, :, 0]
    return (pair_scores(top, weights.score_weight, weights.score_bias),)


def _reasoned(queries: Tensor, nodes: Tensor, mask: Tensor | None, step: Step) -> Tensor:
    """One step for some of the nodes."""
    logits = linear(queries, step.match_weight, step.match_bias) @ nodes.mT
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None], -torch.inf)
    return linear(logits.softmax(-1).to(nodes.dtype) @ nodes, step.out_weight, step.out_bias).relu()
