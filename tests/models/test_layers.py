"""Layers: batch norm with padding, safe normalisation, pooling."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls.models.layers import GPO, Padded, cosine, masked_batch_norm, pool, unit
from tests.reference.gpo import gpo, positions


def norm(features):
    batch_norm = torch.nn.BatchNorm1d(features).double()
    torch.nn.init.normal_(batch_norm.weight)
    torch.nn.init.normal_(batch_norm.bias)
    batch_norm.running_mean.normal_()
    batch_norm.running_var.uniform_(0.5, 2)
    return batch_norm


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


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_equals_the_authors_formula(dim):
    values = torch.randn(4, 5, 6, dtype=torch.float64, requires_grad=True)
    plain = values / (values.pow(2).sum(dim, keepdim=True).sqrt() + 1e-8)
    torch.testing.assert_close(unit(values, dim), plain)
    weights = torch.randn_like(plain)
    (ours,) = torch.autograd.grad((unit(values, dim) * weights).sum(), values)
    (expected,) = torch.autograd.grad((plain * weights).sum(), values)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zero_stays_zero_without_gradient(dtype):
    values = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=dtype, requires_grad=True)
    done = unit(values)
    done.sum().backward()
    assert done.dtype == dtype
    assert done[0].tolist() == [0.0, 0.0]
    assert values.grad[0].tolist() == [0.0, 0.0]
    assert values.grad.isfinite().all()


def test_half_precision_does_not_overflow():
    values = torch.full((1, 4), 60_000.0, dtype=torch.float16)
    torch.testing.assert_close(unit(values), torch.full((1, 4), 0.5, dtype=torch.float16))


def test_short_vectors_in_half_precision_are_finite():
    values = torch.full((1, 4), 6e-7, dtype=torch.float16)
    assert unit(values).dtype == torch.float16
    torch.testing.assert_close(unit(values), torch.full((1, 4), 0.5, dtype=torch.float16), atol=1e-2, rtol=0)


def test_cosine_equals_torch():
    images, texts = torch.randn(3, 5), torch.randn(4, 5)
    expected = torch.nn.functional.cosine_similarity(images[:, None], texts[None], dim=-1)
    torch.testing.assert_close(cosine(images, texts), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cosine_is_exact_under_autocast(dtype):
    images, texts = torch.randn(3, 5).to(dtype), torch.randn(4, 5).to(dtype)
    expected = cosine(images.double(), texts.double()).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = cosine(images, texts)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)


def test_shapes_must_fit():
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 4\)"):
        cosine(torch.zeros(2, 3), torch.zeros(2, 4))


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
def test_gpo_equals_the_reference(lengths, seed):
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
    assert positions(30).unique(dim=0).shape[0] == 30
