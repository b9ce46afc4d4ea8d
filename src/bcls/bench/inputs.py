"""Input for measurements, spread as real data is: labels as MiniLM's are on photo captions."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

#: Mean and deviation of MiniLM's labels on photo captions.
MEAN, DEVIATION = 0.13, 0.11


def matrices(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Similarities that want a gradient and labels, ``(B, B)``."""
    generator = torch.Generator(device).manual_seed(size)
    draw = partial(torch.randn, size, size, generator=generator, device=device)
    similarity, relevance = draw() / 4, draw().mul_(DEVIATION).add_(MEAN)
    return similarity.requires_grad_(), relevance.clamp_(-1, 1).fill_diagonal_(1)


def embeddings(size: int, width: int, labels: int, device: torch.device) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Images and texts ``(B, width)`` that want gradients, and label embeddings ``(B, labels)``; unit rows."""
    generator = torch.Generator(device).manual_seed(size)
    draw = partial(torch.randn, generator=generator, device=device)
    images = functional.normalize(draw(size, width), dim=1)
    texts = functional.normalize(images + 0.8 * functional.normalize(draw(size, width), dim=1), dim=1)
    captions = functional.normalize(draw(size, labels) + 0.35, dim=1)
    return (images.requires_grad_(), texts.requires_grad_()), captions
