"""Extraction with random crops."""

import json

import numpy as np
import pytest
import torch

from bcls.data.check import check_dataset
from bcls.data.dataset import open_dataset
from bcls.data.images import random_view
from bcls.features.backbones import load_backbone
from bcls.features.extraction import FeatureSettings, extract
from bcls.features.regions import image_views
from tests.features.factories import digests, interrupted_extraction
from tests.reference.features import features as reference

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize(("view", "regions", "grid"), [("whole", "4", 2), ("whole", "global", None)])
def test_rows_equal_the_reference(folder, backbone, view, regions, grid, monkeypatch):
    shown = []
    monkeypatch.setattr(
        "bcls.features.regions.random_view", lambda *given: shown.append(given[1:]) or random_view(*given)
    )
    done = extract(open_dataset(folder), FeatureSettings(backbone, regions, view, views=2, smallest_crop=0.3))
    assert done.name == f"{backbone.rpartition('/')[2]}-{regions}-views2"
    shape = (16,) if grid is None else (4, 16)
    assert (done.shapes, done.views) == ({"train": (48, *shape), "test": (12, *shape)}, 3)
    dataset = open_dataset(folder)
    found = dataset.features(done.name)
    assert (found.shape, found.views) == ((20, *shape), 3)
    assert len(set(shown)) == 40
    network = load_backbone(backbone)
    for number in (0, 4, 5, 15, 16, 19):
        image_id = dataset.image_ids[number]
        images = image_views(dataset.read_image(image_id), image_id, 2, 0.3)
        for place, image in enumerate(images):
            row = torch.tensor(found.take([number], place)[0]).float()
            torch.testing.assert_close(row, reference(network, image, view, grid), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(("view", "regions"), [("whole", "2x2"), ("centre", "global")])
def test_rows_of_images_equal_those_without_crops(folder, backbone, view, regions):
    plain = extract(open_dataset(folder), FeatureSettings(backbone, regions, view, name="plain"))
    several = extract(open_dataset(folder), FeatureSettings(backbone, regions, view, views=2, name="several"))
    for split in ("train", "test"):
        one, all_views = np.load(plain.folder / f"{split}.npy"), np.load(several.folder / f"{split}.npy")
        assert one.tobytes() == all_views[::3].tobytes()
        assert not np.array_equal(one, all_views[1::3])
    dataset = open_dataset(folder)
    assert dataset.features("plain").take(range(20)).tobytes() == dataset.features("several").take(range(20)).tobytes()


def test_manifests_record_the_number_of_crops(folder, backbone):
    done = extract(open_dataset(folder), FeatureSettings(backbone, "global", "centre", views=3))
    assert done.name.endswith("-global-centre-views3")
    entry = json.loads((folder / "manifest.json").read_text())["features"][done.name]
    assert entry["test"] == {"path": f"features/{done.name}/test.npy", "every": 4, "views": 4}
    record = json.loads((done.folder / "manifest.json").read_text())
    assert (record["settings"]["views"], record["settings"]["smallest_crop"]) == (3, 0.5)
    assert record["splits"]["test"]["rows"] == 16
    assert check_dataset(folder).counts() == {}
    plain = extract(open_dataset(folder), FeatureSettings(backbone, "global"))
    assert not {"views", "smallest_crop"} & json.loads((plain.folder / "manifest.json").read_text())["settings"].keys()


def test_resume_and_other_orders_give_the_same_bytes(folder, backbone, monkeypatch):
    whole = extract(open_dataset(folder), FeatureSettings(backbone, "4", views=2, name="whole")).folder
    settings = FeatureSettings(backbone, "4", views=2, name="parts")
    interrupted_extraction(folder, settings, monkeypatch)
    extract(open_dataset(folder), settings)
    assert digests(folder / "features" / "parts") == digests(whole)
    for split in ("test", "train"):
        extract(open_dataset(folder), FeatureSettings(backbone, "4", views=2, name="turned", split=split))
    assert digests(folder / "features" / "turned") == digests(whole)
    entries = json.loads((folder / "manifest.json").read_text())["features"]
    assert entries["parts"]["train"]["views"] == entries["turned"]["train"]["views"] == 3


CHANGES = [
    ({"views": 2}, {"views": 3}, "`views`: expected 2, as in the .*, got 3"),
    ({"views": 2}, {"views": 2, "smallest_crop": 0.7}, "`smallest_crop`: expected 0.5, as in the .*, got 0.7"),
    ({"views": 2}, {}, "`views`: expected 2, as in the .*, got none"),
    ({}, {"views": 2}, "`views`: expected none, as in the .*, got 2"),
]


@pytest.mark.parametrize(("before", "now", "message"), CHANGES)
def test_other_numbers_of_crops_under_the_same_name_raise(folder, backbone, monkeypatch, before, now, message):
    same = {"backbone": backbone, "regions": "4", "name": "mine"}
    interrupted_extraction(folder, FeatureSettings(**same, **before), monkeypatch)
    with pytest.raises(ValueError, match=message):
        extract(open_dataset(folder), FeatureSettings(**same, **now))
    extract(open_dataset(folder), FeatureSettings(**same, **before))
    with pytest.raises(ValueError, match=message):
        extract(open_dataset(folder), FeatureSettings(**same, **now))


def test_lost_entry_in_the_dataset_manifest_is_restored(folder, backbone):
    settings = FeatureSettings(backbone, "4", views=1, name="mine")
    extract(open_dataset(folder), settings)
    entered = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(json.dumps({**json.loads(entered), "features": {}}))
    assert extract(open_dataset(folder), settings).already == ("train", "test")
    assert json.loads((folder / "manifest.json").read_text()) == json.loads(entered)


def test_all_rows_of_an_unreadable_image_are_zero(folder, backbone):
    bad = open_dataset(folder).image_ids[6]
    (folder / "images" / f"{bad}.png").write_bytes(b"no image")
    settings = FeatureSettings(backbone, "4", views=2, name="mine")
    assert list(extract(open_dataset(folder), settings).unreadable) == [bad]
    check_dataset(folder)
    assert extract(open_dataset(folder), settings).zero_rows == (bad,)
    filled = np.load(folder / "features" / "mine" / "train.npy").any((1, 2))
    assert np.flatnonzero(~filled).tolist() == [18, 19, 20]
    report = check_dataset(folder)
    assert [one.subject for one in report.findings if one.kind == "bad-features"] == [bad]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"views": -1}, "`views`: expected a whole number not below 0"),
        ({"views": 2, "view": "ten-crop"}, "`views`: expected 0, or another view, got 2 with the view ten-crop"),
        ({"views": 2, "regions": "crops-36"}, "`views`: expected 0, or regions of a grid, got 2 with crops-36"),
        ({"views": 2, "smallest_crop": 0.0}, "`smallest_crop`: expected a fraction above 0 and at most 1, got 0.0"),
        ({"views": 2, "smallest_crop": 1.5}, "`smallest_crop`: expected"),
        ({"views": 2, "smallest_crop": float("nan")}, "`smallest_crop`: expected"),
        ({"smallest_crop": 0.3}, "`smallest_crop`: expected no value without random crops, got 0.3; set their number"),
    ],
)
def test_invalid_settings_raise_and_write_nothing(folder, backbone, change, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        extract(open_dataset(folder), FeatureSettings(**{"backbone": backbone, "regions": "4", **change}))
    assert not (folder / "features").exists()
