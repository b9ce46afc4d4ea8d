"""The losses through the fused kernels (without a GPU: their plain form) have the values of the plain losses."""

import pytest
import torch

from bcls import losses
from bcls.losses import backends, fused, kendall, without_kernels
from bcls.losses._torch.engine import TorchEngine
from bcls.losses.backends import can_fuse
from tests.losses.factories import assert_same, batch, ids_of, step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LOSSES = [
    losses.KendallWindowLoss(),
    losses.KendallWindowLoss(alpha=0.3, beta=0.05, window_norm="valid", reduction="sum"),
    losses.TripletSoftLoss(),
    losses.TripletSoftLoss(margin=0.1, gamma=20, lse="mean", reduction="sum"),
    losses.KendallLoss(),
    losses.KendallLoss(alpha=0.1, margin=0.05, normalize="active", reduction="sum"),
    losses.BCLSLoss(continuous=losses.KendallLoss()),
    losses.BCLSLoss(),
    losses.BCLSLoss(weight=2.0, lse="mean", reduction="sum"),
]


@pytest.fixture(autouse=True)
def _fused(monkeypatch):
    """Let CPU tensors take the fused path, by the backend in plain torch."""
    if DEVICE == "cpu":
        monkeypatch.setattr(backends, "triton_runs_on", lambda device: True)
        for module in (fused, kendall):
            monkeypatch.setattr(module, "engine_for", TorchEngine)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("ids", [False, True])
def test_value_and_gradient_are_those_of_the_plain_path(loss, ids):
    similarity, relevance = batch(24, device=DEVICE)
    image_ids = ids_of(24, device=DEVICE) if ids else None

    def with_kernels(scores):
        assert can_fuse(scores)
        return loss(scores, relevance, image_ids=image_ids)

    def plain(scores):
        with without_kernels():
            return loss(scores, relevance, image_ids=image_ids)

    assert_same(step(with_kernels, similarity), step(plain, similarity))


def test_half_labels_are_compared_as_the_numbers_they_are():
    similarity, relevance = batch(30, device=DEVICE)
    half = (relevance * 10).round().div(10).half()
    loss = losses.BCLSLoss(beta=0.01)
    assert loss.terms(similarity, half) == loss.terms(similarity, half.double())


def test_terms_keep_their_names():
    similarity, relevance = batch(8, device=DEVICE)
    terms = losses.BCLSLoss(weight=3.0)(similarity, relevance), losses.BCLSLoss(weight=3.0).terms(similarity, relevance)
    assert list(terms[1]) == ["binary", "continuous"]
    torch.testing.assert_close(sum(terms[1].values()), terms[0])


def test_variants_without_a_kernel_use_the_plain_path():
    similarity, relevance = batch(8, device=DEVICE)
    for loss in (losses.KendallWindowLoss(beta=0), losses.KendallWindowLoss(mining="none")):
        ordinary = loss(similarity, relevance)
        with without_kernels():
            assert loss(similarity, relevance) == ordinary
    assert not can_fuse(similarity.double())
