"""Batches by number: what the device looks up is what the feed makes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bcls.training.cuda_graph import STEP
from bcls.training.loader import Lookup, Numbered, labelled
from bcls.training.setup import set_up
from bcls.training.step import parts_of
from tests.training.made import TinyModel, make_data, settings
from tests.training.made_views import add_views


@pytest.fixture
def run(tmp_path):
    data = make_data(tmp_path / "data", images=40, regions=0)
    return set_up(settings(data, "", loss={"name": "bcls"}, labels="minilm", val_split=None), TinyModel())


def test_a_looked_up_batch_is_the_one_of_the_feed(run):
    assert Lookup.serves(run.feed, run.labels)
    lookup = Lookup(run.feed, run.labels)
    plan = [batch for step in run.plan(0) for batch in step]
    made = run.feed.batches(plan, 0)
    for numbered in lookup.batches(plan, 0):
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
    assert list(lookup.batches([], 0)) == []


@pytest.mark.parametrize("regions", [0, 3])
def test_views_travel_with_the_captions(tmp_path, regions):
    data = add_views(make_data(tmp_path / "data", images=40, regions=regions), 5, counts=regions > 0)
    run = set_up(settings(data, "", val_split=None), TinyModel())
    assert Lookup.serves(run.feed, run.labels)
    lookup = Lookup(run.feed, run.labels)
    drawn = []
    for epoch in range(2):
        plan = [batch for step in run.plan(epoch) for batch in step]
        made = run.feed.batches(plan, epoch)
        for numbered in lookup.batches(plan, epoch):
            wanted, found = labelled(next(made), run.labels, run.train.image_of_caption), lookup.open(numbered)
            assert torch.equal(found.images.values, wanted.images.values)
            assert torch.equal(found.images.mask, wanted.images.mask)
            assert torch.equal(found.image_ids, wanted.image_ids)
            drawn.append(numbered.views)
        rest = list(lookup.batches(plan[3:], epoch))  # as a run that goes on in the middle has it
        assert torch.equal(rest[0].views, drawn[-len(plan) + 3])
    assert set(torch.cat(drawn).tolist()) == {0, 1, 2, 3, 4}


def test_steps_of_a_recorded_run_have_the_views_of_their_epoch(tmp_path):
    data = add_views(make_data(tmp_path / "data", images=40), 5)
    run = set_up(settings(data, "", val_split=None), TinyModel())
    recorded = replace(run, config=replace(run.config, graph=True))
    for epoch in range(2):
        plain, numbered = (parts_of(one, one.plan(epoch), epoch) for one in (run, recorded))
        for wanted, found in zip(plain, numbered, strict=True):
            images = recorded.lookup.open(found[0]).images.values
            assert torch.equal(images, wanted[0].images.values)


def test_what_a_recording_is_known_by():
    one = Numbered(torch.arange(3), 8)
    assert one.shape == (3, 8)
    assert [part.tolist() for part in one.map(lambda part: part + 1).tensors()] == [[1, 2, 3]]
    seen = Numbered(torch.arange(2), 8, torch.tensor([4, 5])).map(lambda part: part + 1)
    assert [part.tolist() for part in seen.tensors()] == [[1, 2], [5, 6]]
    assert Numbered(torch.arange(3), None).shape != one.shape


def test_pictures_and_several_processes_are_not_looked_up(run):
    class Read:
        at_hand = False

    assert not Lookup.serves(replace(run.feed, images=Read()), run.labels)
    assert not Lookup.serves(replace(run.feed, ranks=2), run.labels)
    assert Lookup.serves(run.feed, None)


def test_the_longest_caption_of_some(run):
    lengths = run.feed.texts.all.lengths.numpy()
    some = np.array([0, 3, 5])
    assert run.feed.texts.longest(some) == lengths[some].max()
