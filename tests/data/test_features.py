import numpy as np
import pytest

from bcls.data.dataset import open_dataset
from bcls.data.records import FeatureFile, Manifest, Quarantine, write_manifest, write_quarantine


class TestFeatures:
    @pytest.fixture
    def data(self, folder):
        values = np.arange(4 * 3 * 2, dtype=np.float32).reshape(4, 3, 2)
        (folder / "features").mkdir()
        np.save(folder / "features" / "train.npy", np.repeat(values[:2], 5, axis=0))
        np.save(folder / "features" / "val.npy", values[2:3])
        np.save(folder / "features" / "test.npy", values[3:])
        np.save(folder / "features" / "counts.npy", np.array([2]))
        files = {
            "train": FeatureFile("features/train.npy", every=5),
            "val": FeatureFile("features/val.npy", counts="features/counts.npy"),
            "test": FeatureFile("features/test.npy"),
        }
        write_manifest(folder, Manifest("made", features={"regions": files}))
        return open_dataset(folder)

    def test_rows_follow_the_images(self, data):
        features = data.features("regions")
        assert features.shape == (4, 3, 2)
        assert len(features) == 4
        assert [int(features[number][0, 0]) for number in range(4)] == [0, 6, 12, 18]
        assert features.take([3, 0, 0])[:, 0, 0].tolist() == [18, 0, 0]
        assert [features.regions(number) for number in range(4)] == [None, None, 2, None]
        assert isinstance(features.arrays[0], np.memmap)
        assert data.split("val").features("regions")[0][0, 0] == 12

    def test_views_are_read_by_number(self, folder):
        values = np.arange(2 * 3 * 4 * 2, dtype=np.float16).reshape(2 * 3, 4, 2)
        np.save(folder / "train.npy", values)
        np.save(folder / "counts.npy", np.array([0, 1, 2, 3, 4, 1]))
        np.save(folder / "val.npy", values[:2] + 100)
        files = {
            "train": FeatureFile("train.npy", every=3, counts="counts.npy", views=3),
            "val": FeatureFile("val.npy", every=2, views=2),
        }
        write_manifest(folder, Manifest("made", features={"grid": files}))
        data = open_dataset(folder)
        features = data.split("train").features("grid")
        assert (len(features), features.shape, features.views) == (2, (2, 4, 2), 3)
        np.testing.assert_array_equal(features[1], values[3])
        np.testing.assert_array_equal(features.take([1, 0]), values[[3, 0]])
        np.testing.assert_array_equal(features.take([1, 0, 1], [2, 1, 0]), values[[5, 1, 3]])
        np.testing.assert_array_equal(features.take([1, 0], 2), values[[5, 2]])
        assert features.take([], []).shape == (0, 4, 2)
        assert [features.regions(1), features.regions(1, 2)] == [3, 1]
        for wrong in (3, -1, [0, 3]):
            with pytest.raises(ValueError, match="`views`: expected numbers from 0 to 2"):
                features.take([0, 1], wrong)
        with pytest.raises(ValueError, match="`views`: expected one, or one for each of 2 images"):
            features.take([0, 1], [0])
        with pytest.raises(ValueError, match="`views`: expected numbers from 0 to 2, got 3"):
            features.regions(1, 3)
        write_quarantine(folder, Quarantine({"i0": "bad"}))
        left = open_dataset(folder).without_quarantined().split("train").features("grid")
        np.testing.assert_array_equal(left.take([0], [1]), values[[4]])

    def test_views_of_several_splits_are_those_that_all_have(self, folder):
        files = {}
        for split, images, views in (("train", 2, 3), ("val", 1, 2), ("test", 1, 4)):
            np.save(folder / f"{split}.npy", np.full((images * views, 5), views) + np.arange(images * views)[:, None])
            files[split] = FeatureFile(f"{split}.npy", every=views, views=views)
        write_manifest(folder, Manifest("made", features={"grid": files}))
        features = open_dataset(folder).features("grid")
        assert features.views == 2
        assert features.take([3, 1, 2], [1, 1, 0])[:, 0].tolist() == [5, 7, 2]

    def test_rows_that_disagree_with_the_views(self, folder):
        np.save(folder / "train.npy", np.zeros((4, 5)))
        file = FeatureFile("train.npy", every=3, views=3)
        write_manifest(folder, Manifest("made", features={"grid": {"train": file}}))
        with pytest.raises(ValueError, match=r"one row for each of 2 images x 3, got shape \(4, 5\)"):
            open_dataset(folder).split("train").features("grid")

    def test_features_after_a_quarantine(self, data):
        write_quarantine(data.folder, Quarantine({"i0": "bad"}))
        assert data.without_quarantined().features("regions").take([0, 2])[:, 0, 0].tolist() == [6, 18]

    def test_unknown_names(self, data):
        with pytest.raises(
            ValueError, match=r"\('regions'\), got 'region'; did you mean 'regions'\? Otherwise extract them with `bcls"
        ):
            data.features("region")
        with pytest.raises(
            ValueError,
            match=r"got 'x'; extract them with `bcls data features .* --name x --backbone BACKBONE --regions REGIONS`",
        ):
            data.features("x")

    def test_counts_that_disagree(self, data):
        np.save(data.folder / "features" / "test.npy", np.zeros((3, 3, 2)))
        with pytest.raises(ValueError, match=r"one row for each of 1 images, got shape \(3, 3, 2\)"):
            data.features("regions")

    def test_empty_dataset_has_a_feature_shape(self, data):
        features = data.of_images([]).features("regions")
        assert features.shape == (0, 3, 2)
        assert features.take([]).shape == (0, 3, 2)
        write_manifest(data.folder, Manifest("made", features={"grid": {}}))
        with pytest.raises(ValueError, match="a file for a split of the dataset, got files for none"):
            open_dataset(data.folder).of_images([]).features("grid")

    @pytest.mark.parametrize("shape", [(1, 0), (1, 0, 2), (1, 3, 0)])
    def test_empty_rows_are_refused(self, data, shape):
        np.save(data.folder / "features" / "test.npy", np.zeros(shape))
        with pytest.raises(ValueError, match=r"test.npy`: expected one row for each of 1 images, got shape \(1, "):
            data.split("test").features("regions")

    @pytest.mark.parametrize("count", [-1, 4])
    def test_counts_that_cannot_be(self, data, count):
        np.save(data.folder / "features" / "counts.npy", np.array([count]))
        with pytest.raises(ValueError, match=f"counts.npy`: expected numbers of regions from 0 to 3, got {count}"):
            data.split("val").features("regions")

    def test_shapes_that_disagree(self, data):
        np.save(data.folder / "features" / "test.npy", np.zeros((1, 2, 2)))
        with pytest.raises(ValueError, match="the same shape in all splits"):
            data.features("regions")

    def test_no_array(self, data):
        (data.folder / "features" / "test.npy").write_bytes(b"no array")
        with pytest.raises(ValueError, match=r"an \.npy file with numbers"):
            data.features("regions")

    def test_a_split_without_features(self, folder):
        write_manifest(folder, Manifest("made", features={"grid": {}}))
        with pytest.raises(ValueError, match="a file for split 'train', got files for none"):
            open_dataset(folder).features("grid")
