"""Which queries are shown, and what stands first for them."""

import numpy as np
import pytest

from bcls.evaluation.pages import SHOWN, hardest, most_different, ranking
from bcls.evaluation.recall import QueryRanks, query_ranks
from tests.evaluation.factories import make_scores

OWNER = np.repeat(np.arange(40), 3)
SCORES = make_scores(images=40, each=3, bonus=0.5)
RANKS = query_ranks(SCORES, OWNER)


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_the_hardest_have_the_worst_ranks(direction):
    ranks = getattr(RANKS, direction)
    found = hardest(RANKS, direction, 7)
    assert ranks[found].tolist() == sorted(ranks.tolist(), reverse=True)[:7]
    assert len(hardest(RANKS, direction, 10**6)) == len(ranks)


def test_an_image_without_captions_is_no_query():
    ranks = QueryRanks(np.array([0, 3, 0]), np.array([1]))
    assert hardest(ranks, "i2t", 5) == [1]
    assert most_different(ranks, QueryRanks(np.array([0, 3, 0]), np.array([1])), "i2t", 5) == []


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_the_most_different_either_way(direction):
    other = query_ranks(make_scores(1, images=40, each=3, bonus=0.5), OWNER)
    gap = abs(getattr(RANKS, direction) - getattr(other, direction))
    found = most_different(RANKS, other, direction, 6)
    assert gap[found].tolist() == sorted(gap.tolist(), reverse=True)[:6]
    assert most_different(other, RANKS, direction, 6) == found
    assert most_different(RANKS, RANKS, direction, 6) == []


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1", "i2", "?"])
def test_a_ranking_has_the_ties_and_ranks_of_the_figures(dtype):
    scores = np.clip(SCORES * 3 + 5, 0, 9).astype(dtype)
    ranks = query_ranks(scores, OWNER)
    wide = scores.astype(float)
    for query in (0, 7, 39):
        found = ranking(scores, OWNER, ranks, "i2t", query)
        order = np.argsort(-wide[query], kind="stable")
        assert list(found.items) == order[:10].tolist()
        assert order[found.rank - 1] == found.correct
        assert OWNER[found.correct] == query
        found = ranking(scores, OWNER, ranks, "t2i", query)
        order = np.argsort(-wide[:, query], kind="stable")
        assert list(found.items) == order[:5].tolist()
        assert order[found.rank - 1] == found.correct == OWNER[query]


def test_fewer_items_than_are_shown():
    found = ranking(np.ones((1, 2)), np.zeros(2, dtype=int), QueryRanks(np.ones(1), np.ones(2)), "i2t", 0)
    assert found.items == (0, 1)
    assert max(SHOWN.values()) == 10
