"""What is measured: our paths by name, and what one would write without them."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from bcls.kernels import SoftNegatives, kendall_matrix, matrix_loss, sliding_windows, streaming_loss, without_kernels


def plain(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss of :mod:`bcls.losses` in plain torch, whatever the device."""

    def call(*tensors: Tensor) -> Tensor:
        with without_kernels():
            return loss(*tensors)

    return call


def fused_windows(similarity: Tensor, relevance: Tensor, beta: float = 0.1) -> Tensor:
    """K-SW-HS by the kernels; the mean."""
    return matrix_loss(similarity, relevance, windows=sliding_windows(0.2, beta, scale=1 / len(similarity))).continuous


def fused_bcls(similarity: Tensor, relevance: Tensor) -> Tensor:
    """BCLS by the kernels; the mean."""
    scale = 1 / len(similarity)
    terms = matrix_loss(similarity, relevance, soft=SoftNegatives(scale=scale), windows=sliding_windows(scale=scale))
    return terms.binary + terms.continuous


def fused_kendall(similarity: Tensor, relevance: Tensor) -> Tensor:
    """The dense Kendall loss by its kernel; the mean."""
    return kendall_matrix(similarity, relevance, scale=1 / len(similarity))


def streaming_bcls(images: Tensor, texts: Tensor, captions: Tensor) -> Tensor:
    """BCLS from embeddings, without the matrices; the mean."""
    scale = 1 / len(images)
    soft, windows = SoftNegatives(scale=scale), sliding_windows(scale=scale)
    terms = streaming_loss(images, texts, captions, soft=soft, windows=windows)
    return terms.binary + terms.continuous


def matrix_bcls(images: Tensor, texts: Tensor, captions: Tensor) -> Tensor:
    """BCLS from embeddings, through the matrices; the mean."""
    return fused_bcls(images @ texts.T, (captions @ captions.T).clamp(-1, 1).fill_diagonal_(1))


def hard_triplets(similarity: Tensor, margin: float = 0.2) -> Tensor:
    """Triplet-HN as VSE++ writes it; the mean."""
    own = similarity.diagonal()
    others = similarity.masked_fill(torch.eye(len(similarity), dtype=torch.bool, device=similarity.device), -1e9)
    by_row, by_column = others.max(1).values, others.max(0).values
    return ((by_row - own + margin).relu() + (by_column - own + margin).relu()).mean()


def infonce(similarity: Tensor) -> Tensor:
    """InfoNCE as open_clip writes it."""
    logits, target = similarity / 0.05, torch.arange(len(similarity), device=similarity.device)
    return (functional.cross_entropy(logits, target) + functional.cross_entropy(logits.T, target)) / 2


def window_loop(similarity: Tensor, relevance: Tensor, alpha: float = 0.2, beta: float = 0.1) -> Tensor:
    """K-SW-HS as one would first write it: a pass over the matrices for each window; the mean."""
    windows = int((2 - alpha) / beta + 1e-9)
    total = similarity.new_zeros(())
    labels_exactly = relevance.double()  # so that a label on the edge of a window is on it
    for scores, labels in ((similarity, labels_exactly), (similarity.T, labels_exactly.T)):
        for window in range(1, windows + 1):
            lower = -1 + window * beta
            positive, negative = labels >= lower + alpha - 1e-6, labels < lower - 1e-6
            lowest = scores.masked_fill(~positive, torch.inf).min(1).values
            highest = scores.masked_fill(~negative, -torch.inf).max(1).values
            both = positive.any(1) & negative.any(1)
            total = total + torch.where(both, highest - lowest, 0).relu().sum()
    return total / windows / len(similarity)
