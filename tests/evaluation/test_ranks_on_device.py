"""Ranks counted on a device are those counted block by block."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls.evaluation import inputs as _inputs
from bcls.evaluation import recall as _ranks_on_device
from bcls.evaluation.recall import median_rank, query_ranks, recalls

KINDS = [np.float16, np.float32, np.float64]


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_the_same_ranks_with_ties(data):
    images = data.draw(st.integers(1, 7))
    owner = np.sort(np.array(data.draw(st.lists(st.integers(0, images - 1), min_size=1, max_size=20))))
    draw = np.random.default_rng(data.draw(st.integers(0, 999)))
    scores = draw.integers(0, data.draw(st.integers(1, 6)), (images, len(owner))).astype(
        data.draw(st.sampled_from(KINDS))
    )
    tensor = (
        torch.from_numpy(np.ascontiguousarray(scores.T)).T if data.draw(st.booleans()) else torch.from_numpy(scores)
    )
    plain = query_ranks(scores, owner), recalls(scores, owner), median_rank(scores, owner)
    before = _inputs._IN_PLACE_DEVICES
    try:
        _inputs._IN_PLACE_DEVICES = ("cpu",)
        there = query_ranks(tensor, owner), recalls(tensor, owner), median_rank(tensor, owner)
    finally:
        _inputs._IN_PLACE_DEVICES = before
    np.testing.assert_array_equal(plain[0].i2t, there[0].i2t)
    np.testing.assert_array_equal(plain[0].t2i, there[0].t2i)
    for one, other in zip(plain[1:], there[1:], strict=True):
        assert other == pytest.approx(one, nan_ok=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_in_the_same_words(bad, monkeypatch):
    scores = np.eye(4, dtype=np.float32)
    scores[2, 1] = bad
    with pytest.raises(ValueError, match="similarity") as plain:
        recalls(scores, np.arange(4))
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", ("cpu",))
    with pytest.raises(ValueError, match="similarity") as there:
        recalls(torch.from_numpy(scores), np.arange(4))
    assert str(there.value) == str(plain.value)


def test_folds_are_counted_in_parts(monkeypatch):
    scores = np.random.default_rng(0).standard_normal((6, 12)).astype(np.float32)
    owner = np.repeat(np.arange(6), 2)
    plain = recalls(scores, owner, folds=3)
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", ("cpu",))
    assert recalls(torch.from_numpy(scores), owner, folds=3) == plain


def test_a_matrix_is_counted_in_one_go_up_to_the_size_that_fits(monkeypatch):
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", ("cpu",))
    monkeypatch.setattr(_ranks_on_device, "_DEVICE_BLOCK", 12)
    whole = slice(None)
    assert _ranks_on_device._counts_on_device(torch.zeros(3, 4), whole, whole)
    assert not _ranks_on_device._counts_on_device(torch.zeros(3, 5), whole, whole)
    assert not _ranks_on_device._counts_on_device(torch.zeros(3, 4), slice(0, 2), whole)
