import json

from bcls.data import open_dataset
from bcls.data.manifest import FeatureFile, add_features
from tests.data.made import make_dataset


def test_features_are_added_and_the_rest_is_kept(tmp_path):
    folder = make_dataset(tmp_path / "data", mine={"note": "ä"})
    before = json.loads((folder / "manifest.json").read_text())
    add_features(folder, "grid", "train", FeatureFile("features/grid/train.npy"))
    add_features(folder, "grid", "test", FeatureFile("features/grid/test.npy", every=5))
    after = json.loads((folder / "manifest.json").read_text())
    assert open_dataset(folder).manifest.features["grid"]["test"] == FeatureFile("features/grid/test.npy", every=5)
    assert {**before, "features": after["features"]} == after


def test_the_same_again_changes_nothing(tmp_path):
    folder = make_dataset(tmp_path / "data")
    add_features(folder, "grid", "train", FeatureFile("a.npy"))
    kept = (folder / "manifest.json").stat().st_mtime_ns
    add_features(folder, "grid", "train", FeatureFile("a.npy"))
    assert (folder / "manifest.json").stat().st_mtime_ns == kept


def test_sizes_on_disk_are_known_to_every_part(tmp_path):
    dataset = open_dataset(make_dataset(tmp_path / "data"))
    assert dataset.split_sizes == {"train": 2, "val": 1, "test": 1}
    assert dataset.split("val").split_sizes == dataset.split_sizes
