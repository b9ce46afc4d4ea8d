import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bcls.data.judgements import flickr8k_crowdflower, flickr8k_expert
from bcls.evaluation.statistics import human_correlation
from tests.reference.correlation import correlations

NAMES = ("tau_b", "tau_c", "pearson", "spearman")
needs_data = pytest.mark.skipif(
    "BCLS_DATA" not in os.environ, reason="BCLS_DATA does not name the folder of the datasets"
)

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
    figures = human_correlation(scores, ratings, resamples=0)
    assert [figures[name] for name in NAMES] == pytest.approx(correlations(scores, ratings), abs=1e-9, nan_ok=True)
    assert (figures["rows"], figures["groups"]) == (len(rows), len(rows))
    if len(set(scores)) > 1 and len(set(ratings)) > 1:
        outside = [stats.kendalltau(scores, ratings, variant=kind).statistic for kind in "bc"]
        outside += [stats.pearsonr(scores, ratings).statistic, stats.spearmanr(scores, ratings).statistic]
        assert [figures[name] for name in NAMES] == pytest.approx(outside, abs=1e-9)


def sample(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    ratings = rng.integers(1, 5, rows)
    return ratings + rng.standard_normal(rows), ratings


def test_intervals_hold_the_figure_and_are_scipys_in_width():
    scores, ratings = sample()
    figures = human_correlation(torch.from_numpy(scores), torch.from_numpy(ratings), resamples=400, seed=3)
    for name in NAMES:
        assert figures[f"{name}_low"] < figures[name] < figures[f"{name}_high"]
    outside = stats.bootstrap(
        (scores, ratings),
        lambda x, y: stats.pearsonr(x, y).statistic,
        paired=True,
        vectorized=False,
        n_resamples=400,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert (figures["pearson_low"], figures["pearson_high"]) == pytest.approx((outside.low, outside.high), abs=0.01)


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

    def width(figures):
        return figures["spearman_high"] - figures["spearman_low"]

    assert width(by_photo) == pytest.approx(width(alone), rel=0.2)
    assert width(by_row) < 0.5 * width(by_photo)


def test_groups_of_uneven_size_keep_their_rows():
    # With two groups a resample is one of them, the other, or both.
    scores, ratings, groups = np.array([1.0, 2, 3, 10, 30, 20, 40]), np.array([1, 2, 3, 1, 2, 3, 4]), list("aaabbbb")
    figures = human_correlation(scores, ratings, groups, resamples=200)
    possible = [correlations(scores[part].tolist(), ratings[part].tolist())[2] for part in (slice(3), slice(3, 7))]
    assert figures["pearson_high"] == pytest.approx(max(possible))


def test_constant_scores_and_one_row_have_no_figure():
    for scores, ratings in (([1.0, 1.0], [1, 2]), ([1.0, 2.0], [3, 3]), ([1.0], [1])):
        figures = human_correlation(scores, ratings, resamples=5)
        assert all(math.isnan(figures[f"{name}{end}"]) for name in NAMES for end in ("", "_low", "_high"))


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
def test_bad_arguments(arguments, message):
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
            figures = human_correlation(scores, sign * scores, resamples=0)
            assert all(abs(figures[name]) <= 1 for name in NAMES)
            assert [figures[name] for name in NAMES] == pytest.approx([sign] * 4)


@needs_data
def test_the_published_files():
    folder = Path(os.environ["BCLS_DATA"]) / "flickr8k"
    expert, crowd = (
        flickr8k_expert(folder / "ExpertAnnotations.txt"),
        flickr8k_crowdflower(folder / "CrowdFlowerAnnotations.txt"),
    )
    # The whole release has 16,992 expert rows of 1,000 photos; a part of it has three rows a pair as well.
    photos = len(np.unique(expert.photos))
    assert len(expert.ratings) == {500: 8400, 1000: 16992}[photos]
    assert set(expert.ratings) == {1.0, 2.0, 3.0, 4.0}
    assert photos == 1000 or len(crowd.ratings) == 23046
    assert not any(
        caption.startswith(f"{image}#") for image, caption in zip(crowd.photos, crowd.caption_ids, strict=True)
    )
    # Marks agree with the mean of their pair; half of all marks are 1, which keeps tau-c far from 1.
    pairs = expert.ratings.reshape(-1, 3)
    figures = human_correlation(np.repeat(pairs.mean(axis=1), 3), expert.ratings, expert.photos, resamples=20)
    assert 0.65 < figures["tau_c_low"] < figures["tau_c"] < figures["tau_c_high"] < 0.8
