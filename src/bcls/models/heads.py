"""The two heads of SGRAF as modules: they hold the layers, :mod:`bcls.similarity` does the work."""

import torch
from torch import Tensor, nn

from bcls._padded import Padded
from bcls.models.config import SafConfig, SgrConfig
from bcls.models.layers import xavier_linear
from bcls.similarity import (
    FiltrationWeights,
    ImageSide,
    NodeWeights,
    ReasoningWeights,
    Step,
    all_pairs,
    filtered_scores,
    reasoned_scores,
    reasoning_step,
    running,
)
from bcls.similarity.blocks import BlockScores


class Head(nn.Module):
    """What both heads share: the layers of the similarity vectors, and the last one.

    Attributes:
        block: What scores a block; may be replaced by its compiled form, as in
            ``head.block = torch.compile(head.block, dynamic=True)``.
    """

    block: BlockScores

    def __init__(self, config: SafConfig) -> None:
        super().__init__()
        self.local = xavier_linear(config.width, config.similarity_width)
        self.whole = xavier_linear(config.width, config.similarity_width)
        self.score = xavier_linear(config.similarity_width, 1)
        self.smooth = config.smooth

    def _nodes(self) -> NodeWeights:
        return NodeWeights(self.local.weight, self.local.bias, self.whole.weight, self.whole.bias, self.smooth)


class ReasoningStep(nn.Module):
    """Query, key and output layer of one step of graph reasoning."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = xavier_linear(width, width)
        self.key = xavier_linear(width, width)
        self.out = xavier_linear(width, width)

    def forward(self) -> Step:
        """The layers as :func:`bcls.similarity.reasoned_scores` takes them."""
        return reasoning_step(self.query, self.key, self.out)


class ReasoningHead(Head):
    """Similarity graph reasoning, see :func:`bcls.similarity.reasoned_scores`."""

    def __init__(self, config: SgrConfig) -> None:
        super().__init__(config)
        self.steps = nn.ModuleList(ReasoningStep(config.similarity_width) for _ in range(config.steps))
        self.block = reasoned_scores

    def forward(self, images: ImageSide, captions: Padded, vectors: Tensor) -> Tensor:
        """``(N, C)`` scores of N images with C captions, given as words with lengths and as ``(C, D)`` vectors."""
        steps = tuple(step() for step in self.steps)
        weights = ReasoningWeights(self._nodes(), steps, self.score.weight, self.score.bias)
        return all_pairs(self.block, images, captions, vectors, weights)[0]


class FiltrationHead(Head):
    """Similarity attention filtration, see :func:`bcls.similarity.filtered_scores`.

    In training, mean and variance of the batch norm are those of one caption with all images, and the running ones are
    updated once for each caption, in the batch's order: the same numbers as the authors' loop over captions gives.
    """

    def __init__(self, config: SafConfig) -> None:
        super().__init__(config)
        self.filter = xavier_linear(config.similarity_width, 1)
        self.norm = nn.BatchNorm1d(1)
        self.block = filtered_scores

    def forward(self, images: ImageSide, captions: Padded, vectors: Tensor) -> Tensor:
        """``(N, C)`` scores of N images with C captions, given as words with lengths and as ``(C, D)`` vectors."""
        norm = self.norm
        moments = (None, None) if self.training else (norm.running_mean, norm.running_var)
        weights = FiltrationWeights(
            self._nodes(),
            self.filter.weight,
            self.filter.bias,
            norm.weight,
            norm.bias,
            *moments,
            norm.eps,
            self.score.weight,
            self.score.bias,
        )
        scores, *own = all_pairs(self.block, images, captions, vectors, weights, whole_images=self.training)
        if own:
            self._remember(own[0][0], own[1][0])
        return scores

    @torch.no_grad()
    def _remember(self, means: Tensor, variances: Tensor) -> None:
        for buffer, values in ((self.norm.running_mean, means), (self.norm.running_var, variances)):
            if buffer is not None:
                buffer.copy_(running(buffer, values.to(buffer.dtype), self.norm.momentum or 0.1))
        if self.norm.num_batches_tracked is not None:
            self.norm.num_batches_tracked.add_(len(means))


def head_of(config: SafConfig) -> ReasoningHead | FiltrationHead:
    """The head that a config is for."""
    return ReasoningHead(config) if isinstance(config, SgrConfig) else FiltrationHead(config)
