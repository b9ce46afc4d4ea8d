import pytest
import torch

from bcls.losses import BCLSLoss
from tests.kernels.made import plain, step, whole

hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    size=strategies.integers(1, 12),
    seed=strategies.integers(0, 2**20),
    alpha=strategies.floats(0, 1.5),
    beta=strategies.floats(0.02, 0.4),
    levels=strategies.sampled_from([2, 10, 1000]),
)
def test_any_batch(size, seed, alpha, beta, levels):
    """Few levels: labels on the edges of windows, and tied."""
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.randn(size, size, generator=generator)
    relevance = (torch.rand(size, size, generator=generator) * 2 * levels).round() / levels - 1
    ids = torch.randint(0, size, (size,), generator=generator)
    ours = step(whole(relevance, ids, alpha=alpha, beta=beta), similarity)
    theirs = step(lambda scores: plain(BCLSLoss(alpha, beta))(scores, relevance, image_ids=ids), similarity)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
