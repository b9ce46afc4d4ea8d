import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bcls.data.judgements import flickr8k_crowdflower, flickr8k_expert
from bcls.evaluation.recall import query_ranks, recalls
from bcls.evaluation.statistics import (
    draws,
    hierarchical_test,
    holm,
    human_correlation,
    jackknife_values,
    paired_test,
    recall_intervals,
)
from tests.reference.correlation import correlations
from tests.reference.hierarchical import every_difference, holm_rejects
from tests.samples import DATA, expect


def problem(images=60, noise=0.6, seed=0):
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.r_[np.arange(images), rng.integers(0, images, 2 * images)])
    similarity = (owner == np.arange(images)[:, None]) + noise * rng.standard_normal((images, 3 * images))
    return similarity, owner


def test_metrics_are_the_recalls_and_lie_inside_their_intervals():
    similarity, owner = problem()
    metrics, plain = recall_intervals(similarity, owner, resamples=300), recalls(similarity, owner)
    for name, value in plain.items():
        assert metrics[name] == pytest.approx(value)
        assert metrics[f"{name}_low"] <= value <= metrics[f"{name}_high"]
    assert metrics["t2i_r1_low"] < metrics["t2i_r1"] < metrics["t2i_r1_high"]


def test_the_interval_is_that_of_whole_images_drawn_by_hand():
    similarity, owner = problem(images=40)
    ranks, rng, samples = query_ranks(similarity, owner), np.random.default_rng(5), []
    for _ in range(2000):
        hits = [ranks.t2i[owner == image] <= 1 for image in rng.integers(40, size=40)]
        samples.append(100 * np.concatenate(hits).mean())
    metrics = recall_intervals(similarity, owner, ks=(1,), resamples=2000)
    expected = np.quantile(samples, [0.025, 0.975])
    assert (metrics["t2i_r1_low"], metrics["t2i_r1_high"]) == pytest.approx(expected, abs=1.0)


def test_scipys_interval_where_every_image_has_one_caption():
    rng = np.random.default_rng(1)
    similarity = np.eye(200) + 0.4 * rng.standard_normal((200, 200))
    hits = query_ranks(similarity, np.arange(200)).i2t <= 1
    outside = stats.bootstrap((hits,), np.mean, n_resamples=2000, method="percentile", rng=rng).confidence_interval
    metrics = recall_intervals(similarity, np.arange(200), ks=(1,), resamples=2000)
    assert (metrics["i2t_r1_low"], metrics["i2t_r1_high"]) == pytest.approx(
        (100 * outside.low, 100 * outside.high), abs=1.0
    )


def test_images_without_captions_one_image_and_seeds():
    metrics = recall_intervals(np.array([[0.2, 0.3], [0.9, 0.1]]), [0, 0], ks=(1,), resamples=50)
    assert (metrics["i2t_r1_low"], metrics["t2i_r1_low"], metrics["t2i_r1_high"]) == (100.0, 50.0, 50.0)
    assert recall_intervals(np.zeros((1, 1)), [0], resamples=3)["rsum_high"] == 600.0
    similarity, owner = problem()
    first, again = (recall_intervals(similarity, owner, resamples=40, seed=2) for _ in range(2))
    assert first == again
    assert first != recall_intervals(similarity, owner, resamples=40, seed=3)


def test_draws_in_blocks_sum_to_the_number_of_items(monkeypatch):
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
    metrics = paired_test(a, b, groups, resamples=4000)
    assert metrics["difference"] == pytest.approx((a - b).mean())
    assert metrics["p_value"] == pytest.approx(reached / 2 ** len(names), abs=0.05)


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
def test_equal_and_different_models(method):
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
    metrics = paired_test([1.0], [0.0], resamples=10)
    assert (metrics["difference_low"], metrics["p_value"]) == (1.0, 1.0)


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


NAMES = ("tau_b", "tau_c", "pearson", "spearman")
PAIRS = st.lists(
    st.tuples(
        st.sampled_from([-1.0, 0.0, 0.25, 0.5]) | st.floats(-100, 100).map(lambda v: round(v, 3)), st.integers(1, 4)
    ),
    min_size=1,
    max_size=25,
)


@given(PAIRS)
def test_the_definitions_and_scipy(rows):
    scores, ratings = [row[0] for row in rows], [row[1] for row in rows]
    metrics = human_correlation(scores, ratings, resamples=0)
    assert [metrics[name] for name in NAMES] == pytest.approx(correlations(scores, ratings), abs=1e-9, nan_ok=True)
    assert (metrics["rows"], metrics["groups"]) == (len(rows), len(rows))
    if len(set(scores)) > 1 and len(set(ratings)) > 1:
        outside = [stats.kendalltau(scores, ratings, variant=kind).statistic for kind in "bc"]
        outside += [stats.pearsonr(scores, ratings).statistic, stats.spearmanr(scores, ratings).statistic]
        assert [metrics[name] for name in NAMES] == pytest.approx(outside, abs=1e-9)


