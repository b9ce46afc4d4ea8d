import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bcls.evaluation.hubness import hubness, inverted_softmax, qb_norm, qb_norm_recalls
from bcls.evaluation.recall import recalls
from tests.reference.querybank import inverted_softmax as softmax_by_loops
from tests.reference.querybank import qb_norm as norm_by_loops

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
def test_qb_norm_touches_the_queries_that_a_hub_would_win(problem, k):
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
def test_hubs_lose_and_recalls_gain_under_their_own_names(dynamic, name):
    similarity, owner = hubby(), np.arange(80)
    plain = recalls(similarity, owner)
    figures = qb_norm_recalls(similarity, owner, similarity, similarity, dynamic=dynamic)
    assert figures[f"{name}_rsum"] > plain["rsum"]
    assert not set(figures) & set(plain)
    assert figures[f"{name}_rsum"] == pytest.approx(
        sum(value for key, value in figures.items() if "_r1" in key or "_r5" in key)
    )
    assert figures[f"i2t_{name}_share"] == 100.0  # every query of the bank has a first item, and they are the same
    some = qb_norm_recalls(similarity, owner, similarity[:20], similarity[:, :20], dynamic=dynamic)
    assert (some[f"t2i_{name}_share"] < 100.0) is dynamic
    soft = inverted_softmax(similarity, similarity, "caption")
    assert hubness(soft, 5)["t2i_skew5"] < hubness(similarity, 5)["t2i_skew5"]
    assert recalls(soft, owner)["t2i_r1"] >= plain["t2i_r1"]


def test_the_usual_cut_offs():
    figures = qb_norm_recalls(np.eye(3), [0, 1, 2], np.eye(3), np.eye(3))
    assert [key for key in figures if key.startswith("i2t_qbnorm_r")] == [f"i2t_qbnorm_r{k}" for k in (1, 5, 10)]


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
        ({"query": "text"}, "`query`: expected one of 'caption', 'image'"),
        ({"beta": 0}, "`beta`"),
    ],
)
def test_bad_arguments(changes, message):
    arguments = {"similarity": np.zeros((2, 4)), "bank": np.zeros((2, 5)), "query": "caption"} | changes
    for function in (inverted_softmax, qb_norm):
        with pytest.raises(ValueError, match=message):
            function(**arguments)
