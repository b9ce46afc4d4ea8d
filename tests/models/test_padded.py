"""Padded batches: concatenation and trimming."""

import pytest
import torch

from bcls.models.layers import Padded, joined, trimmed


@pytest.mark.parametrize("width", [(), (2,)])
def test_joined_pads_to_the_longest(width):
    """Where some batch has lengths, or is shorter, those of the others are how long they are."""
    short, long = torch.ones(2, 1, *width), torch.ones(1, 3, *width)
    both = joined([Padded(short), Padded(long, torch.tensor([2]))])
    assert both.values.shape == (3, 3, *width)
    assert both.values[:2, 1:].eq(0).all()
    assert both.lengths.tolist() == [1, 1, 2]


def test_joined_needs_no_lengths_where_all_are_as_long():
    both = joined([Padded(torch.zeros(2, 4)), Padded(torch.ones(1, 4))])
    assert both.lengths is None
    assert both.values.sum(1).tolist() == [0, 0, 4]


def test_trimmed():
    words = Padded(torch.tensor([[5, 6, 0, 0], [7, 0, 0, 0]]), torch.tensor([2, 1]))
    assert trimmed(words).values.tolist() == [[5, 6], [7, 0]]
    assert trimmed(words).lengths.tolist() == [2, 1]
    for whole in (Padded(words.values), words.take(slice(0, 0))):
        assert trimmed(whole) is whole
