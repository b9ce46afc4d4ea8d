"""Batches for the tests of the kernels, and one step of a loss."""

import torch
from torch.nn import functional

from bcls.kernels import values, without_kernels


def batch(size, seed=0, device="cpu"):
    """Scores and labels that fill all windows."""
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.randn(size, size, generator=generator) / 4
    relevance = (torch.randn(size, size, generator=generator) * 0.4 + 0.1).clamp(-1, 1).fill_diagonal_(1)
    return similarity.to(device), relevance.to(device)


def ids_of(size, seed=0, device="cpu"):
    """Image numbers, some of them several times; large and negative ones too."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, max(1, 2 * size // 3), (size,), generator=generator) * 2**33 - 2**34).to(device)


def embeddings(size, seed=0, width=24, labels=12, device="cpu"):
    """Images, texts and label embeddings of captions, unit rows."""
    generator = torch.Generator().manual_seed(seed)
    images, noise = (torch.randn(size, width, generator=generator) for _ in range(2))
    captions = torch.randn(size, labels, generator=generator) + 0.4
    parts = images, images + noise, captions
    return tuple(functional.normalize(part, dim=1).to(device) for part in parts)


def plain(loss):
    """A loss of :mod:`bcls.losses` that must not use the fused kernels, whatever the device."""

    def call(*arguments, **options):
        with without_kernels():
            return loss(*arguments, **options)

    return call


def step(loss, *leaves):
    """Value and gradients of a scalar."""
    leaves = [leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_() for leaf in leaves]
    value = loss(*leaves)
    return value.detach(), *torch.autograd.grad(value, leaves, materialize_grads=True)


def assert_same(ours, theirs, rtol=1e-5, atol=1e-6):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=rtol, atol=atol)


def look_plainly(similarity, relevance, *, bounded=True):
    """:func:`bcls.kernels.values.look` in plain torch: what the kernel is pinned to, and a device for where none is."""
    words = values.report_on(similarity.device)
    cells = []
    for matrix in (similarity, relevance):
        odd = [] if matrix is None else (~matrix.isfinite()).flatten().nonzero().flatten().tolist()
        cells.append(4 * odd[0] + values.KINDS.index(str(matrix.flatten()[odd[0]].item())) if odd else -1)
    low, high = (0.0, 0.0) if relevance is None else (float(bound) for bound in relevance.float().aminmax())
    outside = bounded and relevance is not None and max(-low, high) > 1 + values.ROUNDING
    if max(cells) >= 0 or outside:
        words.copy_(torch.tensor([1.0, *cells, low, high, similarity.shape[1]], dtype=torch.float64))
