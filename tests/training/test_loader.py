"""Inputs and batches: features on the device or mapped, images cropped by position, views, batches by index."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from bcls.data.dataset import open_dataset
from bcls.models.layers import Padded
from bcls.training import loader as sources
from bcls.training.loader import (
    CAPTION_STEP,
    CaptionInputs,
    DeviceFeatures,
    ImageReader,
    IndexBatch,
    Loader,
    MappedFeatures,
    ViewSampler,
    feature_source,
)
from bcls.training.setup import set_up
from bcls.training.train import load_batches, train
from tests.data.factories import make_dataset
from tests.training.factories import TinyModel, add_views, make_data, settings
from tests.training.test_resume import Stopping, contents

CPU = torch.device("cpu")


def pixels(images):
    """A model's ``prepare_images``: 8 x 8 pixels."""
    arrays = [np.asarray(image.resize((8, 8))).transpose(2, 0, 1) for image in images]
    return Padded(torch.from_numpy(np.stack(arrays)))


@pytest.mark.parametrize("regions", [0, 3])
@pytest.mark.parametrize("held", [True, False])
def test_features_equal_those_of_the_dataset(tmp_path, monkeypatch, regions, held):
    monkeypatch.setattr(sources, "fits_in_memory", lambda size, device: held)
    dataset = open_dataset(make_data(tmp_path / "data", regions=regions)).split("train")
    source = feature_source(dataset.features("made"), CPU)
    assert source.in_memory == held
    taken = source.take(np.array([4, 0, 4]), np.array([0, 1, 2]), 0)
    np.testing.assert_array_equal(taken.values, dataset.features("made").take([4, 0, 4]))
    assert len(source.everything()) == len(dataset.images)


def test_crops_depend_on_seed_epoch_and_caption(tmp_path):
    dataset = open_dataset(make_dataset(tmp_path / "data"))
    with ThreadPoolExecutor(2) as pool:
        source = ImageReader(dataset, pixels, pool, 1, 0.3)
        images, captions = np.array([0, 1, 0]), np.array([0, 2, 1])
        first = source.take(images, captions, 0).values
        assert torch.equal(first, source.take(images, captions, 0).values)
        assert torch.equal(first[1:2], source.take(images[1:2], captions[1:2], 0).values)
        assert not torch.equal(first, source.take(images, captions, 1).values)
        assert not torch.equal(first[0], first[2])  # one image, two captions, two crops
        whole = ImageReader(dataset, pixels, pool, 1, None)
        assert torch.equal(whole.take(images, captions, 0).values, whole.take(images, captions, 1).values)
        everything = whole.everything()
        assert len(everything) == len(dataset.images)
        assert torch.equal(pixels(everything[1:3]).values[0], whole.take(images, captions, 0).values[1])


def test_batches_are_in_order_with_and_without_reading_ahead(tmp_path, monkeypatch):
    dataset = open_dataset(make_data(tmp_path / "data")).split("train")
    texts = Padded(torch.arange(54 * 4).view(54, 4), torch.tensor([1, 2, 4] * 18))
    plan = [np.array([3, 0]), np.array([6, 9, 1]), *[np.array([one, one + 3]) for one in range(9)]]
    made = {}
    for held in (True, False):
        monkeypatch.setattr(sources, "fits_in_memory", lambda size, device, held=held: held)
        images = feature_source(dataset.features("made"), CPU)
        loader = Loader(images, CaptionInputs(texts, CPU), dataset.image_of_caption, CPU)
        made[held] = list(loader.batches(plan, 0))
    for one, other, captions in zip(made[True], made[False], plan, strict=True):
        assert one.image_ids.tolist() == other.image_ids.tolist() == dataset.image_of_caption[captions].tolist()
        assert torch.equal(one.images.values, other.images.values)
        assert torch.equal(one.texts.values, texts.values[captions][:, : one.texts.lengths.max()])
        assert one.texts.host_lengths == one.texts.lengths.tolist() == texts.lengths[captions].tolist()


def test_an_error_of_a_reading_thread_is_raised(tmp_path):
    dataset = open_dataset(make_dataset(tmp_path / "data"))
    (tmp_path / "data" / "images" / "i1.png").write_bytes(b"nothing")
    with ThreadPoolExecutor(2) as pool:
        source = ImageReader(dataset, pixels, pool, 1, 0.3)
        feed = Loader(source, CaptionInputs(Padded(torch.zeros(8, 2)), CPU), dataset.image_of_caption, CPU)
        with pytest.raises(ValueError, match=r"i1\.png"):
            list(feed.batches([np.array([0, 2])], 0))


