"""Kendall's tau: the definition, scipy, and equal counts on the CPU and on a device."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kendalltau

from bcls.evaluation import inputs as _inputs
from bcls.evaluation.kendall import concordance_on_device, count_inversions, inversions, kendall
from tests.reference.kendall_tau import kendall_tau


def by_query(similarity, relevance, tau):
    """Means over rows and over columns of ``tau(scores, labels) -> (tau_a, tau_b)``, nans left out."""
    metrics = {}
    for name, scores, labels in (("i2t", similarity, relevance), ("t2i", similarity.T, relevance.T)):
        values = np.array([tau(s, r) for s, r in zip(scores.tolist(), labels.tolist(), strict=True)])
        for kind, column in zip("ab", values.T, strict=True):
            kept = column[~np.isnan(column)]
            metrics[f"{name}_tau_{kind}"] = kept.mean() if kept.size else math.nan
    return metrics


def scipy_tau(scores, labels):
    return (0.0, kendalltau(scores, labels).statistic if len(scores) > 1 else math.nan)


def close(metrics, expected):
    return metrics == pytest.approx(expected, abs=1e-12, nan_ok=True)


SHAPES = st.tuples(st.integers(1, 11), st.integers(1, 19))


@st.composite
def problems(draw, dtype, elements):
    shape = draw(SHAPES)
    return tuple(draw(arrays(dtype, shape, elements=elements)) for _ in range(2))


FEW = st.sampled_from([-1.5, -0.0, 0.0, 0.25, 2.0])


@settings(deadline=None)
@given(problems(np.float32, FEW))
def test_the_definition_with_ties_everywhere(problem):
    assert close(kendall(*problem), by_query(*problem, kendall_tau))


@settings(deadline=None)
@given(problems(np.float64, st.floats(allow_nan=False, allow_infinity=False) | FEW))
def test_the_definition_over_the_whole_range_of_float64(problem):
    assert close(kendall(*problem), by_query(*problem, kendall_tau))


@settings(deadline=None)
@given(problems(np.float32, st.floats(width=32, allow_nan=False, allow_infinity=False) | FEW))
def test_tau_b_is_scipys(problem):
    metrics, expected = kendall(*problem), by_query(*problem, scipy_tau)
    assert close(metrics["i2t_tau_b"], expected["i2t_tau_b"])
    assert close(metrics["t2i_tau_b"], expected["t2i_tau_b"])


@settings(deadline=None)
@given(problems(np.float32, FEW))
def test_properties(problem):
    similarity, relevance = problem
    metrics = kendall(similarity, relevance)
    assert all(math.isnan(value) or -1.0 <= value <= 1.0 for value in metrics.values())
    swapped = {key: metrics[{"i2t": "t2i", "t2i": "i2t"}[key[:3]] + key[3:]] for key in metrics}
    assert close(kendall(similarity.T, relevance.T), swapped)
    assert close(kendall(relevance, similarity), metrics)
    assert close(kendall(-similarity, relevance), {key: -value for key, value in metrics.items()})
    assert close(kendall(similarity * 4, relevance), metrics)


@pytest.mark.parametrize("block", [1, 3 * 700, 10**9])
def test_many_items_in_any_blocks(monkeypatch, block):
    # By way of the function, for `bcls.evaluation.kendall` is the function and not its module.
    monkeypatch.setitem(kendall.__globals__, "_BLOCK", block)
    rng = np.random.default_rng(0)
    similarity = rng.standard_normal((7, 700)).astype(np.float32)
    relevance = (similarity + rng.standard_normal((7, 700))).round(1).astype(np.float32)
    expected = by_query(similarity, relevance, scipy_tau)
    metrics = kendall(similarity, relevance)
    assert metrics["i2t_tau_b"] == pytest.approx(expected["i2t_tau_b"], abs=1e-12)
    assert metrics["t2i_tau_b"] == pytest.approx(expected["t2i_tau_b"], abs=1e-12)
    assert metrics["i2t_tau_a"] < metrics["i2t_tau_b"]


def test_perfect_and_reversed_order():
    labels = np.random.default_rng(1).random((30, 40))
    assert set(kendall(np.exp(labels), labels).values()) == {1.0}
    assert set(kendall(-labels, labels).values()) == {-1.0}


def test_equal_scores_have_no_tau_b_and_a_tau_a_of_zero():
    similarity, relevance = np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]), np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    metrics = kendall(similarity, relevance)
    assert metrics["i2t_tau_a"] == 0.5
    assert metrics["i2t_tau_b"] == 1.0
    # Each caption has the same label for both images.
    assert metrics["t2i_tau_a"] == 0.0
    assert math.isnan(metrics["t2i_tau_b"])


def test_equal_scores_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics = kendall(np.zeros((2, 3)), np.arange(6.0).reshape(2, 3))
    assert np.isnan(metrics["i2t_tau_b"])


def test_one_item_has_no_tau():
    metrics = kendall(np.array([[1.0, 2.0]]), np.array([[0.0, 1.0]]))
    assert metrics["i2t_tau_a"] == metrics["i2t_tau_b"] == 1.0
    assert math.isnan(metrics["t2i_tau_a"])
    assert math.isnan(metrics["t2i_tau_b"])
    assert all(math.isnan(value) for value in kendall(np.ones((1, 1)), np.ones((1, 1))).values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32])
def test_tensors_of_every_dtype_not_contiguous(dtype):
    generator = torch.Generator().manual_seed(0)
    similarity = (torch.randn(20, 18, generator=generator) * 5).to(dtype).T[::2]
    relevance = torch.randn(9, 20, generator=generator)
    expected = by_query(similarity.double().numpy(), relevance.double().numpy(), kendall_tau)
    assert close(kendall(similarity, relevance.requires_grad_()), expected)


def test_float16_arrays_and_a_mix_of_kinds():
    rng = np.random.default_rng(2)
    similarity, relevance = rng.random((5, 9)).astype(np.float16), rng.integers(0, 3, (5, 9))
    expected = by_query(similarity.astype(float), relevance.astype(float), kendall_tau)
    assert close(kendall(similarity, torch.from_numpy(relevance)), expected)


def test_bad_input():
    good, bad = np.zeros((3, 4)), np.zeros((3, 4))
    bad[1, 2] = np.nan
    with pytest.raises(ValueError, match="`relevance`: expected finite numbers, got nan in row 1"):
        kendall(good, bad)
    with pytest.raises(ValueError, match="`similarity`: expected finite numbers, got nan in row 1"):
        kendall(torch.from_numpy(bad), good)
    with pytest.raises(ValueError, match=r"`relevance`: expected the shape of `similarity`, \(3, 4\), got \(4, 3\)"):
        kendall(good, good.T)
    with pytest.raises(ValueError, match=r"`relevance`.*NoneType"):
        kendall(good, None)
    with pytest.raises(ValueError, match="`similarity`"):
        kendall(np.zeros((3, 0)), np.zeros((3, 0)))


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
    counts = concordance_on_device(torch.from_numpy(scores), torch.from_numpy(labels))
    assert [one.tolist() for one in counts] == by_definition(scores.astype(float), labels.astype(float))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block", [1, 3 * 90, 1 << 24])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "u1", ">f4"])
def test_both_directions_equal_the_path_for_arrays(monkeypatch, device, block, dtype):
    rng = np.random.default_rng(0)
    similarity = rng.standard_normal((17, 90)).astype(np.float32)
    relevance = (40 + 8 * (similarity + rng.standard_normal((17, 90)))).clip(0, 99).round().astype(dtype)
    relevance.flags.writeable = False
    seen = set()

    def counted(scores, labels):
        seen.update((scores.device.type, labels.device.type))
        return concordance_on_device(scores, labels)

    expected = kendall(similarity, relevance)
    # As if the tensor lay on a GPU: `kendall` then counts through this path, and nothing else changes.
    monkeypatch.setitem(kendall.__globals__, "concordance_on_device", counted)
    monkeypatch.setitem(kendall.__globals__, "_DEVICE_BLOCK", block)
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", (device,))
    assert kendall(torch.from_numpy(similarity).to(device), relevance) == expected
    assert seen == {device}


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_views_and_gradients(monkeypatch, device):
    generator = torch.Generator().manual_seed(0)
    similarity = torch.randn(20, 18, generator=generator).bfloat16().T[::2]
    relevance = torch.randint(0, 4, (9, 20), generator=generator).float().requires_grad_()
    counts = []

    def counted(scores, labels):
        counts.append(concordance_on_device(scores, labels))
        return counts[-1]

    monkeypatch.setitem(kendall.__globals__, "concordance_on_device", counted)
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", (device,))
    kendall(similarity.to(device), relevance)
    scores, labels = similarity.double().numpy(), relevance.detach().double().numpy()
    i2t, t2i = ([one.tolist() for one in three] for three in counts)
    assert i2t == by_definition(scores, labels)
    assert t2i == by_definition(scores.T, labels.T)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1)])
def test_one_item(monkeypatch, shape):
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", ("cpu",))
    scores = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    there = kendall(torch.from_numpy(scores), scores)
    np.testing.assert_equal(there, kendall(scores, scores))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_the_first_bad_row_is_named(monkeypatch, value, block):
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", ("cpu",))
    monkeypatch.setitem(kendall.__globals__, "_DEVICE_BLOCK", block)
    good, bad = torch.zeros(5, 4), torch.zeros(5, 4)
    bad[2, 1] = bad[4, 0] = value
    with pytest.raises(ValueError, match=f"`similarity`: expected finite numbers, got {value} in row 2"):
        kendall(bad, good)
    with pytest.raises(ValueError, match=f"`relevance`: expected finite numbers, got {value} in row 2"):
        kendall(good, bad.numpy())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32])
def test_no_order_is_lost_to_rounding(monkeypatch, device, dtype):
    """Neighbors that float32 would make equal."""
    scores = (2**24 + torch.arange(4)).to(dtype)
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", (device,))
    metrics = kendall(scores[None].to(device), torch.arange(4.0)[None])
    assert (metrics["i2t_tau_a"], metrics["i2t_tau_b"]) == (1.0, 1.0)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 24, 25, 31, 33, 63, 64, 65, 72, 73, 130, 257])
def test_every_way_that_runs_can_be_left_over(length):
    rng = np.random.default_rng(length)
    rows = np.stack([rng.permutation(length) for _ in range(4)] + [np.arange(length), np.arange(length)[::-1]])
    expected = [np.triu(row[:, None] > row[None, :]).sum() for row in rows]
    before = rows.astype(np.int32)
    counts = count_inversions(before)
    assert counts.tolist() == expected
    assert (before == rows).all()
