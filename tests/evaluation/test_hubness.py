import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import skew

from bcls.evaluation.hubness import hubness
from tests.reference.hubness import hubness as by_loops


@given(st.data())
def test_the_definition_with_ties(data):
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 12)))
    similarity = data.draw(arrays(np.float32, shape, elements=st.sampled_from([-0.5, 0.0, 0.25])))
    k = data.draw(st.integers(1, min(shape)))
    figures = hubness(similarity, k)
    expected = [*by_loops(similarity.tolist(), k), *by_loops(similarity.T.tolist(), k)]
    assert list(figures.values()) == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_scipys_skewness_and_blocks():
    rng = np.random.default_rng(0)
    similarity = rng.standard_normal((300, 700)) + rng.standard_normal(700)
    first = np.argsort(-similarity, axis=1)[:, :10]
    occurrence = np.bincount(first.ravel(), minlength=700)
    figures = hubness(torch.from_numpy(similarity))
    assert figures["i2t_skew10"] == pytest.approx(skew(occurrence))
    assert figures["i2t_most10"] == occurrence.max()
    assert figures["i2t_skew10"] > 1.0 > figures["t2i_skew10"]


def test_even_occurrences_have_no_skewness():
    figures = hubness(np.eye(4), k=1)
    assert math.isnan(figures["i2t_skew1"])
    assert (figures["i2t_most1"], figures["i2t_never1"]) == (1.0, 0.0)
    assert math.isnan(hubness(np.ones((1, 1)), k=1)["t2i_skew1"])
    assert hubness(np.zeros((5, 5)), k=1)["i2t_most1"] == 5.0


def test_bad_arguments():
    with pytest.raises(ValueError, match="`k`: expected at most 2"):
        hubness(np.zeros((2, 3)), k=3)
    with pytest.raises(ValueError, match="got nan in row 1"):
        hubness(np.array([[0.0], [np.nan]]), k=1)
