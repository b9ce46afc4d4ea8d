import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls.search.calibration import FITS, Calibration, fit

SAMPLES = st.lists(st.floats(-1, 1), min_size=1, max_size=30)


@given(SAMPLES, SAMPLES)
@settings(max_examples=60, deadline=None)
def test_scores_increase_and_stay_between_0_and_1(right, wrong):
    scores = fit(right, wrong, "texts")(np.linspace(-1, 1, 401))
    assert ((scores > 0) & (scores < 1)).all()
    assert (np.diff(scores) >= 0).all()


def test_score_is_half_at_the_equal_error_rate():
    rng = np.random.default_rng(0)
    right, wrong = rng.normal(0.6, 0.1, 4000), rng.normal(0.2, 0.1, 4000)
    scores = fit(right, wrong, "captions")
    assert abs(float(scores(0.4)) - FITS) < 0.1
    errors = (scores(right) < FITS).mean(), (scores(wrong) >= FITS).mean()
    assert max(errors) < 0.04
    assert scores(0.75) > 0.9
    assert scores(0.05) < 0.1


def test_scores_increase_beyond_the_samples():
    scores = fit([0.5, 0.6], [0.1, 0.2], "captions")
    assert scores(0.65) < scores(0.7) < scores(0.8)
    assert scores(-0.1) < scores(0.0) < scores(0.05)


def test_the_formula():
    """Compare with counting, in the middle of the distributions."""
    rng = np.random.default_rng(1)
    right, wrong = rng.normal(0.5, 0.2, 5000), rng.normal(0.3, 0.2, 5000)
    scores = fit(right, wrong, "captions")
    for value in (0.3, 0.4, 0.5):
        low, high = (right <= value).mean(), (wrong > value).mean()
        assert float(scores(value)) == pytest.approx(low / (low + high), abs=0.02)


@pytest.mark.parametrize("values", [[], [0.2, 0.1], [float("nan")], [[0.1]]])
def test_damaged_quantiles(values):
    with pytest.raises(ValueError, match="`wrong`: expected quantiles in ascending order"):
        Calibration([0.1], values, "texts")
