"""Batch norm with padding: torch's own where nothing is padded, and blind to the padding elsewhere."""

import pytest
import torch

from bcls.models.cross_attention import masked_batch_norm


def norm(features):
    made = torch.nn.BatchNorm1d(features).double()
    torch.nn.init.normal_(made.weight)
    torch.nn.init.normal_(made.bias)
    made.running_mean.normal_()
    made.running_var.uniform_(0.5, 2)
    return made


def copy_of(one):
    other = torch.nn.BatchNorm1d(one.num_features).double()
    other.load_state_dict(one.state_dict())
    return other.train(one.training)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("training", [False, True])
def test_a_full_mask_is_no_mask(axis, training):
    torch.manual_seed(0)
    values = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    first = norm(values.shape[axis]).train(training)
    second = copy_of(first)
    plain = masked_batch_norm(values, None, first, axis=axis)
    masked = masked_batch_norm(values, torch.ones(3, 4, dtype=torch.bool), second, axis=axis)
    torch.testing.assert_close(masked, plain)
    weights = torch.randn_like(plain)
    (one,) = torch.autograd.grad((plain * weights).sum(), values)
    (other,) = torch.autograd.grad((masked * weights).sum(), values)
    torch.testing.assert_close(other, one)
    for name, buffer in first.named_buffers():
        torch.testing.assert_close(dict(second.named_buffers())[name], buffer)


@pytest.mark.parametrize("axis", [1, 2])
def test_padding_takes_no_part(axis):
    torch.manual_seed(0)
    values = torch.randn(3, 4, 5, dtype=torch.float64)
    mask = torch.arange(4) < torch.tensor([4, 2, 3])[:, None]
    other = torch.where(mask[..., None], values, 100.0)
    first = norm(values.shape[axis])
    second = copy_of(first)
    done, again = masked_batch_norm(values, mask, first, axis=axis), masked_batch_norm(other, mask, second, axis=axis)
    torch.testing.assert_close(done[mask], again[mask])
    torch.testing.assert_close(first.running_var, second.running_var)


def test_fewer_places_than_the_norm_has():
    first = norm(6).eval()
    values = torch.randn(2, 4, 5, dtype=torch.float64)
    wider = torch.cat([values, torch.zeros(2, 2, 5, dtype=torch.float64)], 1)
    torch.testing.assert_close(
        masked_batch_norm(values, None, first, axis=1), masked_batch_norm(wider, None, first, axis=1)[:, :4]
    )


def test_one_value_uses_and_keeps_the_running_ones():
    first = norm(5)
    before = {name: one.clone() for name, one in first.named_buffers() if "running" in name}
    values = torch.randn(1, 1, 5, dtype=torch.float64)
    expected = masked_batch_norm(values, None, copy_of(first).eval(), axis=2)
    torch.testing.assert_close(masked_batch_norm(values, None, first, axis=2), expected)
    for name, one in before.items():
        assert torch.equal(dict(first.named_buffers())[name], one)
