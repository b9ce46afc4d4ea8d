import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kendalltau

from bcls.evaluation.graded import coherent_score, one_per_image
from bcls.evaluation.kendall import kendall
from tests.reference.coherent import coherent_score as one_query


def by_query(similarity, relevance, k, tau):
    metrics = {}
    for direction, scores, labels in (("i2t", similarity, relevance), ("t2i", similarity.T, relevance.T)):
        values = np.array([tau(s, r, k) for s, r in zip(scores.tolist(), labels.tolist(), strict=True)])
        kept = values[~np.isnan(values)]
        metrics[f"{direction}_cs{k}"] = kept.mean() if kept.size else math.nan
        metrics[f"{direction}_undefined"] = float(np.isnan(values).sum())
    return metrics


def close(metrics, expected):
    return metrics == pytest.approx(expected, abs=1e-12, nan_ok=True)


@st.composite
def problems(draw):
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 13)))
    few = st.sampled_from([-1.5, -0.0, 0.0, 0.25, 2.0])
    similarity, relevance = (draw(arrays(np.float32, shape, elements=few)) for _ in range(2))
    return similarity, relevance, draw(st.integers(1, min(shape)))


@given(problems())
def test_the_definition_with_ties_everywhere(problem):
    assert close(coherent_score(*problem), by_query(*problem, one_query))


@pytest.mark.parametrize("k", [2, 7, 40])
def test_scipy_on_the_first_k(k):
    def scipy_tau(scores, labels, first):
        top = np.argsort(-np.array(scores), kind="stable")[:first]
        return kendalltau(np.array(scores)[top], np.array(labels)[top]).statistic

    rng = np.random.default_rng(k)
    similarity = rng.standard_normal((40, 60)).astype(np.float32)
    relevance = (similarity + rng.standard_normal((40, 60))).round(1)
    assert close(
        coherent_score(similarity, torch.from_numpy(relevance), k), by_query(similarity, relevance, k, scipy_tau)
    )


def test_the_whole_gallery_is_kendall():
    rng = np.random.default_rng(0)
    similarity, relevance = rng.random((9, 9)), rng.random((9, 9)).round(1)
    whole, plain = coherent_score(similarity, relevance, 9), kendall(similarity, relevance)
    assert whole["i2t_cs9"] == pytest.approx(plain["i2t_tau_b"], abs=1e-12)
    assert whole["t2i_cs9"] == pytest.approx(plain["t2i_tau_b"], abs=1e-12)


def test_queries_without_tau_by_each_policy():
    similarity = np.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    relevance = np.array([[1.0, 0.5, 0.0], [1.0, 1.0, 0.0]])
    skipped = coherent_score(similarity, relevance, 2)
    zero = coherent_score(similarity, relevance, 2, undefined="zero")
    assert (skipped["i2t_cs2"], zero["i2t_cs2"]) == (1.0, 0.5)
    assert skipped["i2t_undefined"] == zero["i2t_undefined"] == 1.0
    # Every caption has the same score with both images.
    assert math.isnan(skipped["t2i_cs2"])
    assert (zero["t2i_cs2"], zero["t2i_undefined"]) == (0.0, 3.0)


def test_one_image_and_constant_scores():
    assert math.isnan(coherent_score(np.ones((1, 1)), np.ones((1, 1)), 1)["i2t_cs1"])
    assert coherent_score(np.ones((3, 3)), np.eye(3), 3)["i2t_undefined"] == 3.0


def test_one_per_image():
    owner = np.array([2, 0, 1, 0, 2, 1])
    assert one_per_image(owner, 3).tolist() == [1, 2, 0]
    assert one_per_image(torch.from_numpy(owner), 3, which=1).tolist() == [3, 5, 4]
    assert one_per_image([0, 0], 1).tolist() == [0]
    five = np.repeat(np.arange(20), 5)
    assert (one_per_image(five, 20) == np.arange(0, 100, 5)).all()
    with pytest.raises(
        ValueError, match=r"`image_of_caption`: expected at least 1 captions per image, got image 1 with 0"
    ):
        one_per_image([0, 0, 2], 3)
    with pytest.raises(ValueError, match=r"at least 2 captions per image, got image 1 with 1 \(2 such images\)"):
        one_per_image([0, 0, 2, 1], 3, which=1)
    with pytest.raises(ValueError, match="`image_of_caption`"):
        one_per_image(3, 3)
    with pytest.raises(ValueError, match="`image_of_caption`: expected numbers or names, all of one kind"):
        one_per_image([[0, 0], [1]], 2)
    with pytest.raises(ValueError, match="`image_of_caption`: expected 0 integers"):
        one_per_image(2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"similarity": np.full((2, 3), np.inf)}, "`similarity`: expected finite numbers, got inf in row 0"),
        ({"relevance": np.zeros((3, 2))}, r"`relevance`.* got \(3, 2\); transpose it"),
        ({"k": 3}, r"`k`: expected at most 2, the smaller gallery of a matrix \(2, 3\), got 3"),
        ({"k": 0}, "`k`"),
        ({"undefined": "drop"}, "`undefined`: expected one of"),
    ],
)
def test_bad_arguments(changes, message):
    arguments = {"similarity": np.zeros((2, 3)), "relevance": np.ones((2, 3)), "k": 2} | changes
    with pytest.raises(ValueError, match=message):
        coherent_score(**arguments)
