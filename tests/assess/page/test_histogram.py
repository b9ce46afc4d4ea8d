"""Every rank is in one bin, and what is drawn adds up."""

import re

import numpy as np
import pytest

from bcls.evaluation.pages import bins, histogram


@pytest.mark.parametrize("most", [1, 2, 5, 6, 50, 51, 1000, 25000])
def test_bins_cover_every_rank_once(most):
    ranks = [rank for low, high in bins(most) for rank in range(low, high + 1)]
    assert ranks == list(range(1, most + 1))


def test_counts_are_drawn():
    drawn = histogram("a < b", {"a": np.array([1, 1, 2, 700]), "b": np.array([1, 5, 10, 11])}, 1000)
    counts = [int(count) for count in re.findall(r">(\d+) \(", drawn)]
    assert counts[:6] == [2, 1, 1, 1, 0, 1]
    assert sum(counts) == 8
    assert "50.0%" in drawn
    assert "a &lt; b" in drawn
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="14" class="a"', drawn)]
    assert widths[0] == max(widths)
    assert "style=" not in drawn, "the policy of the page forbids it"


def test_no_query_at_all():
    assert "0 (0.0%)" in histogram("none", {"a": np.array([], dtype=int)}, 3)
