import numpy as np
import pytest

from bcls.evaluation.kendall import count_inversions


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 24, 25, 31, 33, 63, 64, 65, 72, 73, 130, 257])
def test_every_way_that_runs_can_be_left_over(length):
    rng = np.random.default_rng(length)
    rows = np.stack([rng.permutation(length) for _ in range(4)] + [np.arange(length), np.arange(length)[::-1]])
    expected = [np.triu(row[:, None] > row[None, :]).sum() for row in rows]
    before = rows.astype(np.int32)
    counts = count_inversions(before)
    assert counts.tolist() == expected
    assert (before == rows).all()
