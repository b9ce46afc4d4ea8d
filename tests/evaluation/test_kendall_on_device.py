"""The path for GPUs, on whatever device there is: its counts equal those of the path for arrays exactly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bcls.evaluation import inputs as _inputs
from bcls.evaluation.kendall import count_inversions, counts_on_device, inversions, kendall, pair_counts

FEW = st.sampled_from([-1.5, -0.0, 0.0, 0.25, 2.0])
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def by_definition(scores, labels):
    """Net, equal scores and equal labels of each row, by looking at every pair."""
    order, truth = (np.sign(one[:, :, None] - one[:, None, :]) for one in (scores, labels))
    upper = np.triu(np.ones(order.shape[1:]), 1)
    return [(one * upper).sum(axis=(1, 2)).astype(int).tolist() for one in (order * truth, order == 0, truth == 0)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 64, 65, 257, 1000])
def test_inversions_of_every_length(length, device):
    rng = np.random.default_rng(length)
    rows = np.stack([rng.permutation(length) for _ in range(4)] + [np.arange(length), np.arange(length)[::-1]])
    rows = rows.astype(np.int32)
    before = torch.from_numpy(rows.copy()).to(device)
    assert inversions(before).tolist() == count_inversions(rows).tolist()
    assert (before.cpu().numpy() == rows).all()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_counts_by_the_definition(data):
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 14)))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    width = 8 * np.dtype(dtype).itemsize
    values = FEW | st.floats(-(2.0**99), 2.0**99, width=width)
    scores, labels = (data.draw(arrays(dtype, shape, elements=values)) for _ in range(2))
    counts = pair_counts(torch.from_numpy(scores), torch.from_numpy(labels))
    assert [one.tolist() for one in counts] == by_definition(scores.astype(float), labels.astype(float))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block", [1, 3 * 90, 1 << 24])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "u1", ">f4"])
def test_both_directions_equal_the_path_for_arrays(monkeypatch, device, block, dtype):
    rng = np.random.default_rng(0)
    similarity = rng.standard_normal((17, 90)).astype(np.float32)
    relevance = (40 + 8 * (similarity + rng.standard_normal((17, 90)))).clip(0, 99).round().astype(dtype)
    relevance.flags.writeable = False
    seen = []

    def counted(scores, labels):
        seen.append(scores.device.type)
        return counts_on_device(scores, labels, block)

    expected = kendall(similarity, relevance)
    # As if the tensor lay on a GPU: `kendall` then counts through this path, and nothing else changes.
    monkeypatch.setitem(kendall.__globals__, "counts_on_device", counted)
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", (device,))
    assert kendall(torch.from_numpy(similarity).to(device), relevance) == expected
    assert seen == [device]


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_views_and_gradients(device):
    generator = torch.Generator().manual_seed(0)
    similarity = torch.randn(20, 18, generator=generator).bfloat16().T[::2]
    relevance = torch.randint(0, 4, (9, 20), generator=generator).float().requires_grad_()
    i2t, t2i = counts_on_device(similarity.to(device), relevance)
    scores, labels = similarity.double().numpy(), relevance.detach().double().numpy()
    assert i2t.tolist() == by_definition(scores, labels)
    assert t2i.tolist() == by_definition(scores.T, labels.T)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1)])
def test_one_item(monkeypatch, shape):
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", ("cpu",))
    scores = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    there = kendall(torch.from_numpy(scores), scores)
    np.testing.assert_equal(there, kendall(scores, scores))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_the_first_bad_row_is_named(value, block):
    good, bad = torch.zeros(5, 4), torch.zeros(5, 4)
    bad[2, 1] = bad[4, 0] = value
    with pytest.raises(ValueError, match=f"`similarity`: expected finite numbers, got {value} in row 2"):
        counts_on_device(bad, good, block)
    with pytest.raises(ValueError, match=f"`relevance`: expected finite numbers, got {value} in row 2"):
        counts_on_device(good, bad.numpy(), block)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32])
def test_no_order_is_lost_to_rounding(device, dtype):
    """Neighbours that float32 would make equal."""
    scores = (2**24 + torch.arange(4)).to(dtype)
    i2t, _ = counts_on_device(scores[None].to(device), torch.arange(4.0)[None])
    assert i2t.ravel().tolist() == [6, 0, 0]
