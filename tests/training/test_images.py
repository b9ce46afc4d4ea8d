"""Views of images: drawn by seed, epoch and caption alone, and seen by training alone."""

import numpy as np
import pytest
import torch

from bcls.data.dataset import open_dataset
from bcls.training import images as sources
from bcls.training.images import DrawnViews, HeldImages, MappedImages, feature_images
from bcls.training.loader import Feed
from bcls.training.setup import set_up
from bcls.training.start import train
from tests.training.made import TinyModel, make_data, settings
from tests.training.made_views import add_views
from tests.training.test_resume import Stopping, contents

CPU = torch.device("cpu")


def splitmix(state, count):
    """The published generator, one number after another."""
    numbers = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        numbers.append(mixed ^ (mixed >> 31))
    return numbers


class TestDraw:
    def test_is_the_published_generator_at_the_captions_place(self):
        assert splitmix(0, 1) == [0xE220A8397B1DCDAF]
        state = int(np.random.SeedSequence((3, 5)).generate_state(1, np.uint64)[0])
        expected = [(number >> 33) * 9 >> 31 for number in splitmix(state, 50)]
        assert DrawnViews(3, 9)(np.arange(50), 5).tolist() == expected

    def test_a_caption_is_shown_the_same_whatever_is_beside_it(self):
        draw = DrawnViews(1, 5)
        captions = np.random.default_rng(0).permutation(1000)
        every = draw(np.arange(1000), 2)
        assert draw(captions, 2).tolist() == every[captions].tolist()
        assert draw(captions[:1], 2).tolist() == every[captions[:1]].tolist()
        assert draw(captions[:0], 2).shape == (0,)
        assert every.dtype == np.int64

    @pytest.mark.parametrize("number", [2, 3, 9])
    def test_views_are_drawn_evenly_over_captions_and_over_epochs(self, number):
        draw = DrawnViews(1, number)
        over = [draw(np.arange(9000), 0), np.concatenate([draw(np.arange(30), epoch) for epoch in range(300)])]
        for drawn in over:
            counts = np.bincount(drawn, minlength=number)
            assert len(counts) == number
            assert np.abs(counts - 9000 / number).max() < 5 * np.sqrt(9000 / number)

    def test_seed_and_epoch_change_it(self):
        captions = np.arange(200)
        drawn = [DrawnViews(seed, 4)(captions, epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
        assert len({tuple(one) for one in drawn}) == 4


@pytest.fixture(scope="module", params=[0, 3])
def data(request, tmp_path_factory):
    """Vectors, or regions some of which are padding, in four views."""
    folder = make_data(tmp_path_factory.mktemp("views") / "data", images=32, regions=request.param)
    return add_views(folder, 4, counts=request.param > 0)


@pytest.fixture(params=[True, False], ids=["held", "mapped"])
def held(request, monkeypatch):
    monkeypatch.setattr(sources, "fits", lambda size, device: request.param)
    return request.param


def test_each_caption_has_the_view_that_was_drawn(data, held):
    features = open_dataset(data).split("train").features("made")
    source = feature_images(features, CPU, seed=1)
    assert isinstance(source, HeldImages if held else MappedImages)
    captions = np.array([7, 0, 23, 8, 9, 7])
    images = np.array([4, 0, 4, 11, 23, 4])
    seen = set()
    for epoch in range(6):
        taken = source.take(images, captions, epoch)
        views = DrawnViews(1, 4)(captions, epoch)
        np.testing.assert_array_equal(taken.values, features.take(images, views))
        expected = [features.regions(image, view) for image, view in zip(images, views, strict=True)]
        assert (taken.lengths is None) == (expected[0] is None)
        if taken.lengths is not None:
            assert taken.lengths.tolist() == expected
        seen |= set(views.tolist())
    assert seen == {0, 1, 2, 3}
    whole = source.everything()
    np.testing.assert_array_equal(whole.values, features.take(range(len(features))))
    assert whole.lengths is None or whole.lengths.tolist() == [features.regions(n) for n in range(len(features))]


def test_without_a_seed_pictures_are_whole(data, held):
    features = open_dataset(data).split("train").features("made")
    source = feature_images(features, CPU)
    images = np.array([4, 0, 4])
    for epoch in range(3):
        np.testing.assert_array_equal(source.take(images, images, epoch).values, features.take(images))
    np.testing.assert_array_equal(source.everything().values, features.take(range(len(features))))


@pytest.mark.parametrize("seed", [None, 1])
def test_room_is_asked_for_all_that_is_held(data, monkeypatch, seed):
    asked = []
    monkeypatch.setattr(sources, "fits", lambda size, device: asked.append(size) or True)
    features = open_dataset(data).split("train").features("made")
    feature_images(features, CPU, seed)
    assert asked == [features.take(range(len(features))).nbytes * (4 if seed else 1)]


def test_an_epoch_shows_all_views_and_the_next_one_others(data):
    run = set_up(settings(data, "", val_split=None), TinyModel())
    rows = open_dataset(data).split("train").features("made")
    shown = []
    for epoch in range(2):
        plan = [batch for step in run.plan(epoch) for batch in step]
        views = {}
        for pairs in run.feed.batches(plan, epoch):
            for caption, value in zip(pairs.captions, pairs.images.values, strict=True):
                image = run.train.image_of_caption[caption]
                same = [view for view in range(4) if np.array_equal(value, rows.take([image], view)[0])]
                assert len(same) == 1
                views[int(caption)] = same[0]
        shown.append(views)
    assert [set(views.values()) for views in shown] == [{0, 1, 2, 3}] * 2
    common = shown[0].keys() & shown[1].keys()
    assert sum(shown[0][one] != shown[1][one] for one in common) > len(common) / 2


def test_processes_share_one_draw(data):
    run = set_up(settings(data, "", val_split=None), TinyModel())
    plan = [run.plan(0)[0][0]]
    alone = next(iter(run.feed.batches(plan, 3)))
    feed = run.feed
    parts = [Feed(feed.images, feed.texts, feed.image_of_caption, CPU, rank, 3) for rank in range(3)]
    together = torch.cat([next(iter(part.batches(plan, 3))).images.values for part in parts])
    assert torch.equal(together, alone.images.values)


LONG = {"epochs": 2, "save_every": 4}


@pytest.mark.parametrize("held", [True, False], indirect=True)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path, held):
    data = add_views(make_data(tmp_path / "data"), 3)
    train(settings(data, tmp_path / "whole", **LONG), model=Stopping())
    for at in (4, 7):
        again = (tmp_path / "run").exists()
        with pytest.raises(KeyboardInterrupt):
            train(settings(data, tmp_path / "run", **LONG, resume=again), model=Stopping(at))
    train(settings(data, tmp_path / "run", **LONG, resume=True), model=Stopping())
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def trained(data, out, **changes):
    torch.manual_seed(0)
    train(settings(data, out, **LONG, **changes), model=TinyModel())
    return contents(out)


def test_only_marked_views_are_drawn_and_only_with_augment(tmp_path):
    plain = trained(make_data(tmp_path / "plain"), tmp_path / "a")
    passed_over = add_views(make_data(tmp_path / "rows"), 3, marked=False)
    assert trained(passed_over, tmp_path / "b") == plain
    views = add_views(make_data(tmp_path / "views"), 3)
    assert trained(views, tmp_path / "c", augment=False)[0] == plain[0]
    assert trained(views, tmp_path / "d")[0] != plain[0]


def test_validation_sees_whole_pictures_alone(tmp_path):
    """Views of the validation split that are not even numbers change nothing."""
    data = add_views(make_data(tmp_path / "data"), 3)
    expected = trained(data, tmp_path / "a")
    rows = np.load(data / "val-views.npy")
    rows[np.arange(len(rows)) % 3 > 0] = np.nan
    np.save(data / "val-views.npy", rows)
    found = trained(data, tmp_path / "b")
    assert found == expected
    validations = [line for line in found[1] if "rsum" in line]
    assert len(validations) == 2
    run = set_up(settings(data, ""), TinyModel())
    np.testing.assert_array_equal(run.validation.images.values, rows[::3])
