import json

import pytest

from bcls.data.dataset import open_dataset
from bcls.data.records import FeatureFile, add_features, read_manifest, write_manifest
from tests.data.factories import make_dataset


def test_features_are_added_and_the_rest_is_kept(tmp_path):
    folder = make_dataset(tmp_path / "data", mine={"note": "ä"})
    before = json.loads((folder / "manifest.json").read_text())
    add_features(folder, "grid", "train", FeatureFile("features/grid/train.npy"))
    add_features(folder, "grid", "test", FeatureFile("features/grid/test.npy", every=5))
    after = json.loads((folder / "manifest.json").read_text())
    assert open_dataset(folder).manifest.features["grid"]["test"] == FeatureFile("features/grid/test.npy", every=5)
    assert {**before, "features": after["features"]} == after


def test_adding_the_same_features_again_changes_nothing(tmp_path):
    folder = make_dataset(tmp_path / "data")
    add_features(folder, "grid", "train", FeatureFile("a.npy"))
    kept = (folder / "manifest.json").stat().st_mtime_ns
    add_features(folder, "grid", "train", FeatureFile("a.npy"))
    assert (folder / "manifest.json").stat().st_mtime_ns == kept


def test_views_are_written_only_where_there_are_some(tmp_path):
    folder = make_dataset(tmp_path / "data")
    several = FeatureFile("a.npy", every=4, views=4)
    add_features(folder, "grid", "train", several)
    add_features(folder, "grid", "test", FeatureFile("b.npy", every=4))
    expected = {"train": {"path": "a.npy", "every": 4, "views": 4}, "test": {"path": "b.npy", "every": 4}}
    assert json.loads((folder / "manifest.json").read_text())["features"]["grid"] == expected
    assert read_manifest(folder).features["grid"]["train"] == several
    write_manifest(folder, read_manifest(folder))
    assert json.loads((folder / "manifest.json").read_text())["features"]["grid"] == expected


@pytest.mark.parametrize("views", [0, 5, 1.0, "2", True])
def test_views_are_rows_of_the_image(tmp_path, views):
    with pytest.raises(ValueError, match="`views`: expected"):
        FeatureFile("a.npy", every=4, views=views)
    file = {"path": "a.npy", "every": 4, "views": views}
    folder = make_dataset(tmp_path / "data", features={"grid": {"train": file}})
    with pytest.raises(ValueError, match=r"manifest\.json.*`views`"):
        read_manifest(folder)


def test_sizes_on_disk_are_known_to_every_part(tmp_path):
    dataset = open_dataset(make_dataset(tmp_path / "data"))
    assert dataset.split_sizes == {"train": 2, "val": 1, "test": 1}
    assert dataset.split("val").split_sizes == dataset.split_sizes
