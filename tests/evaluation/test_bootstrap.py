import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bcls.evaluation.recall import query_ranks, recalls
from bcls.evaluation.statistics import draws, paired_test, recall_intervals


def problem(images=60, noise=0.6, seed=0):
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.r_[np.arange(images), rng.integers(0, images, 2 * images)])
    similarity = (owner == np.arange(images)[:, None]) + noise * rng.standard_normal((images, 3 * images))
    return similarity, owner


def test_figures_are_the_recalls_and_lie_inside_their_intervals():
    similarity, owner = problem()
    figures, plain = recall_intervals(similarity, owner, resamples=300), recalls(similarity, owner)
    for name, value in plain.items():
        assert figures[name] == pytest.approx(value)
        assert figures[f"{name}_low"] <= value <= figures[f"{name}_high"]
    assert figures["t2i_r1_low"] < figures["t2i_r1"] < figures["t2i_r1_high"]


def test_the_interval_is_that_of_whole_images_drawn_by_hand():
    similarity, owner = problem(images=40)
    ranks, rng, samples = query_ranks(similarity, owner), np.random.default_rng(5), []
    for _ in range(2000):
        hits = [ranks.t2i[owner == image] <= 1 for image in rng.integers(40, size=40)]
        samples.append(100 * np.concatenate(hits).mean())
    figures = recall_intervals(similarity, owner, ks=(1,), resamples=2000)
    expected = np.quantile(samples, [0.025, 0.975])
    assert (figures["t2i_r1_low"], figures["t2i_r1_high"]) == pytest.approx(expected, abs=1.0)


def test_scipys_interval_where_every_image_has_one_caption():
    rng = np.random.default_rng(1)
    similarity = np.eye(200) + 0.4 * rng.standard_normal((200, 200))
    hits = query_ranks(similarity, np.arange(200)).i2t <= 1
    outside = stats.bootstrap((hits,), np.mean, n_resamples=2000, method="percentile", rng=rng).confidence_interval
    figures = recall_intervals(similarity, np.arange(200), ks=(1,), resamples=2000)
    assert (figures["i2t_r1_low"], figures["i2t_r1_high"]) == pytest.approx(
        (100 * outside.low, 100 * outside.high), abs=1.0
    )


def test_images_without_captions_one_image_and_seeds():
    figures = recall_intervals(np.array([[0.2, 0.3], [0.9, 0.1]]), [0, 0], ks=(1,), resamples=50)
    assert (figures["i2t_r1_low"], figures["t2i_r1_low"], figures["t2i_r1_high"]) == (100.0, 50.0, 50.0)
    assert recall_intervals(np.zeros((1, 1)), [0], resamples=3)["rsum_high"] == 600.0
    similarity, owner = problem()
    first, again = (recall_intervals(similarity, owner, resamples=40, seed=2) for _ in range(2))
    assert first == again
    assert first != recall_intervals(similarity, owner, resamples=40, seed=3)


def test_draws_come_in_blocks_and_add_up(monkeypatch):
    monkeypatch.setattr("bcls.evaluation.statistics._BLOCK", 21)
    parts = list(draws(10, 5, 0))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert all((part.sum(axis=1) == 10).all() for part in parts)


VALUES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 4)), min_size=1, max_size=9)


@given(VALUES)
def test_permutation_against_all_swaps_of_groups(rows):
    a, b, groups = (np.array(column) for column in zip(*rows, strict=True))
    names = np.unique(groups)
    observed, reached = abs((a - b).mean()), 0
    for bits in range(2 ** len(names)):
        signs = {name: 1 - 2 * (bits >> place & 1) for place, name in enumerate(names)}
        swapped = sum(signs[group] * (x - y) for x, y, group in rows_of(a, b, groups)) / len(a)
        reached += abs(swapped) >= observed - 1e-12
    figures = paired_test(a, b, groups, resamples=4000)
    assert figures["difference"] == pytest.approx((a - b).mean())
    assert figures["p_value"] == pytest.approx(reached / 2 ** len(names), abs=0.05)


def rows_of(a, b, groups):
    return zip(a.tolist(), b.tolist(), groups.tolist(), strict=True)


def test_scipys_permutation_test():
    rng = np.random.default_rng(0)
    a, b = rng.random(50), rng.random(50) - 0.08
    outside = stats.permutation_test(
        (a, b), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=9999, rng=rng
    ).pvalue
    assert paired_test(a, b)["p_value"] == pytest.approx(outside, abs=0.02)
    # For means of many values both methods are near the t-test.
    assert paired_test(a, b, method="bootstrap")["p_value"] == pytest.approx(stats.ttest_rel(a, b).pvalue, abs=0.04)


@pytest.mark.parametrize("method", ["permutation", "bootstrap"])
def test_models_that_are_alike_and_models_that_are_not(method):
    rng = np.random.default_rng(2)
    hits = rng.random(300) < 0.5
    same = paired_test(hits, hits, method=method, resamples=500)
    assert (same["difference"], same["p_value"]) == (0.0, 1.0)
    better = paired_test(torch.from_numpy(hits | (rng.random(300) < 0.2)), hits, method=method, resamples=500)
    assert better["p_value"] < 0.01
    assert better["difference_low"] > 0
    worse = paired_test(hits, hits | (rng.random(300) < 0.2), method=method, resamples=500)
    assert worse["difference_high"] < 0


def test_captions_of_one_image_count_as_one():
    rng = np.random.default_rng(4)
    a, b = rng.random(20) + 0.1, rng.random(20)
    images = np.repeat(np.arange(20), 5)
    alone, together = paired_test(a, b), paired_test(np.repeat(a, 5), np.repeat(b, 5), images)
    assert together["p_value"] == pytest.approx(alone["p_value"], abs=0.02)
    assert paired_test(np.repeat(a, 5), np.repeat(b, 5))["p_value"] < 0.5 * alone["p_value"]


def test_one_query():
    figures = paired_test([1.0], [0.0], resamples=10)
    assert (figures["difference_low"], figures["p_value"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1.0], [1.0, 2.0]), {}, "`b`: expected as many values as `a`, 1, got 2"),
        (([1.0], [math.nan]), {}, "`b`: expected finite numbers, got nan in row 0"),
        (([1.0], [1.0], [1, 2]), {}, "`groups`"),
        (([1.0, 2.0], [1.0, 2.0], [1, None]), {}, "`groups`: expected numbers or names, all of one kind"),
        (([1.0], [[1.0], [1.0, 2.0]]), {}, "`b`: expected numbers or names, all of one kind"),
        (([1.0], [1.0]), {"method": "t"}, "`method`"),
        (([1.0], [1.0]), {"resamples": 0}, "`resamples`"),
        (([1.0], [1.0]), {"confidence": 2.0}, "`confidence`"),
        (([1.0], [1.0]), {"seed": 0.5}, "`seed`"),
    ],
)
def test_bad_arguments(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        paired_test(*arguments, **options)


def test_bad_matrices():
    with pytest.raises(ValueError, match="got nan in row 0"):
        recall_intervals(np.full((2, 2), np.nan), [0, 1])
    with pytest.raises(ValueError, match="`ks`"):
        recall_intervals(np.zeros((2, 2)), [0, 1], ks=())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_of_any_kind_and_with_a_graph(dtype):
    a, b = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0.0, 0.0, 1.0, 0.5])
    groups = torch.tensor([0.0, 0.0, 1.0, 2.0])
    expected = paired_test(a.numpy(), b.numpy(), groups.numpy(), resamples=20)
    given = [one.to(dtype).requires_grad_() for one in (a, b, groups)]
    assert paired_test(*given, resamples=20) == expected