def sample(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    ratings = rng.integers(1, 5, rows)
    return ratings + rng.standard_normal(rows), ratings


def test_intervals_contain_the_metric_and_have_the_width_of_scipys():
    scores, ratings = sample()
    metrics = human_correlation(torch.from_numpy(scores), torch.from_numpy(ratings), resamples=400, seed=3)
    for name in NAMES:
        assert metrics[f"{name}_low"] < metrics[name] < metrics[f"{name}_high"]
    outside = stats.bootstrap(
        (scores, ratings),
        lambda x, y: stats.pearsonr(x, y).statistic,
        paired=True,
        vectorized=False,
        n_resamples=400,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert (metrics["pearson_low"], metrics["pearson_high"]) == pytest.approx((outside.low, outside.high), abs=0.01)


def test_a_seed_gives_the_same_intervals_and_another_seed_others():
    scores, ratings = sample(80)
    first, again = (human_correlation(scores, ratings, resamples=50, seed=7) for _ in range(2))
    assert first == again
    assert first != human_correlation(scores, ratings, resamples=50, seed=8)


def test_rows_of_one_photo_are_drawn_together():
    """Every row ten times over adds no knowledge: by photo the interval stays, by row it shrinks."""
    scores, ratings = sample(60)
    tens = [np.repeat(values, 10) for values in (scores, ratings)]
    photos = [f"photo{row // 10}" for row in range(600)]
    alone = human_correlation(scores, ratings, resamples=300)
    by_photo, by_row = human_correlation(*tens, photos, resamples=300), human_correlation(*tens, resamples=300)
    assert (by_photo["rows"], by_photo["groups"]) == (600.0, 60.0)

    def width(metrics):
        return metrics["spearman_high"] - metrics["spearman_low"]

    assert width(by_photo) == pytest.approx(width(alone), rel=0.2)
    assert width(by_row) < 0.5 * width(by_photo)


def test_groups_of_uneven_size_keep_their_rows():
    # With two groups a resample is one of them, the other, or both.
    scores, ratings, groups = np.array([1.0, 2, 3, 10, 30, 20, 40]), np.array([1, 2, 3, 1, 2, 3, 4]), list("aaabbbb")
    metrics = human_correlation(scores, ratings, groups, resamples=200)
    possible = [correlations(scores[part].tolist(), ratings[part].tolist())[2] for part in (slice(3), slice(3, 7))]
    assert metrics["pearson_high"] == pytest.approx(max(possible))


def test_constant_scores_and_a_single_row_give_nan():
    for scores, ratings in (([1.0, 1.0], [1, 2]), ([1.0, 2.0], [3, 3]), ([1.0], [1])):
        metrics = human_correlation(scores, ratings, resamples=5)
        assert all(math.isnan(metrics[f"{name}{end}"]) for name in NAMES for end in ("", "_low", "_high"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, np.nan], [1, 2]), "`scores`: expected finite numbers, got nan in row 1"),
        (([1.0, 2.0], [1, np.inf]), "`ratings`: expected finite numbers, got inf in row 1"),
        (([1.0, 2.0], [1]), "`ratings`: expected as many as `scores`, 2, got 1"),
        (([], []), "`scores`: expected a list of numbers"),
        (([[1.0]], [1]), "`scores`: expected a list of numbers"),
        ((["a"], [1]), "`scores`: expected a list of numbers"),
        (([1.0, 2.0], [1, 2], ["a"]), "`groups`: expected 2 names or numbers"),
    ],
)
def test_bad_arguments_human(arguments, message):
    with pytest.raises(ValueError, match=message):
        human_correlation(*arguments)


def test_bad_options():
    for option in ({"resamples": -1}, {"confidence": 1.0}, {"confidence": 0.0}, {"seed": -1}):
        with pytest.raises(ValueError, match=f"`{next(iter(option))}`"):
            human_correlation([1.0, 2.0], [1, 2], **option)


def test_very_large_and_very_small_numbers():
    scores, ratings = sample(50)
    expected = human_correlation(scores, ratings, resamples=0)
    for low, high in ((1e-200, 1e200), (1e200, 1e-200)):
        assert human_correlation(scores * low, ratings * high, resamples=0) == pytest.approx(expected)


def test_perfect_agreement_is_one_and_not_more():
    for rows in range(2, 60):
        scores = np.random.default_rng(rows).standard_normal(rows)
        for sign in (1, -1):
            metrics = human_correlation(scores, sign * scores, resamples=0)
            assert all(abs(metrics[name]) <= 1 for name in NAMES)
            assert [metrics[name] for name in NAMES] == pytest.approx([sign] * 4)


