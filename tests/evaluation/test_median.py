import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bcls.evaluation.recall import median_rank, query_ranks, recalls, recalls_from_ranks, shares_within


def sorted_ranks(similarity, owner):
    """Ranks from whole sorted rows and columns."""
    i2t, t2i = [], []
    for image, row in enumerate(similarity):
        order = np.argsort(-row, kind="stable").tolist()
        places = [order.index(caption) + 1 for caption, one in enumerate(owner) if one == image]
        i2t.append(min(places, default=0))
    for caption, column in enumerate(similarity.T):
        t2i.append(np.argsort(-column, kind="stable").tolist().index(owner[caption]) + 1)
    return i2t, t2i


@st.composite
def problems(draw):
    images, captions = draw(st.integers(1, 9)), draw(st.integers(1, 14))
    similarity = draw(arrays(np.float32, (images, captions), elements=st.sampled_from([-0.5, 0.0, 0.25])))
    return similarity, draw(st.lists(st.integers(0, images - 1), min_size=captions, max_size=captions))


@given(problems())
def test_ranks_are_those_of_sorted_lists(problem):
    similarity, owner = problem
    ranks, expected = query_ranks(similarity, owner), sorted_ranks(similarity, owner)
    assert (ranks.i2t.tolist(), ranks.t2i.tolist()) == expected
    asked = [rank for rank in expected[0] if rank]
    figures = median_rank(similarity, owner)
    assert figures["i2t_median_rank"] == np.floor(np.median(asked))
    assert figures["t2i_mean_rank"] == pytest.approx(np.mean(expected[1]))
    # Recalls are made of the same ranks.
    assert recalls(similarity, owner, ks=(2,))["t2i_r2"] == pytest.approx(100 * np.mean(ranks.t2i <= 2))


def test_one_image_and_constant_scores():
    assert set(median_rank(np.zeros((1, 1)), [0]).values()) == {1.0}
    assert query_ranks(np.zeros((2, 4)), [0, 0, 1, 1]).i2t.tolist() == [1, 3]


def test_bad_arguments():
    with pytest.raises(ValueError, match="got nan in row 1"):
        median_rank(np.array([[0.0, 1.0], [np.nan, 0.0]]), [0, 1])
    with pytest.raises(ValueError, match="`image_of_caption`"):
        median_rank(np.zeros((2, 2)), [0, 2])


def test_the_median_is_rounded_down():
    # Ranks 2 and 4.
    assert median_rank(np.array([[3.0, 4, 2, 1], [4, 3, 2, 1]]).T, [0, 3])["t2i_median_rank"] == 3.0
    # Ranks 1 and 4.
    assert median_rank(np.array([[3.0, 4, 2, 1], [4, 3, 2, 1]]).T, [1, 3])["t2i_median_rank"] == 2.0


def test_recalls_from_ranks_are_those_from_scores():
    similarity, owner = np.random.default_rng(0).random((6, 9)), [0, 0, 1, 2, 2, 2, 4, 5, 5]
    assert recalls_from_ranks([query_ranks(similarity, owner)], (1, 3)) == recalls(similarity, owner, ks=(1, 3))
    assert np.isnan(shares_within(np.array([0]), (1,))[1])
