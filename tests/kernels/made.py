"""Batches for the tests of the kernels, one step of a loss, and what is checked on every engine."""

import pytest
import torch
from torch.nn import functional

from bcls.kernels import SoftNegatives, engines, matrix_loss, rungs, sliding_windows, values, without_kernels
from bcls.losses import KendallWindowLoss, LadderLoss

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
needs_triton = pytest.mark.skipif(
    not engines.runs_triton(torch.device(DEVICE)), reason="neither a GPU nor the interpreter"
)


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


def whole(relevance, image_ids=None, *, alpha=0.2, beta=0.1, average=False, weight=1.0):
    """BCLS, both halves from one call of :func:`bcls.kernels.matrix_loss`; a function of the scores."""

    def loss(similarity):
        scale = 1 / len(similarity)
        terms = matrix_loss(
            similarity,
            relevance,
            image_ids=image_ids,
            soft=SoftNegatives(average=average, scale=scale),
            windows=sliding_windows(alpha, beta, scale=weight * scale),
        )
        return terms.binary + terms.continuous

    return loss


def step(loss, *leaves):
    """Value and gradients of a scalar."""
    leaves = [leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_() for leaf in leaves]
    value = loss(*leaves)
    return value.detach(), *torch.autograd.grad(value, leaves, materialize_grads=True)


def assert_same(ours, theirs, rtol=1e-5, atol=1e-6):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=rtol, atol=atol)


def check_rungs(size, with_ids, device="cpu"):
    """The ladder's rungs against the plain loss, with labels on a threshold."""
    similarity, relevance = batch(size, device=device)
    relevance[0] = 0.25
    ids = ids_of(size, device=device) if with_ids else None
    windows = rungs((0.1, 0.25, 0.5), (0.02, 0.0, 0.3), (0.25, 1.0, 0.5), scale=1 / size)
    reference = plain(LadderLoss((0.1, 0.25, 0.5), (0.2, 0.02, 0.0, 0.3), (0.25, 1.0, 0.5)).terms)
    assert_same(
        step(lambda scores: matrix_loss(scores, relevance, image_ids=ids, windows=windows).continuous, similarity),
        step(lambda scores: reference(scores, relevance, image_ids=ids)["continuous"], similarity),
    )


def check_valid_windows_alone(size, beta=0.1, device="cpu"):
    """The mean over an anchor's non-empty windows against the plain loss, with an anchor that has none."""
    similarity, relevance = batch(size, device=device)
    relevance[3] = 0.5  # no window has positives and negatives
    windows = sliding_windows(0.2, beta, valid_only=True)
    reference = plain(KendallWindowLoss(0.2, beta, window_norm="valid", reduction="sum"))
    assert_same(
        step(lambda scores: matrix_loss(scores, relevance, windows=windows).continuous, similarity),
        step(lambda scores: reference(scores, relevance), similarity),
    )


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