def test_the_published_files():
    folder = DATA / "flickr8k"
    expert, crowd = (
        flickr8k_expert(folder / "ExpertAnnotations.txt"),
        flickr8k_crowdflower(folder / "CrowdFlowerAnnotations.txt"),
    )
    # The whole release has 16,992 expert rows of 1,000 photos; a part of it has three rows a pair as well.
    photos = len(np.unique(expert.photos))
    assert len(expert.ratings) == {12: 396, 500: 8400, 1000: 16992}[photos]
    assert set(expert.ratings) == {1.0, 2.0, 3.0, 4.0}
    assert photos == 1000 or len(crowd.ratings) == expect(23046, 132)
    assert not any(
        caption.startswith(f"{image}#") for image, caption in zip(crowd.photos, crowd.caption_ids, strict=True)
    )
    # Marks agree with the mean of their pair; half of all marks are 1, which keeps tau-c far from 1.
    pairs = expert.ratings.reshape(-1, 3)
    metrics = human_correlation(np.repeat(pairs.mean(axis=1), 3), expert.ratings, expert.photos, resamples=20)
    least, most = expect((0.65, 0.8), (0.2, 0.7))
    assert least < metrics["tau_c_low"] < metrics["tau_c"] < metrics["tau_c_high"] < most


@given(
    st.integers(1, 3).flatmap(
        lambda images: st.tuples(
            *(st.lists(st.lists(st.integers(-5, 5), min_size=images, max_size=images), min_size=1, max_size=3),) * 2
        )
    )
)
@settings(max_examples=25, deadline=None)
def test_hierarchical_bootstrap_is_that_of_all_draws(tables):
    a, b = tables
    every = np.array(every_difference(a, b))
    metrics = hierarchical_test(a, b, resamples=20000)
    assert metrics["difference"] == pytest.approx(np.mean(a) - np.mean(b))
    slack, near = 0.015, 1e-9
    for end, share in (("low", 0.025), ("high", 0.975)):
        value = metrics[f"difference_{end}"]
        assert np.mean(every < value - near) <= share + slack
        assert np.mean(every <= value + near) >= share - slack
    sides = np.mean(every <= near), np.mean(every >= -near)
    assert metrics["p_value"] == pytest.approx(min(1, 2 * min(sides)), abs=2 * slack)


def test_seeds_that_differ_widen_the_interval():
    images = np.random.default_rng(0).normal(size=200)
    even, uneven = np.tile(images + 0.5, (5, 1)), images + 0.5 + np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0]])
    other = np.tile(images, (5, 1))
    narrow, wide = hierarchical_test(even, other), hierarchical_test(uneven, other)
    assert narrow["difference"] == pytest.approx(wide["difference"])
    assert narrow["p_value"] < 0.001  # the same difference on every image
    assert wide["p_value"] > 0.2
    # The standard error over five seeds with the deviations -2 to 2 is sqrt(2.5 / 5).
    assert wide["difference_high"] - wide["difference_low"] == pytest.approx(2 * 1.96 * np.sqrt(0.5), rel=0.1)


@pytest.mark.parametrize("a", [[1.0, 2.0], [[1.0, np.nan]], [[]]])
def test_wrong_tables_of_seeds_and_images(a):
    with pytest.raises(ValueError, match="`a`"):
        hierarchical_test(a, [[1.0, 2.0]])


def test_tables_of_other_images_raise():
    with pytest.raises(ValueError, match="`b`"):
        hierarchical_test([[1.0, 2.0]], [[1.0, 2.0, 3.0]])


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0, 1, exclude_max=True))
def test_adjusted_p_values_reject_what_holm_rejects(p_values, level):
    adjusted = holm(p_values)
    if all(abs(one - level) > 1e-9 for one in adjusted):
        assert [one <= level for one in adjusted] == holm_rejects(p_values, level)
    assert all(one >= p for one, p in zip(adjusted, p_values, strict=True))


def test_values_by_photo_have_the_correlation_as_their_mean_and_its_spread():
    rng = np.random.default_rng(0)
    photos = np.repeat(rng.permutation(40), 6)
    ratings = rng.integers(1, 5, len(photos))
    scores = ratings + rng.normal(0, 2, len(photos)) + rng.normal(0, 0.5, 40)[photos]
    values = jackknife_values(scores, ratings, photos, "tau_c")
    whole = stats.kendalltau(scores, ratings, variant="c").statistic
    expected = [
        40 * whole - 39 * stats.kendalltau(scores[photos != one], ratings[photos != one], variant="c").statistic
        for one in range(40)
    ]
    np.testing.assert_allclose(values, expected)
    drawn = human_correlation(scores, ratings, photos, resamples=2000)
    width = 2 * 1.96 * values.std(ddof=1) / np.sqrt(40)
    assert values.mean() == pytest.approx(whole, abs=0.02)
    assert drawn["tau_c_high"] - drawn["tau_c_low"] == pytest.approx(width, rel=0.15)