def test_every_process_has_its_share_with_the_same_width():
    texts = CaptionInputs(Padded(torch.arange(12).view(4, 3), torch.tensor([1, 3, 1, 2])), CPU)

    class Held:
        in_memory = True

        def take(self, images, captions, epoch):
            return Padded(torch.from_numpy(images))

    loaders = [Loader(Held(), texts, np.arange(4), CPU, rank=rank, ranks=2) for rank in (0, 1)]
    parts = [next(loader.batches([np.arange(4)], 0)) for loader in loaders]
    assert [part.texts.values.shape for part in parts] == [(2, 3), (2, 3)]
    assert torch.cat([part.images.values for part in parts]).tolist() == [0, 1, 2, 3]


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
    def test_is_splitmix64_at_the_position_of_the_caption(self):
        assert splitmix(0, 1) == [0xE220A8397B1DCDAF]
        state = int(np.random.SeedSequence((3, 5)).generate_state(1, np.uint64)[0])
        expected = [(number >> 33) * 9 >> 31 for number in splitmix(state, 50)]
        assert ViewSampler(3, 9)(np.arange(50), 5).tolist() == expected

    def test_the_view_does_not_depend_on_other_captions(self):
        draw = ViewSampler(1, 5)
        captions = np.random.default_rng(0).permutation(1000)
        every = draw(np.arange(1000), 2)
        assert draw(captions, 2).tolist() == every[captions].tolist()
        assert draw(captions[:1], 2).tolist() == every[captions[:1]].tolist()
        assert draw(captions[:0], 2).shape == (0,)
        assert every.dtype == np.int64

    @pytest.mark.parametrize("number", [2, 3, 9])
    def test_views_are_drawn_evenly_over_captions_and_over_epochs(self, number):
        draw = ViewSampler(1, number)
        over = [draw(np.arange(9000), 0), np.concatenate([draw(np.arange(30), epoch) for epoch in range(300)])]
        for drawn in over:
            counts = np.bincount(drawn, minlength=number)
            assert len(counts) == number
            assert np.abs(counts - 9000 / number).max() < 5 * np.sqrt(9000 / number)

    def test_views_change_with_seed_and_epoch(self):
        captions = np.arange(200)
        drawn = [ViewSampler(seed, 4)(captions, epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
        assert len({tuple(one) for one in drawn}) == 4


@pytest.fixture(scope="module", params=[0, 3])
def data(request, tmp_path_factory):
    """Vectors, or regions some of which are padding, in four views."""
    folder = make_data(tmp_path_factory.mktemp("views") / "data", images=32, regions=request.param)
    return add_views(folder, 4, counts=request.param > 0)


@pytest.fixture(params=[True, False], ids=["held", "mapped"])
def held(request, monkeypatch):
    monkeypatch.setattr(sources, "fits_in_memory", lambda size, device: request.param)
    return request.param


def test_each_caption_has_the_view_that_was_drawn(data, held):
    features = open_dataset(data).split("train").features("made")
    source = feature_source(features, CPU, seed=1)
    assert isinstance(source, DeviceFeatures if held else MappedFeatures)
    captions = np.array([7, 0, 23, 8, 9, 7])
    images = np.array([4, 0, 4, 11, 23, 4])
    seen = set()
    for epoch in range(6):
        taken = source.take(images, captions, epoch)
        views = ViewSampler(1, 4)(captions, epoch)
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


def test_without_a_seed_images_are_whole(data, held):
    features = open_dataset(data).split("train").features("made")
    source = feature_source(features, CPU)
    images = np.array([4, 0, 4])
    for epoch in range(3):
        np.testing.assert_array_equal(source.take(images, images, epoch).values, features.take(images))
    np.testing.assert_array_equal(source.everything().values, features.take(range(len(features))))


@pytest.mark.parametrize("seed", [None, 1])
def test_the_size_of_all_views_is_checked_against_the_memory(data, monkeypatch, seed):
    asked = []
    monkeypatch.setattr(sources, "fits_in_memory", lambda size, device: asked.append(size) or True)
    features = open_dataset(data).split("train").features("made")
    feature_source(features, CPU, seed)
    assert asked == [features.take(range(len(features))).nbytes * (4 if seed else 1)]


def test_an_epoch_uses_all_views_and_the_next_one_others(data):
    run = set_up(settings(data, "", val_split=None), TinyModel())
    rows = open_dataset(data).split("train").features("made")
    shown = []
    for epoch in range(2):
        plan = [batch for step in run.plan(epoch) for batch in step]
        views = {}
        for captions, batch in zip(plan, run.loader.batches(plan, epoch), strict=True):
            for caption, value in zip(captions, batch.images.values, strict=True):
                image = run.train.image_of_caption[caption]
                same = [view for view in range(4) if np.array_equal(value, rows.take([image], view)[0])]
                assert len(same) == 1
                views[int(caption)] = same[0]
        shown.append(views)
    assert [set(views.values()) for views in shown] == [{0, 1, 2, 3}] * 2
    common = shown[0].keys() & shown[1].keys()
    assert sum(shown[0][one] != shown[1][one] for one in common) > len(common) / 2


def test_processes_draw_the_same_views(data):
    run = set_up(settings(data, "", val_split=None), TinyModel())
    plan = [run.plan(0)[0][0]]
    alone = next(iter(run.loader.batches(plan, 3)))
    parts = [replace(run.loader, rank=rank, ranks=3) for rank in range(3)]
    together = torch.cat([next(iter(part.batches(plan, 3))).images.values for part in parts])
    assert torch.equal(together, alone.images.values)


LONG = {"epochs": 2, "save_every": 4}


@pytest.mark.parametrize("held", [True, False], indirect=True)
def test_a_resumed_run_with_views_equals_an_uninterrupted_one(tmp_path, held):
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


def test_validation_uses_whole_images_only(tmp_path):
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


@pytest.fixture
def run(tmp_path):
    data = make_data(tmp_path / "data", images=40, regions=0)
    return set_up(settings(data, "", loss={"name": "bcls"}, labels="minilm", val_split=None), TinyModel())


def test_a_batch_made_on_the_device_equals_one_made_on_the_host(run):
    assert run.loader.on_device
    plan = [batch for step in run.plan(0) for batch in step]
    made = run.loader.batches(plan, 0)
    for indexed in run.loader.index_batches(plan, 0):
        wanted, found = next(made), run.loader.load(indexed)
        assert found.pairs == wanted.pairs
        assert torch.equal(found.images.values, wanted.images.values)
        assert torch.equal(found.image_ids, wanted.image_ids)
        assert torch.equal(found.relevance, wanted.relevance)
        assert torch.equal(found.texts.lengths, wanted.texts.lengths)
        width = wanted.texts.values.shape[1]
        assert (indexed.width + 1) % CAPTION_STEP == 0
        assert found.texts.values.shape[1] == indexed.width
        assert torch.equal(found.texts.values[:, :width], wanted.texts.values)
        assert not found.texts.values[:, width:].any()
    assert list(run.loader.index_batches([], 0)) == []


@pytest.mark.parametrize("regions", [0, 3])
def test_batches_made_on_the_device_have_the_same_views(tmp_path, regions):
    data = add_views(make_data(tmp_path / "data", images=40, regions=regions), 5, counts=regions > 0)
    run = set_up(settings(data, "", val_split=None), TinyModel())
    assert run.loader.on_device
    drawn = []
    for epoch in range(2):
        plan = [batch for step in run.plan(epoch) for batch in step]
        made = run.loader.batches(plan, epoch)
        for indexed in run.loader.index_batches(plan, epoch):
            wanted, found = next(made), run.loader.load(indexed)
            assert torch.equal(found.images.values, wanted.images.values)
            assert torch.equal(found.images.mask, wanted.images.mask)
            assert torch.equal(found.image_ids, wanted.image_ids)
            drawn.append(indexed.views)
        rest = list(run.loader.index_batches(plan[3:], epoch))  # as in a run that resumes in the middle
        assert torch.equal(rest[0].views, drawn[-len(plan) + 3])
    assert set(torch.cat(drawn).tolist()) == {0, 1, 2, 3, 4}


def test_steps_of_a_recorded_run_have_the_views_of_their_epoch(tmp_path):
    data = add_views(make_data(tmp_path / "data", images=40), 5)
    run = set_up(settings(data, "", val_split=None), TinyModel())
    recorded = replace(run, config=replace(run.config, graph=True))
    for epoch in range(2):
        plain, indexed = (load_batches(one, one.plan(epoch), epoch) for one in (run, recorded))
        for wanted, found in zip(plain, indexed, strict=True):
            images = recorded.loader.load(found[0]).images.values
            assert torch.equal(images, wanted[0].images.values)


def test_batches_of_equal_size_and_width_share_a_recording():
    one = IndexBatch(torch.arange(3), 8)
    assert one.shape == (3, 8) != IndexBatch(torch.arange(3), None).shape
    two = IndexBatch(torch.arange(2), 8, torch.tensor([4, 5]))
    copy = two.clone()
    two.views.fill_(0)
    assert [part.tolist() for part in copy.tensors()] == [[0, 1], [4, 5]]


def test_image_files_and_several_processes_need_the_host(run):
    class Read:
        in_memory = False

    assert not replace(run.loader, images=Read()).on_device
    assert not replace(run.loader, ranks=2).on_device
    assert replace(run.loader, labels=None).on_device


def test_the_longest_of_some_captions(run):
    lengths = TinyModel().prepare_texts(run.train.texts).lengths.numpy()
    some = np.array([0, 3, 5])
    assert run.loader.texts.longest(some) == lengths[some].max()
