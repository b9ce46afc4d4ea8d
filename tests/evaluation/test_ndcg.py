import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import ndcg_score

from bcls.evaluation.graded import ndcg
from tests.reference.ndcg import ndcg as one_query


def by_query(similarity, relevance, k=None):
    metrics = {}
    for name, exponential in (("ndcg", False), ("ndcg_exp", True)):
        for direction, scores, labels in (("i2t", similarity, relevance), ("t2i", similarity.T, relevance.T)):
            pairs = zip(scores.tolist(), labels.tolist(), strict=True)
            values = np.array([one_query(s, r, k, exponential) for s, r in pairs])
            kept = values[~np.isnan(values)]
            metrics[f"{direction}_{name}"] = kept.mean() if kept.size else math.nan
            metrics[f"{direction}_empty"] = float(np.isnan(values).sum())
        metrics[name] = (metrics[f"i2t_{name}"] + metrics[f"t2i_{name}"]) / 2
    return metrics


def close(metrics, expected):
    return metrics == pytest.approx(expected, abs=1e-12, nan_ok=True)


@st.composite
def problems(draw):
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 13)))
    similarity = draw(arrays(np.float32, shape, elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0])))
    labels = st.sampled_from([0.0, 0.25, 1.0]) | st.floats(0, 1, width=32, allow_subnormal=False)
    return similarity, draw(arrays(np.float32, shape, elements=labels))


@given(problems(), st.none() | st.integers(1, 20))
def test_the_definition_with_ties_and_empty_queries(problem, k):
    assert close(ndcg(*problem, k=k), by_query(*problem, k))


def test_the_check_value_of_wray_and_colleagues():
    similarity = np.array([[1.0, 0.7, 0.4, 0.0], [0.3, 0.9, 0.6, 0.1], [0.2, 0.5, 0.8, 0.4]])
    relevance = np.array([[1.0, 0.5, 0.25, 0.0], [0.0, 1.0, 0.4, 0.0], [0.5, 0.3, 1.0, 0.0]])
    metrics = ndcg(similarity, relevance)
    assert metrics["i2t_ndcg"] == pytest.approx(0.9371789900735429, abs=1e-15)
    # The last caption is relevant to no image.
    assert (metrics["i2t_empty"], metrics["t2i_empty"]) == (0.0, 1.0)


@pytest.mark.parametrize("k", [1, 4, 30, 100])
def test_sklearn_where_the_definitions_meet(k):
    rng = np.random.default_rng(k)
    similarity, relevance = rng.standard_normal((12, 30)), rng.random((12, 30))
    metrics = ndcg(similarity, relevance, k=k)
    assert metrics["i2t_ndcg"] == pytest.approx(ndcg_score(relevance, similarity, k=k), abs=1e-12)
    assert metrics["t2i_ndcg"] == pytest.approx(ndcg_score(relevance.T, similarity.T, k=k), abs=1e-12)
    assert metrics["i2t_ndcg_exp"] == pytest.approx(ndcg_score(2**relevance - 1, similarity, k=k), abs=1e-12)
    # All labels are above 0, so that no cut is the whole gallery.
    assert ndcg(similarity, relevance)["i2t_ndcg"] == pytest.approx(ndcg_score(relevance, similarity), abs=1e-12)


@given(problems())
def test_properties(problem):
    similarity, relevance = problem
    metrics = ndcg(similarity, relevance)
    swapped = ndcg(similarity.T, relevance.T)
    assert swapped["i2t_ndcg_exp"] == pytest.approx(metrics["t2i_ndcg_exp"], nan_ok=True)
    assert all(math.isnan(value) or -1e-12 <= value <= 1 + 1e-12 for key, value in metrics.items() if "ndcg" in key)
    perfect = ndcg(relevance, relevance)
    assert all(math.isnan(value) or value == pytest.approx(1) for key, value in perfect.items() if "ndcg" in key)
    assert ndcg(similarity, relevance * 2)["i2t_ndcg"] == pytest.approx(metrics["i2t_ndcg"], nan_ok=True)


def test_negative_labels_by_each_policy():
    rng = np.random.default_rng(0)
    similarity, relevance = rng.random((4, 6)), rng.uniform(-1, 1, (4, 6))
    with pytest.raises(ValueError, match=r'`relevance`: expected labels from 0 .* in row 0; negative="shift"'):
        ndcg(similarity, relevance)
    assert close(ndcg(similarity, relevance, negative="clip"), by_query(similarity, relevance.clip(0)))
    assert close(ndcg(similarity, relevance, negative="shift"), by_query(similarity, (1 + relevance) / 2))
    with pytest.raises(ValueError, match=r"expected labels from -1 to 1000, got -1.5 in row 3"):
        ndcg(similarity, np.where(np.arange(4)[:, None] == 3, -1.5, relevance), negative="shift")


def test_empty_queries_by_each_policy():
    similarity, relevance = np.array([[0.1, 0.2], [0.2, 0.1]]), np.array([[0.0, 1.0], [0.0, 0.0]])
    skipped, zero = ndcg(similarity, relevance), ndcg(similarity, relevance, empty="zero")
    assert (skipped["i2t_ndcg"], zero["i2t_ndcg"]) == (1.0, 0.5)
    assert skipped["i2t_empty"] == zero["i2t_empty"] == 1.0
    assert math.isnan(ndcg(similarity, np.zeros((2, 2)))["ndcg"])
    assert ndcg(similarity, np.zeros((2, 2)), empty="zero")["ndcg"] == 0.0


def test_one_item_and_constant_scores():
    assert ndcg(np.array([[3.0]]), np.array([[0.5]]))["ndcg"] == 1.0
    # With all scores equal the lower index is first.
    assert ndcg(np.zeros((1, 3)), np.array([[1.0, 0.0, 0.0]]))["i2t_ndcg"] == 1.0
    assert ndcg(np.zeros((1, 3)), np.array([[0.0, 0.0, 1.0]]))["i2t_ndcg"] == 0.0


def test_blocks_and_tensors():
    rng = np.random.default_rng(1)
    similarity, relevance = rng.random((70, 1100)).astype(np.float32), rng.random((70, 1100)).round(1)
    metrics = ndcg(torch.from_numpy(similarity).requires_grad_(), torch.from_numpy(relevance), k=10)
    assert close(metrics, by_query(similarity, relevance, 10))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"similarity": np.full((2, 3), np.nan)}, "`similarity`: expected finite numbers, got nan in row 0"),
        ({"relevance": np.zeros((3, 2))}, r"`relevance`: expected the shape .* got \(3, 2\); transpose it"),
        ({"relevance": np.full((2, 3), 2000.0)}, "labels from 0 to 1000, got 2000 in row 0; divide the labels"),
        ({"k": 0}, "`k`"),
        ({"k": 2.5}, "`k`"),
        ({"negative": "abs"}, "`negative`: expected one of"),
        ({"empty": "skp"}, "did you mean 'skip'"),
    ],
)
def test_bad_arguments(changes, message):
    arguments = {"similarity": np.zeros((2, 3)), "relevance": np.ones((2, 3))} | changes
    with pytest.raises(ValueError, match=message):
        ndcg(**arguments)
