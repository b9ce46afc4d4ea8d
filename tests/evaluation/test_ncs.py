import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bcls.evaluation.graded import ncs
from tests.reference.ncs import ncs as one_query


def by_query(similarity, metric, owner, ks, include_gold=False):
    owner, metrics = np.asarray(owner), {}
    for k in ks:
        rows = [
            one_query(s, m, set() if include_gold else set(np.flatnonzero(owner == i).tolist()), k)
            for i, (s, m) in enumerate(zip(similarity.tolist(), metric.tolist(), strict=True))
        ]
        columns = [
            one_query(s, m, set() if include_gold else {int(owner[j])}, k)
            for j, (s, m) in enumerate(zip(similarity.T.tolist(), metric.T.tolist(), strict=True))
        ]
        for direction, values in (("i2t", rows), ("t2i", columns)):
            kept = [value for value in values if not math.isnan(value)]
            metrics[f"{direction}_ncs{k}"] = sum(kept) / len(kept) if kept else math.nan
    return metrics


def close(metrics, expected):
    return metrics == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


@st.composite
def problems(draw):
    images, captions = draw(st.integers(1, 7)), draw(st.integers(1, 12))
    shape = (images, captions)
    similarity = draw(arrays(np.float32, shape, elements=st.sampled_from([-1.0, 0.0, 0.5])))
    metric = draw(arrays(np.float32, shape, elements=st.sampled_from([0.0, 0.0, 0.5, 2.0, 10.0])))
    return similarity, metric, draw(st.lists(st.integers(0, images - 1), min_size=captions, max_size=captions))


@given(problems(), st.booleans())
def test_the_definition_with_ties_and_uneven_captions(problem, include_gold):
    expected = by_query(*problem, (1, 2, 30), include_gold)
    assert close(ncs(*problem, ks=(1, 2, 30), include_gold=include_gold), expected)


def test_ranking_by_the_metric_scores_100():
    metric = np.random.default_rng(0).random((12, 60)) + 0.1
    metrics = ncs(metric, torch.from_numpy(metric), np.repeat(np.arange(12), 5))
    assert list(metrics)[:2] == ["i2t_ncs1", "i2t_ncs5"]
    assert all(value == pytest.approx(100.0, abs=1e-6) for value in metrics.values())


def test_gold_items_count_with_include_gold_only():
    similarity = np.array([[5.0, 1.0, 2.0], [0.0, 5.0, 1.0], [0.0, 1.0, 5.0]])
    metric = np.array([[10.0, 1.0, 2.0], [0.0, 10.0, 4.0], [0.0, 3.0, 10.0]])
    owner = [0, 1, 2]
    assert ncs(similarity, metric, owner, ks=(1,), include_gold=True)["i2t_ncs1"] == pytest.approx(100.0)
    low = metric.copy()
    low[0, 2] = 0.5
    assert ncs(similarity, low, owner, ks=(1,))["i2t_ncs1"] == pytest.approx((50 + 100 + 100) / 3)


def test_one_image_has_nothing_beyond_its_own():
    metrics = ncs(np.ones((1, 3)), np.ones((1, 3)), [0, 0, 0], ks=(1,))
    assert math.isnan(metrics["i2t_ncs1"])
    assert math.isnan(metrics["t2i_ncs1"])
    assert ncs(np.ones((1, 1)), np.ones((1, 1)), [0], ks=(5,), include_gold=True)["t2i_ncs5"] == pytest.approx(100.0)


def test_the_usual_cut_offs():
    metrics = ncs(np.eye(2), np.ones((2, 2)), [0, 1])
    assert list(metrics) == [f"{side}_ncs{k}" for side in ("i2t", "t2i") for k in (1, 5, 10, 20, 30)]


def test_a_gallery_of_value_zero_scores_zero():
    assert ncs(np.eye(3), np.zeros((3, 3)), [0, 1, 2], ks=(2,)) == {"i2t_ncs2": 0.0, "t2i_ncs2": 0.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": np.zeros((4, 2))}, r"`metric`: expected the shape of `similarity`.*transpose it"),
        (
            {"metric": np.array([[0.0] * 4, [0.0, -1.0, 0.0, 0.0]])},
            "`metric`: expected values not below 0, got -1 in row 1",
        ),
        ({"metric": np.full((2, 4), np.nan)}, "`metric`: expected finite numbers, got nan in row 0"),
        ({"image_of_caption": [0, 0, 1]}, "`image_of_caption`"),
        ({"ks": (0,)}, "`ks`"),
    ],
)
def test_bad_arguments(changes, message):
    arguments = {"similarity": np.zeros((2, 4)), "metric": np.ones((2, 4)), "image_of_caption": [0, 0, 1, 1]} | changes
    with pytest.raises(ValueError, match=message):
        ncs(**arguments)
