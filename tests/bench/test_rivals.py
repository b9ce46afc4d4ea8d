"""A rival that computes something else would be no rival."""

import pytest
import torch

from bcls.experiments import bench as rivals
from bcls.experiments.bench import DEVIATION, MEAN, embeddings, matrices
from bcls.losses import BCLSLoss, InfoNCELoss, KendallWindowLoss, TripletHardLoss
from tests.kernels.made import assert_same, step
from tests.reference.window_loop import loop_over_windows

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("rival", "ours"),
    [
        (rivals.window_loop, KendallWindowLoss()),
        (rivals.fused_windows, KendallWindowLoss()),
        (rivals.plain(KendallWindowLoss()), KendallWindowLoss()),
        (rivals.fused_bcls, BCLSLoss()),
        (lambda similarity, _: rivals.hard_triplets(similarity), TripletHardLoss()),
        (lambda similarity, _: rivals.infonce(similarity), InfoNCELoss()),
    ],
)
def test_rivals_compute_the_same(rival, ours):
    similarity, relevance = matrices(40, CPU)
    assert_same(step(lambda s: rival(s, relevance), similarity), step(lambda s: ours(s, relevance), similarity))


def test_the_loop_is_that_of_the_reference():
    similarity, relevance = matrices(40, CPU)
    relevance = relevance.mul(10).round().div(10)  # on the edges of windows
    torch.testing.assert_close(rivals.window_loop(similarity, relevance), loop_over_windows(similarity, relevance) / 40)


def test_streaming_and_matrices_agree():
    leaves, captions = embeddings(30, 16, 12, CPU)
    ours, theirs = (step(lambda a, b, loss=loss: loss(a, b, captions), *leaves)
                    for loss in (rivals.streaming_bcls, rivals.matrix_bcls))  # fmt: skip
    assert_same(ours, theirs)


def test_the_dense_kernel_needs_a_device_of_its_own():
    with pytest.raises(ValueError, match=r"^`similarity`.*KendallLoss"):
        rivals.fused_kendall(*matrices(4, CPU))


def test_labels_are_spread_as_real_ones():
    similarity, relevance = matrices(300, CPU)
    others = relevance[~torch.eye(300, dtype=torch.bool)]
    assert float(others.mean()) == pytest.approx(MEAN, abs=0.005)
    assert float(others.std()) == pytest.approx(DEVIATION, abs=0.005)
    assert (relevance.diagonal() == 1).all()
    assert similarity.requires_grad
    assert torch.equal(matrices(300, CPU)[1], relevance)
