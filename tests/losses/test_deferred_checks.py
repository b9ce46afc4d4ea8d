"""Losses on a device that checks the values later, with plain torch in place of the device."""

import pytest
import torch

from bcls import losses
from bcls.losses import backends, base, check_now, definitions, fused, kendall
from bcls.losses._torch.engine import TorchEngine
from bcls.losses.backends import defers_checks
from tests.losses.factories import assert_same, batch, check_plainly, plain, step

LOSSES = [
    losses.BCLSLoss(),
    losses.BCLSLoss(binary=losses.TripletHardLoss()),
    losses.KendallWindowLoss(),
    losses.KendallWindowLoss(beta=0),
    losses.KendallLoss(normalize="active"),
    losses.TripletSoftLoss(),
    losses.TripletHardLoss(),
    losses.from_name("infonce+kendall-sw-hs"),
]


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """A device that checks values later; the matrices that it was asked to check."""
    checked = []

    class Device(TorchEngine):
        def check_values(self, similarity, relevance, *, bounded=True):
            checked.append(similarity)
            check_plainly(similarity, relevance, bounded=bounded)

    monkeypatch.setattr(base, "defers_checks", backends.kernels_allowed)
    monkeypatch.setattr(definitions, "_REPORTS", {})
    monkeypatch.setattr(backends, "triton_runs_on", lambda device: True)
    for module in (base, fused, kendall):
        monkeypatch.setattr(module, "engine_for", Device)
    return checked


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_value_and_gradient_are_those_of_the_plain_path(loss, device):
    similarity, relevance = batch(9)
    rounded = relevance * (1 + 5e-5)  # to be clamped
    deferred = step(lambda scores: loss(scores, rounded), similarity)
    assert device  # each part with a kernel checks the values again
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


def test_wrong_shapes_raise_immediately():
    with pytest.raises(ValueError, match=r"^`similarity`: expected a square matrix"):
        losses.BCLSLoss()(torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"^`relevance`: .* this loss learns from continuous labels"):
        losses.BCLSLoss()(torch.zeros(2, 2))


def test_only_tensors_of_a_cuda_device_with_triton_are_checked_later(monkeypatch):
    monkeypatch.undo()
    assert not defers_checks(torch.zeros(2, 2))
    check_now()


def test_losses_without_a_kernel_do_not_fuse():
    checked = base.check_batch(*batch(4))
    assert losses.TripletSoftLoss().fuses(checked)
    for loss in (losses.TripletHardLoss(), losses.KendallLoss(), losses.KendallWindowLoss(beta=0)):
        assert not loss.fuses(checked)


class Own(losses.TripletSoftLoss):
    """A loss that overrides ``compute`` and inherits ``fuses``."""

    def compute(self, batch):
        assert not batch.raw
        return {"triplet": batch.similarity.sum() * batch.relevance.max()}


def test_a_loss_with_its_own_computation_gets_checked_values(device):
    similarity, relevance = batch(4)
    assert Own()(similarity, relevance * (1 + 5e-5)) == similarity.sum()  # labels are clamped
    assert len(device) == 1
    spoilt = similarity.clone()
    spoilt[1, 2] = torch.nan
    Own()(spoilt, relevance)
    with pytest.raises(ValueError, match="got nan at row 1, column 2 in an earlier call"):
        check_now()
