"""The losses through the fused kernels, by their plain engine where there is no GPU: the same values and gradients."""

import pytest
import torch

from bcls import kernels, losses
from bcls.kernels import without_kernels
from bcls.kernels._torch_engine import TorchEngine
from tests.kernels.made import assert_same, batch, ids_of, step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LOSSES = [
    losses.KendallWindowLoss(),
    losses.KendallWindowLoss(alpha=0.3, beta=0.05, window_norm="valid", reduction="sum"),
    losses.TripletSoftLoss(),
    losses.TripletSoftLoss(margin=0.1, gamma=20, lse="mean", reduction="sum"),
    losses.BCLSLoss(),
    losses.BCLSLoss(weight=2.0, lse="mean", reduction="sum"),
]


@pytest.fixture(autouse=True)
def fused(monkeypatch):
    """Let the kernels serve CPU tensors, too, by their engine in plain torch."""
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels.engines, "runs_triton", lambda device: True)
        monkeypatch.setattr(kernels.matrix, "engine_for", TorchEngine)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("ids", [False, True])
def test_value_and_gradient_are_those_of_the_plain_path(loss, ids):
    similarity, relevance = batch(24, device=DEVICE)
    image_ids = ids_of(24, device=DEVICE) if ids else None

    def fused(scores):
        assert kernels.usable(scores)
        return loss(scores, relevance, image_ids=image_ids)

    def plain(scores):
        with without_kernels():
            return loss(scores, relevance, image_ids=image_ids)

    assert_same(step(fused, similarity), step(plain, similarity))


def test_terms_keep_their_names():
    similarity, relevance = batch(8, device=DEVICE)
    terms = losses.BCLSLoss(weight=3.0)(similarity, relevance), losses.BCLSLoss(weight=3.0).terms(similarity, relevance)
    assert list(terms[1]) == ["binary", "continuous"]
    torch.testing.assert_close(sum(terms[1].values()), terms[0])


def test_what_is_not_fused_stays_plain():
    similarity, relevance = batch(8, device=DEVICE)
    for loss in (losses.KendallWindowLoss(beta=0), losses.KendallWindowLoss(mining="none")):
        ordinary = loss(similarity, relevance)
        with without_kernels():
            assert loss(similarity, relevance) == ordinary
    assert not kernels.usable(similarity.double())
