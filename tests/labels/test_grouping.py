"""Batches of texts of like length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcls.labels import encoders as _grouping
from bcls.labels.encoders import group_by_length


@given(lengths=st.lists(st.integers(0, 40), max_size=80), tokens=st.integers(1, 200))
def test_every_row_once_within_the_budget_longest_first(lengths, tokens):
    lengths = np.array(lengths, dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_grouping, "TOKENS", tokens)
        batches = group_by_length(lengths)
    assert sorted(np.concatenate([[], *batches]).tolist()) == list(range(len(lengths)))
    longest = [lengths[batch].max() for batch in batches]
    assert longest == sorted(longest, reverse=True)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= tokens
        # Padding only where few texts have the longest's length.
        assert np.count_nonzero(lengths[batch] == lengths[batch].max()) == len(batch) or len(batch) <= 16


def test_equal_lengths_fill_batches():
    assert [len(batch) for batch in group_by_length(np.full(100, 32))] == [32, 32, 32, 4]
