"""Batches of an epoch: every caption once, no image twice in a batch, reproducible."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls.training.sampler import plan_epoch, share_of_rank, sizes_of_ranks

owners = st.lists(st.integers(0, 12), min_size=1, max_size=80).map(lambda one: np.array(one, dtype=np.int64))


@settings(max_examples=80, deadline=None)
@given(owners, st.integers(2, 16), st.integers(0, 5), st.booleans())
def test_captions_are_used_at_most_once_and_images_are_distinct(owner, batch, epoch, distinct):
    batches = plan_epoch(owner, batch, 7, epoch, distinct=distinct)
    seen = np.concatenate([*batches, np.arange(0)])
    assert len(np.unique(seen)) == len(seen)
    assert all(2 <= len(one) <= batch for one in batches)
    assert not batches or max(map(len, batches)) - min(map(len, batches)) <= 1
    if distinct:
        assert all(len(np.unique(owner[one])) == len(one) for one in batches)
    if not distinct and len(owner) > 1 and batch > 2:  # 2 + 1 cannot be shared out
        assert len(seen) == len(owner)


@pytest.mark.parametrize("batch", [2, 7, 32, 100, 250])
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_equal_numbers_of_captions_are_all_used(batch, epoch):
    owner = np.repeat(np.arange(100), 5)
    batches = plan_epoch(owner, batch, 1, epoch)
    assert sum(map(len, batches)) == 500
    assert len(batches) == -(-500 // min(batch, 100))
    assert max(map(len, batches)) - min(map(len, batches)) <= 1


def test_an_image_with_too_many_captions_uses_some_of_them():
    owner = np.array([0] * 20 + [1, 2])
    batches = plan_epoch(owner, 8, 1, 0)
    assert [len(one) for one in batches] == [2, 2]
    shown = {caption for epoch in range(60) for one in plan_epoch(owner, 8, 1, epoch) for caption in one.tolist()}
    assert shown == set(range(22))  # not always the same ones


def test_images_are_combined_at_random():
    """Batches of an epoch are no copies of each other: two images seldom share more than one batch."""
    owner = np.repeat(np.arange(200), 5)
    together = np.zeros((200, 200), dtype=int)
    for one in plan_epoch(owner, 20, 1, 0):
        together[np.ix_(owner[one], owner[one])] += 1
    np.fill_diagonal(together, 0)
    assert together.max() <= 4
    assert (together > 0).mean() > 0.3


def test_the_plan_is_a_function_of_seed_and_epoch_alone():
    owner = np.repeat(np.arange(30), 3)
    first = [one.tolist() for one in plan_epoch(owner, 8, 1, 0)]
    assert first == [one.tolist() for one in plan_epoch(owner, 8, 1, 0)]
    assert first != [one.tolist() for one in plan_epoch(owner, 8, 1, 1)]
    assert first != [one.tolist() for one in plan_epoch(owner, 8, 2, 0)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_shares_of_processes_form_the_batch(ranks):
    batch = np.arange(11)
    parts = [share_of_rank(batch, rank, ranks) for rank in range(ranks)]
    assert np.concatenate(parts).tolist() == batch.tolist()
    assert [len(one) for one in parts] == sizes_of_ranks(11, ranks)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
