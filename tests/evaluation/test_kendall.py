import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kendalltau

from bcls.evaluation.kendall import kendall
from tests.reference.kendall_tau import kendall_tau


def by_query(similarity, relevance, tau):
    """Means over rows and over columns of ``tau(scores, labels) -> (tau_a, tau_b)``, nans left out."""
    figures = {}
    for name, scores, labels in (("i2t", similarity, relevance), ("t2i", similarity.T, relevance.T)):
        values = np.array([tau(s, r) for s, r in zip(scores.tolist(), labels.tolist(), strict=True)])
        for kind, column in zip("ab", values.T, strict=True):
            kept = column[~np.isnan(column)]
            figures[f"{name}_tau_{kind}"] = kept.mean() if kept.size else math.nan
    return figures


def scipy_tau(scores, labels):
    return (0.0, kendalltau(scores, labels).statistic if len(scores) > 1 else math.nan)


def close(figures, expected):
    return figures == pytest.approx(expected, abs=1e-12, nan_ok=True)


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
    figures, expected = kendall(*problem), by_query(*problem, scipy_tau)
    assert close(figures["i2t_tau_b"], expected["i2t_tau_b"])
    assert close(figures["t2i_tau_b"], expected["t2i_tau_b"])


@settings(deadline=None)
@given(problems(np.float32, FEW))
def test_properties(problem):
    similarity, relevance = problem
    figures = kendall(similarity, relevance)
    assert all(math.isnan(value) or -1.0 <= value <= 1.0 for value in figures.values())
    swapped = {key: figures[{"i2t": "t2i", "t2i": "i2t"}[key[:3]] + key[3:]] for key in figures}
    assert close(kendall(similarity.T, relevance.T), swapped)
    assert close(kendall(relevance, similarity), figures)
    assert close(kendall(-similarity, relevance), {key: -value for key, value in figures.items()})
    assert close(kendall(similarity * 4, relevance), figures)


@pytest.mark.parametrize("block", [1, 3 * 700, 10**9])
def test_many_items_in_any_blocks(monkeypatch, block):
    # By way of the function, for `bcls.evaluation.kendall` is the function and not its module.
    monkeypatch.setitem(kendall.__globals__, "_BLOCK", block)
    rng = np.random.default_rng(0)
    similarity = rng.standard_normal((7, 700)).astype(np.float32)
    relevance = (similarity + rng.standard_normal((7, 700))).round(1).astype(np.float32)
    expected = by_query(similarity, relevance, scipy_tau)
    figures = kendall(similarity, relevance)
    assert figures["i2t_tau_b"] == pytest.approx(expected["i2t_tau_b"], abs=1e-12)
    assert figures["t2i_tau_b"] == pytest.approx(expected["t2i_tau_b"], abs=1e-12)
    assert figures["i2t_tau_a"] < figures["i2t_tau_b"]


def test_perfect_and_reversed_order():
    labels = np.random.default_rng(1).random((30, 40))
    assert set(kendall(np.exp(labels), labels).values()) == {1.0}
    assert set(kendall(-labels, labels).values()) == {-1.0}


def test_equal_scores_have_no_tau_b_and_a_tau_a_of_zero():
    similarity, relevance = np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]), np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    figures = kendall(similarity, relevance)
    assert figures["i2t_tau_a"] == 0.5
    assert figures["i2t_tau_b"] == 1.0
    # Each caption has the same label for both images.
    assert figures["t2i_tau_a"] == 0.0
    assert math.isnan(figures["t2i_tau_b"])


def test_equal_scores_are_no_reason_for_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures = kendall(np.zeros((2, 3)), np.arange(6.0).reshape(2, 3))
    assert np.isnan(figures["i2t_tau_b"])


def test_one_item_has_no_tau():
    figures = kendall(np.array([[1.0, 2.0]]), np.array([[0.0, 1.0]]))
    assert figures["i2t_tau_a"] == figures["i2t_tau_b"] == 1.0
    assert math.isnan(figures["t2i_tau_a"])
    assert math.isnan(figures["t2i_tau_b"])
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
