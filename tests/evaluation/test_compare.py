"""compare(): differences, paired tests over images, and disagreements."""

import numpy as np
import pytest

from bcls.data.dataset import open_dataset
from bcls.evaluation.evaluator import compare
from bcls.evaluation.recall import query_ranks, recalls
from bcls.evaluation.statistics import paired_test
from tests.evaluation.factories import add_image_without_captions, make_data, make_scores, make_split

OWNER = np.repeat(np.arange(40), 3)


@pytest.fixture
def split(tmp_path):
    return make_split(tmp_path / "data", images=40, each=3)


def models(*bonuses, seeds=(0, 1)):
    return [
        make_scores(seed, images=40, each=3, bonus=bonus, dtype=np.float64)
        for seed, bonus in zip(seeds, bonuses, strict=True)
    ]


def test_metrics_are_those_of_recalls(split):
    a, b = models(2.0, 3.0)
    metrics = compare(split, query_ranks(a, OWNER), query_ranks(b, OWNER))
    first, second = recalls(a, OWNER), recalls(b, OWNER)
    for key in first:
        assert metrics[f"a_{key}"] == pytest.approx(first[key])
        assert metrics[f"b_{key}"] == pytest.approx(second[key])
        assert metrics[f"difference_{key}"] == pytest.approx(first[key] - second[key])


def test_the_tests_are_those_of_the_evaluation(split):
    a, b = (query_ranks(one, OWNER) for one in models(2.0, 2.5))
    metrics = compare(split, a, b, seed=3)
    t2i = paired_test(a.t2i <= 1, b.t2i <= 1, OWNER, seed=3)
    assert metrics["p_t2i_r1"] == t2i["p_value"]
    assert metrics["difference_t2i_r1_low"] == pytest.approx(100 * t2i["difference_low"])
    assert metrics["p_i2t_r1"] == paired_test(a.i2t <= 1, b.i2t <= 1, seed=3)["p_value"]
    assert metrics["difference_rsum_low"] < metrics["difference_rsum"] < metrics["difference_rsum_high"]


def test_a_clear_difference_and_none(split):
    good, bad = (query_ranks(one, OWNER) for one in models(4.0, 0.5))
    clear = compare(split, good, bad)
    assert all(clear[f"p_{key}"] < 0.001 for key in ("i2t_r1", "t2i_r1", "rsum"))
    assert clear["difference_rsum_low"] > 0
    other_way = compare(split, bad, good)
    assert other_way["difference_rsum"] == -clear["difference_rsum"]
    assert other_way["t2i_only_a"] == clear["t2i_only_b"]
    same = compare(split, good, good)
    assert [same[f"p_{key}"] for key in ("i2t_r1", "t2i_r1", "rsum")] == [1.0, 1.0, 1.0]
    assert same["i2t_disagree"] == same["t2i_disagree"] == same["difference_rsum"] == 0.0


def test_the_tested_sum_is_the_sum_of_recalls_with_uneven_captions(tmp_path):
    from bcls.evaluation.evaluator import rsum_by_image

    generator = np.random.default_rng(0)
    owner = np.array([0, 0, 0, 1, 3, 3, 4])  # nobody wrote about image 2
    scores = generator.standard_normal((5, 7))
    shares = rsum_by_image(query_ranks(scores, owner), owner)
    assert len(shares) == 4
    assert shares.mean() == pytest.approx(recalls(scores, owner)["rsum"])


def test_disagreements_are_counted(split):
    a = np.full((40, 120), 0.0)
    a[OWNER, np.arange(120)] = 1.0
    b = a.copy()
    b[0, :3], b[1, :3] = -1.0, 2.0  # image 0 and its captions go wrong, and image 1 finds another's captions
    metrics = compare(split, query_ranks(a, OWNER), query_ranks(b, OWNER))
    assert (metrics["i2t_disagree"], metrics["i2t_only_a"], metrics["i2t_only_b"]) == (2.0, 2.0, 0.0)
    assert (metrics["t2i_disagree"], metrics["t2i_only_a"], metrics["t2i_only_b"]) == (3.0, 3.0, 0.0)


def test_an_image_without_captions_is_no_query(tmp_path):
    add_image_without_captions(make_data(tmp_path))
    split = open_dataset(tmp_path).split("test")
    owner = split.image_of_caption
    a, b = (query_ranks(np.vstack([make_scores(seed), np.zeros(12)]), owner) for seed in (0, 1))
    metrics = compare(split, a, b)
    assert metrics["i2t_disagree"] == np.count_nonzero((a.i2t[:6] <= 1) != (b.i2t[:6] <= 1))
    assert metrics["a_i2t_r1"] == pytest.approx(100 * np.mean(a.i2t[:6] <= 1))


def test_ranks_of_another_split(split):
    mine = query_ranks(make_scores(images=40, each=3), OWNER)
    other = query_ranks(make_scores(images=20, each=3), OWNER[:60])
    for argument, pair in (("a", (other, mine)), ("b", (mine, other))):
        with pytest.raises(ValueError, match=f"`{argument}`: expected ranks of the split's 40 images and 120 captions"):
            compare(split, *pair)
