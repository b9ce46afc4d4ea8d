import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import skew

from bcls.evaluation.hubness import hubness, inverted_softmax, qb_norm, qb_norm_recalls
from bcls.evaluation.recall import recalls
from tests.reference.hubness import hubness as by_loops
from tests.reference.querybank import inverted_softmax as softmax_by_loops
from tests.reference.querybank import qb_norm as norm_by_loops


@given(st.data())
def test_the_definition_with_ties(data):
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 12)))
    similarity = data.draw(arrays(np.float32, shape, elements=st.sampled_from([-0.5, 0.0, 0.25])))
    k = data.draw(st.integers(1, min(shape)))
    metrics = hubness(similarity, k)
    expected = [*by_loops(similarity.tolist(), k), *by_loops(similarity.T.tolist(), k)]
    assert list(metrics.values()) == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_scipys_skewness_and_blocks():
    rng = np.random.default_rng(0)
    similarity = rng.standard_normal((300, 700)) + rng.standard_normal(700)
    first = np.argsort(-similarity, axis=1)[:, :10]
    occurrence = np.bincount(first.ravel(), minlength=700)
    metrics = hubness(torch.from_numpy(similarity))
    assert metrics["i2t_skew10"] == pytest.approx(skew(occurrence))
    assert metrics["i2t_most10"] == occurrence.max()
    assert metrics["i2t_skew10"] > 1.0 > metrics["t2i_skew10"]


def test_even_occurrences_have_no_skewness():
    metrics = hubness(np.eye(4), k=1)
    assert math.isnan(metrics["i2t_skew1"])
    assert (metrics["i2t_most1"], metrics["i2t_never1"]) == (1.0, 0.0)
    assert math.isnan(hubness(np.ones((1, 1)), k=1)["t2i_skew1"])
    assert hubness(np.zeros((5, 5)), k=1)["i2t_most1"] == 5.0


def test_bad_arguments():
    with pytest.raises(ValueError, match="`k`: expected at most 2"):
        hubness(np.zeros((2, 3)), k=3)
    with pytest.raises(ValueError, match="`similarity`: expected a matrix"):
        hubness(np.zeros(3), k=1)
    with pytest.raises(ValueError, match="got nan in row 1"):
        hubness(np.array([[0.0], [np.nan]]), k=1)


VALUES = st.floats(-1, 1).map(lambda value: round(value, 2))


@st.composite
def problems(draw):
    """Queries and a bank in rows, a gallery in columns."""
    items = draw(st.integers(1, 6))
    scores = draw(arrays(np.float64, (draw(st.integers(1, 7)), items), elements=VALUES))
    return scores, draw(arrays(np.float64, (draw(st.integers(1, 7)), items), elements=VALUES))


@given(problems(), st.sampled_from([1.0, 20.0]))
def test_inverted_softmax_is_the_logarithm_of_the_definition(problem, beta):
    scores, bank = problem
    expected = np.log(softmax_by_loops(scores.tolist(), bank.tolist(), beta)) / beta
    assert inverted_softmax(scores, bank, "image", beta=beta) == pytest.approx(expected, abs=1e-9)
    assert inverted_softmax(scores.T, torch.from_numpy(bank.T), "caption", beta=beta) == pytest.approx(
        expected.T, abs=1e-9
    )


@given(problems(), st.integers(1, 3))
def test_qb_norm_changes_queries_whose_first_item_is_a_hub(problem, k):
    scores, bank = problem
    expected, touched = norm_by_loops(scores.tolist(), bank.tolist(), 20.0, k)
    expected = [np.log(row) / 20 if touch else row for row, touch in zip(expected, touched, strict=True)]
    adjusted, which = qb_norm(scores, bank, "image", k=k)
    assert which.tolist() == touched
    assert adjusted == pytest.approx(np.array(expected), abs=1e-9)
    adjusted, which = qb_norm(scores.T, bank.T, "caption", k=k)
    assert which.tolist() == touched
    assert adjusted == pytest.approx(np.array(expected).T, abs=1e-9)


def hubby(seed=0):
    """Images that have their captions, and some captions and images that everybody likes."""
    rng = np.random.default_rng(seed)
    scores = 0.15 * rng.standard_normal((80, 80)) + 0.3 * np.eye(80)
    scores += 0.25 * rng.standard_normal(80) * (rng.random(80) < 0.2)
    return (scores + 0.25 * rng.standard_normal((80, 1)) * (rng.random((80, 1)) < 0.2)).astype(np.float32)


@pytest.mark.parametrize(("dynamic", "name"), [(True, "qbnorm"), (False, "isoftmax")])
def test_normalisation_raises_recalls_and_has_separate_keys(dynamic, name):
    similarity, owner = hubby(), np.arange(80)
    plain = recalls(similarity, owner)
    metrics = qb_norm_recalls(similarity, owner, similarity, similarity, dynamic=dynamic)
    assert metrics[f"{name}_rsum"] > plain["rsum"]
    assert not set(metrics) & set(plain)
    assert metrics[f"{name}_rsum"] == pytest.approx(
        sum(value for key, value in metrics.items() if "_r1" in key or "_r5" in key)
    )
    assert metrics[f"i2t_{name}_share"] == 100.0  # every query of the bank has a first item, and they are the same
    some = qb_norm_recalls(similarity, owner, similarity[:20], similarity[:, :20], dynamic=dynamic)
    assert (some[f"t2i_{name}_share"] < 100.0) is dynamic
    soft = inverted_softmax(similarity, similarity, "caption")
    assert hubness(soft, 5)["t2i_skew5"] < hubness(similarity, 5)["t2i_skew5"]
    assert recalls(soft, owner)["t2i_r1"] >= plain["t2i_r1"]


def test_the_usual_cut_offs():
    metrics = qb_norm_recalls(np.eye(3), [0, 1, 2], np.eye(3), np.eye(3))
    assert [key for key in metrics if key.startswith("i2t_qbnorm_r")] == [f"i2t_qbnorm_r{k}" for k in (1, 5, 10)]


def test_one_item_and_constant_scores():
    adjusted, touched = qb_norm(np.ones((1, 1)), np.ones((1, 1)), "image")
    assert (adjusted.tolist(), touched.tolist()) == ([[0.0]], [True])
    assert len(set(inverted_softmax(np.zeros((3, 4)), np.zeros((2, 4)), "image").ravel())) == 1
    # Very large scores do not overflow.
    assert np.isfinite(inverted_softmax(np.full((2, 2), 1e30), np.full((3, 2), 1e30), "image")).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bank": np.zeros((3, 5))}, r"`bank`: expected shape \(2, B\), the gallery of `similarity`, got \(3, 5\)"),
        ({"bank": np.zeros((3, 5)), "query": "image"}, r"`bank`: expected shape \(B, 4\)"),
        ({"bank": np.full((2, 5), np.nan)}, "`bank`: expected finite numbers, got nan in row 0"),
        ({"similarity": np.full((2, 4), np.inf)}, "`similarity`: expected finite numbers"),
        ({"similarity": np.zeros(4)}, r"`similarity`: expected a matrix \(images, captions\), got shape \(4,\)"),
        ({"bank": np.zeros((2, 0))}, "`bank`: expected"),
        ({"query": "text"}, "`query`: expected one of 'caption', 'image'"),
        ({"beta": 0}, "`beta`"),
    ],
)
def test_bad_arguments_querybank(changes, message):
    arguments = {"similarity": np.zeros((2, 4)), "bank": np.zeros((2, 5)), "query": "caption"} | changes
    for function in (inverted_softmax, qb_norm):
        with pytest.raises(ValueError, match=message):
            function(**arguments)
