"""Where batches come from: features held or mapped, pictures cropped alike whenever a step comes by again."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from bcls.data.dataset import open_dataset
from bcls.models.padded import Padded
from bcls.training import images as sources
from bcls.training.images import PictureImages, feature_images
from bcls.training.loader import Feed, Texts
from tests.data.factories import make_dataset
from tests.training.made import make_data

CPU = torch.device("cpu")


def pixels(pictures):
    """A model's ``prepare_images``: 8 x 8 pixels."""
    arrays = [np.asarray(picture.resize((8, 8))).transpose(2, 0, 1) for picture in pictures]
    return Padded(torch.from_numpy(np.stack(arrays)))


@pytest.mark.parametrize("regions", [0, 3])
@pytest.mark.parametrize("held", [True, False])
def test_features_are_the_datasets(tmp_path, monkeypatch, regions, held):
    monkeypatch.setattr(sources, "fits", lambda size, device: held)
    dataset = open_dataset(make_data(tmp_path / "data", regions=regions)).split("train")
    source = feature_images(dataset.features("made"), CPU)
    assert source.at_hand == held
    taken = source.take(np.array([4, 0, 4]), np.array([0, 1, 2]), 0)
    np.testing.assert_array_equal(taken.values, dataset.features("made").take([4, 0, 4]))
    assert len(source.everything()) == len(dataset.images)


def test_pictures_are_cropped_by_seed_epoch_and_caption(tmp_path):
    dataset = open_dataset(make_dataset(tmp_path / "data"))
    with ThreadPoolExecutor(2) as pool:
        source = PictureImages(dataset, pixels, pool, 1, 0.3)
        images, captions = np.array([0, 1, 0]), np.array([0, 2, 1])
        first = source.take(images, captions, 0).values
        assert torch.equal(first, source.take(images, captions, 0).values)
        assert torch.equal(first[1:2], source.take(images[1:2], captions[1:2], 0).values)
        assert not torch.equal(first, source.take(images, captions, 1).values)
        assert not torch.equal(first[0], first[2])  # one image, two captions, two crops
        whole = PictureImages(dataset, pixels, pool, 1, None)
        assert torch.equal(whole.take(images, captions, 0).values, whole.take(images, captions, 1).values)
        everything = whole.everything()
        assert len(everything) == len(dataset.images)
        assert torch.equal(pixels(everything[1:3]).values[0], whole.take(images, captions, 0).values[1])


def test_batches_come_in_order_whether_made_ahead_or_not(tmp_path, monkeypatch):
    dataset = open_dataset(make_data(tmp_path / "data")).split("train")
    texts = Padded(torch.arange(54 * 4).view(54, 4), torch.tensor([1, 2, 4] * 18))
    plan = [np.array([3, 0]), np.array([6, 9, 1]), *[np.array([one, one + 3]) for one in range(9)]]
    made = {}
    for held in (True, False):
        monkeypatch.setattr(sources, "fits", lambda size, device, held=held: held)
        feed = Feed(feature_images(dataset.features("made"), CPU), Texts(texts, CPU), dataset.image_of_caption, CPU)
        made[held] = list(feed.batches(plan, 0))
    for one, other, captions in zip(made[True], made[False], plan, strict=True):
        assert one.captions.tolist() == captions.tolist()
        assert torch.equal(one.images.values, other.images.values)
        assert torch.equal(one.texts.values, texts.values[captions][:, : one.texts.lengths.max()])


def test_a_reader_that_fails_is_heard(tmp_path):
    dataset = open_dataset(make_dataset(tmp_path / "data"))
    (tmp_path / "data" / "images" / "i1.png").write_bytes(b"nothing")
    with ThreadPoolExecutor(2) as pool:
        source = PictureImages(dataset, pixels, pool, 1, 0.3)
        feed = Feed(source, Texts(Padded(torch.zeros(8, 2)), CPU), dataset.image_of_caption, CPU)
        with pytest.raises(ValueError, match=r"i1\.png"):
            list(feed.batches([np.array([0, 2])], 0))


def test_every_process_has_its_share_and_one_width():
    texts = Texts(Padded(torch.arange(12).view(4, 3), torch.tensor([1, 3, 1, 2])), CPU)

    class Held:
        at_hand = True

        def take(self, images, captions, epoch):
            return Padded(torch.from_numpy(images))

    parts = [next(iter(Feed(Held(), texts, np.arange(4), CPU, rank, 2).batches([np.arange(4)], 0))) for rank in (0, 1)]
    assert [part.texts.values.shape for part in parts] == [(2, 3), (2, 3)]
    assert torch.cat([part.images.values for part in parts]).tolist() == [0, 1, 2, 3]
