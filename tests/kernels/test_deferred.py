"""The losses where the device looks at values, with plain torch in its place; the kernels are in ``test_values.py``."""

import pytest
import torch

from bcls import kernels, losses
from bcls.kernels import check_now, values
from bcls.kernels._torch_engine import TorchEngine
from tests.kernels.made import assert_same, batch, look_plainly, plain, step

LOSSES = [
    losses.BCLSLoss(),
    losses.BCLSLoss(binary=losses.TripletHardLoss()),
    losses.KendallWindowLoss(),
    losses.KendallWindowLoss(beta=0),
    losses.TripletSoftLoss(),
    losses.TripletHardLoss(),
    losses.from_name("infonce+kendall-sw-hs"),
]


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """A device that looks later; the matrices that it was asked to look at, by :func:`values.look`."""
    looked = []

    def look(similarity, relevance, *, bounded=True):
        looked.append(similarity)
        look_plainly(similarity, relevance, bounded=bounded)

    monkeypatch.setattr(values, "defers", lambda similarity: kernels.engines.allowed(similarity))
    monkeypatch.setattr(values, "look", look)
    monkeypatch.setattr(values, "_REPORTS", {})
    monkeypatch.setattr(kernels.engines, "runs_triton", lambda device: True)
    monkeypatch.setattr(kernels.matrix, "engine_for", TorchEngine)
    return looked


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_value_and_gradient_are_those_of_the_plain_path(loss, device):
    similarity, relevance = batch(9)
    rounded = relevance * (1 + 5e-5)  # to be clamped
    deferred = step(lambda scores: loss(scores, rounded), similarity)
    assert len(device) == (not loss.fuses(losses._batch.check_batch(similarity, relevance)))
    assert_same(deferred, step(lambda scores: plain(loss)(scores, rounded), similarity))
    check_now()


def test_the_next_call_of_any_loss_raises_once():
    similarity, relevance = batch(4)
    spoilt = similarity.clone()
    spoilt[1, 2] = torch.nan
    assert losses.TripletHardLoss()(spoilt, relevance).isnan()
    with pytest.raises(ValueError, match=r"^`similarity`: expected finite numbers, got nan at row 1, column 2 in"):
        losses.TripletSoftLoss()(similarity, relevance)
    losses.TripletSoftLoss()(similarity, relevance)


def test_labels_of_any_scale_where_the_loss_takes_them():
    similarity, relevance = batch(4)
    losses.SAMLoss()(similarity, 10 * relevance)
    check_now()
    losses.TripletHardLoss()(similarity, 10 * relevance)
    with pytest.raises(ValueError, match=r"^`relevance`: expected labels in \[-1, 1\], got values from .* to 10 in"):
        check_now()


def test_shapes_are_refused_at_once():
    with pytest.raises(ValueError, match=r"^`similarity`: expected a square matrix"):
        losses.BCLSLoss()(torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"^`relevance`: .* this loss learns from continuous labels"):
        losses.BCLSLoss()(torch.zeros(2, 2))


def test_only_tensors_of_a_cuda_device_with_triton_are_looked_at_later(monkeypatch):
    monkeypatch.undo()
    assert not values.defers(torch.zeros(2, 2))
    check_now()


class Own(losses.TripletSoftLoss):
    """Somebody's loss that computes in a way of its own, and inherits ``fuses``."""

    def compute(self, batch):
        assert not batch.raw
        return {"triplet": batch.similarity.sum() * batch.relevance.max()}


def test_a_loss_that_computes_on_its_own_gets_values_that_were_looked_at(device):
    similarity, relevance = batch(4)
    assert Own()(similarity, relevance * (1 + 5e-5)) == similarity.sum()  # labels are clamped
    assert len(device) == 1
    spoilt = similarity.clone()
    spoilt[1, 2] = torch.nan
    Own()(spoilt, relevance)
    with pytest.raises(ValueError, match="got nan at row 1, column 2 in an earlier call"):
        check_now()
