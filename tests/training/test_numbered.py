"""Batches by number: what the device looks up is what the feed makes."""

import numpy as np
import pytest
import torch

from bcls.training.batch import labelled
from bcls.training.numbered import STEP, Lookup, Numbered
from bcls.training.setup import set_up
from tests.training.made import TinyModel, make_data, settings


@pytest.fixture
def run(tmp_path):
    data = make_data(tmp_path / "data", images=40, regions=0)
    return set_up(settings(data, "", loss={"name": "bcls"}, labels="minilm", val_split=None), TinyModel())


def test_a_looked_up_batch_is_the_one_of_the_feed(run):
    assert Lookup.serves(run.feed, run.labels)
    lookup = Lookup(run.feed, run.labels)
    plan = [batch for step in run.plan(0) for batch in step]
    made = run.feed.batches(plan, 0)
    for numbered in lookup.batches(plan):
        wanted, found = labelled(next(made), run.labels, run.train.image_of_caption), lookup.open(numbered)
        assert found.pairs == wanted.pairs
        assert torch.equal(found.images.values, wanted.images.values)
        assert torch.equal(found.image_ids, wanted.image_ids)
        assert torch.equal(found.relevance, wanted.relevance)
        assert torch.equal(found.texts.lengths, wanted.texts.lengths)
        width = wanted.texts.values.shape[1]
        assert numbered.width % STEP == 0
        assert found.texts.values.shape[1] == numbered.width
        assert torch.equal(found.texts.values[:, :width], wanted.texts.values)
        assert not found.texts.values[:, width:].any()
    assert list(lookup.batches([])) == []


def test_what_a_recording_is_known_by():
    one = Numbered(torch.arange(3), 8)
    assert one.shape == (3, 8)
    assert [part.tolist() for part in one.map(lambda part: part + 1).tensors()] == [[1, 2, 3]]
    assert Numbered(torch.arange(3), None).shape != one.shape


def test_pictures_and_several_processes_are_not_looked_up(run):
    from dataclasses import replace

    class Read:
        at_hand = False

    assert not Lookup.serves(replace(run.feed, images=Read()), run.labels)
    assert not Lookup.serves(replace(run.feed, ranks=2), run.labels)
    assert Lookup.serves(run.feed, None)


def test_the_longest_caption_of_some(run):
    lengths = run.feed.texts.all.lengths.numpy()
    some = np.array([0, 3, 5])
    assert run.feed.texts.longest(some) == lengths[some].max()
