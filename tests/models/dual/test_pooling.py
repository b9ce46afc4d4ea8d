"""Pooling of regions and words with lengths."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls.models.dual_heads import GPO, pool
from bcls.models.padded import Padded
from tests.models.dual.reference_gpo import gpo, places


def items(lengths, width=3, seed=0):
    values = torch.randn(len(lengths), max(lengths), width, generator=torch.Generator().manual_seed(seed))
    return Padded(values, torch.tensor(lengths))


def two_way(module):
    """The same recurrent layer in torch's own bidirectional form."""
    gru = torch.nn.GRU(32, 32, batch_first=True, bidirectional=True)
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        getattr(gru, name).data = getattr(module.along, name).data.clone()
        getattr(gru, f"{name}_reverse").data = getattr(module.against, name).data.clone()
    return gru


@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_gpo_is_the_description(lengths, seed):
    torch.manual_seed(seed)
    module, given_items = GPO(), items(lengths, seed=seed)
    fast = given_items.values.clone().requires_grad_()
    slow = given_items.values.clone().requires_grad_()
    pooled = module(Padded(fast, given_items.lengths))
    expected = gpo(slow, given_items.lengths, two_way(module), module.score)
    torch.testing.assert_close(pooled, expected, atol=1e-5, rtol=1e-5)
    weight = torch.randn_like(pooled)
    (pooled * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(fast.grad, slow.grad, atol=1e-5, rtol=1e-5)


def test_gpo_trains_its_weights_as_the_description_does():
    torch.manual_seed(0)
    module, given_items = GPO(), items([3, 5, 1])
    gru = two_way(module)
    module(given_items).pow(2).sum().backward()
    learnt = module.score.weight.grad.clone()
    module.score.weight.grad = None
    gpo(given_items.values, given_items.lengths, gru, module.score).pow(2).sum().backward()
    torch.testing.assert_close(learnt, module.score.weight.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(module.along.weight_hh_l0.grad, gru.weight_hh_l0.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(module.against.weight_hh_l0.grad, gru.weight_hh_l0_reverse.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["mean", "max", "cls", "gpo"])
def test_padding_does_not_matter(kind):
    torch.manual_seed(0)
    module = GPO() if kind == "gpo" else lambda given: pool(kind, given)
    short = items([2, 4, 1])
    filled = torch.cat((short.values, torch.full((3, 3, 3), 77.0)), dim=1)
    for row, length in enumerate(short.lengths.tolist()):
        filled[row, length:] = 77.0
    torch.testing.assert_close(module(Padded(filled, short.lengths)), module(short))


@pytest.mark.parametrize("kind", ["mean", "max", "cls"])
def test_plain_pooling_one_item_at_a_time(kind):
    given = items([2, 4, 1])
    ways = {"mean": lambda rows: rows.mean(0), "max": lambda rows: rows.amax(0), "cls": lambda rows: rows[0]}
    rows = [ways[kind](given.values[row, :length]) for row, length in enumerate(given.lengths.tolist())]
    torch.testing.assert_close(pool(kind, given), torch.stack(rows))


def test_without_lengths_all_entries_count():
    given = items([4, 4])
    for kind in ("mean", "max"):
        torch.testing.assert_close(pool(kind, Padded(given.values)), pool(kind, given))


@pytest.mark.parametrize("kind", ["mean", "max"])
def test_nothing_to_pool_is_zero(kind):
    given = Padded(torch.ones(1, 2, 3, requires_grad=True), torch.tensor([0]))
    pooled = pool(kind, given)
    assert pooled.tolist() == [[0.0] * 3]
    pooled.sum().backward()
    assert given.values.grad.isfinite().all()


def test_half_precision_and_strided_values():
    given = items([3, 2])
    strided = given.values.transpose(1, 2).contiguous().transpose(1, 2)
    module = GPO()
    torch.testing.assert_close(module(Padded(strided, given.lengths)), module(given))
    half = module(Padded(given.values.half(), given.lengths))
    torch.testing.assert_close(half, module(given), atol=2e-3, rtol=2e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(module(given), module(given))
        assert module.weights(given.mask).dtype == torch.float32


def test_one_entry_has_all_the_weight():
    given = items([1, 1])
    torch.testing.assert_close(GPO()(given), given.values[:, 0])


def test_places_differ():
    assert places(30).unique(dim=0).shape[0] == 30
