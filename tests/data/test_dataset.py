import gzip
import io
import json
import multiprocessing
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from bcls.data.dataset import open_dataset
from bcls.data.records import FeatureFile, ImageFiles, Manifest, Quarantine, write_manifest, write_quarantine
from tests.data.made import caption_rows, make_dataset, make_pictures, picture, write_lines


@pytest.fixture
def folder(tmp_path):
    return make_dataset(tmp_path / "made")


class TestMadeByHand:
    @pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
    def test_two_files_and_pictures_are_enough(self, tmp_path, kind):
        data = open_dataset(make_dataset(tmp_path / "made", kind))
        assert data.name == "made"
        assert data.image_ids == ("i0", "i1", "i2", "i3")
        assert data.splits == {"train": (2, 4), "val": (1, 2), "test": (1, 2)}
        assert data.texts[:2] == ["picture 0, take 0", "picture 0, take 1"]
        assert data.image_of_caption.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        with ThreadPoolExecutor(4) as pool:
            pictures = list(pool.map(data.read_image, data.image_ids * 3))
        for number, image in enumerate(pictures):
            with Image.open(io.BytesIO(picture(number % 4))) as expected:
                assert np.array_equal(np.asarray(image), np.asarray(expected))

    def test_splits_are_datasets(self, folder):
        test = open_dataset(folder).split("test")
        assert test.image_ids == ("i3",)
        assert test.image_of_caption.tolist() == [0, 0]
        assert test.splits == {"test": (1, 2)}
        assert test.read_image("i3").size == (32, 24)
        with pytest.raises(ValueError, match="expected one of the 1 images, got 'i0'"):
            test.read_image("i0")
        with pytest.raises(ValueError, match="did you mean 'test'"):
            open_dataset(folder).split("tset")

    def test_numbers_are_ids_too(self, tmp_path):
        rows = [{"image_id": 7, "caption_id": 9, "text": "seven", "split": "train"}]
        data = open_dataset(make_dataset(tmp_path / "made", rows=rows))
        assert (data.image_ids, data.captions[0].caption_id) == (("7",), "9")
        assert data.read_image("7").mode == "RGB"

    def test_it_is_frozen_and_travels(self, folder):
        data = open_dataset(folder)
        with pytest.raises(AttributeError):
            data.images = ()
        there = pickle.loads(pickle.dumps(data))  # noqa: S301
        assert there == data
        assert there.read_bytes("i1") == picture(1)

    def test_images_that_moved(self, folder, tmp_path):
        (folder / "images").rename(tmp_path / "elsewhere")
        write_manifest(folder, Manifest("made", images=open_dataset(folder).manifest.images))
        data = open_dataset(folder)
        with pytest.raises(ValueError, match="import the dataset with --images, or open it with images"):
            data.read_image("i0")
        assert open_dataset(folder, images=tmp_path / "elsewhere").read_bytes("i0") == picture(0)

    def test_a_fork_while_a_thread_reads(self, folder):
        data = open_dataset(folder)
        with data._library._lock:
            child = multiprocessing.get_context("fork").Process(target=data.read_bytes, args=("i0",))
            child.start()
        child.join(20)
        hangs = child.is_alive()
        child.kill()
        assert (hangs, child.exitcode) == (False, 0)

    def test_archives_that_moved_to_another_folder(self, tmp_path):
        rows = caption_rows(2, 1)
        folder = make_dataset(tmp_path / "made", rows=rows)
        tars = [make_pictures(tmp_path / "old" / f"{n}", [f"{n}.png"], "tar") for n in range(2)]
        images = [{**row, "file": f"{n}.png", "source": n} for n, row in enumerate(rows)]
        write_lines(folder / "images.jsonl", images)
        write_manifest(folder, Manifest("made", images=tuple(ImageFiles(str(path)) for path in tars)))
        (tmp_path / "old").rename(tmp_path / "new")
        data = open_dataset(folder, images=tmp_path / "new")
        assert [data.read_bytes(one) for one in ("i0", "i1")] == [picture(0)] * 2
        (tmp_path / "new" / "1.tar").unlink()
        with pytest.raises(FileNotFoundError, match="the images are gone"):
            open_dataset(folder, images=tmp_path / "new").read_bytes("i1")

    def test_a_picture_that_is_not_there(self, folder):
        (folder / "images" / "i2.png").unlink()
        with pytest.raises(FileNotFoundError, match="no file for image 'i2'"):
            open_dataset(folder).read_image("i2")

    def test_a_picture_without_a_file_is_looked_for_in_its_own_place(self, tmp_path):
        rows = caption_rows(3, 1)
        folder = make_dataset(tmp_path / "made", rows=rows)
        places = [make_pictures(tmp_path / name, ["i0.png", f"a/{name}.png"]) for name in ("one", "two")]
        images = [{**row, "source": n % 2} for n, row in enumerate(rows)]
        images[0]["file"] = "i0.png"
        images[1]["image_id"] = rows[1]["image_id"] = "two"
        images[2]["image_id"] = rows[2]["image_id"] = "b/i0.png"
        write_lines(folder / "images.jsonl", images)
        write_lines(folder / "captions.jsonl", rows)
        write_manifest(folder, Manifest("made", images=tuple(ImageFiles(str(path)) for path in places)))
        data = open_dataset(folder)
        assert data.read_bytes("two") == picture(1)
        with pytest.raises(FileNotFoundError, match=r"no file for image 'b/i0\.png'"):  # that one is i0's
            data.read_bytes("b/i0.png")

    def test_captions_in_gzip(self, folder):
        path = folder / "captions.jsonl"
        path.with_name("captions.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        assert len(open_dataset(folder).captions) == 8

    def test_captions_in_parquet(self, folder):
        pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
        expected = open_dataset(folder).captions
        (folder / "captions.jsonl").unlink()
        parquet.write_table(pa.Table.from_pylist(caption_rows()), folder / "captions.parquet")
        assert open_dataset(folder).captions == expected

    def test_parquet_without_pyarrow(self, folder, monkeypatch):
        (folder / "captions.jsonl").rename(folder / "captions.parquet")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(ImportError, match=r"reading captions\.parquet needs pyarrow"):
            open_dataset(folder)


def row(**changes):
    return {"image_id": "i0", "caption_id": "x", "text": "words", "split": "train", **changes}


class TestErrorsNameTheLine:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("no json", "captions.jsonl, line 9`: expected a JSON object, got Expecting value"),
            ("[" * 100_000, "captions.jsonl, line 9`: expected a JSON object, got brackets nested too deep"),
            ("[1]", "line 9`: expected a JSON object, got list"),
            (json.dumps(row(text=None)), "line 9`: expected 'text' to be a string, got None"),
            (json.dumps({"image_id": "i0"}), "line 9`: expected 'text' to be a string, got only image_id"),
            (json.dumps(row(image_id=1.5)), "line 9`: expected 'image_id' to be a string or whole number, got 1.5"),
            (json.dumps(row(caption_id="")), "line 9`: expected 'caption_id' to be"),
            (json.dumps(row(caption_id=True)), "line 9`: expected 'caption_id' to be"),
            (json.dumps(row(split="")), "line 9`: expected 'split' to be a name such as 'train', got ''"),
            (json.dumps(row(caption_id="i1#1")), "line 9`: expected a caption_id of its own, got 'i1#1' as in line 4"),
            (json.dumps(row(text="half \ud83d")), "line 9`: expected 'text' to be valid Unicode, got 'half \\ud83d'"),
            (json.dumps(row(caption_id="\ud83d")), "line 9`: expected 'caption_id' to be valid Unicode"),
            (json.dumps(row(split="\ud83d")), "line 9`: expected 'split' to be a name"),
            (json.dumps(row(split="test")), "captions of image 'i0'`: expected one split, got 'x' in 'test'"),
        ],
    )
    def test_captions(self, folder, line, message):
        with (folder / "captions.jsonl").open("a") as file:
            file.write(line + "\n")
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            open_dataset(folder)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ([{"image_id": "i0", "split": "train", "file": 3}], "'file' to be a string, got 3"),
            ([{"image_id": "i0", "split": "train", "source": -1}], "'source' to be a whole number from 0 up, got -1"),
            ([{"image_id": "i0", "split": "train"}] * 2, "images.jsonl, line 2`: expected an image_id of its own"),
            ([{"image_id": "i0", "split": "train"}], "its image 'i1' in split 'train', got no such image"),
            ([{"image_id": "i0", "split": "val"}], "its image 'i0' in split 'train', got an image of split 'val'"),
        ],
    )
    def test_images(self, folder, rows, message):
        write_lines(folder / "images.jsonl", rows)
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            open_dataset(folder)
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "manifest.json, line 1`: expected JSON"),
            ("[]", '"format": "bcls-dataset"'),
            ('{"format": "bcls-dataset", "version": 2}', 'expected "version": 1, got 2'),
            ('{"format": "bcls-dataset", "version": 1, "images": [{"where": "x"}]}', "fields as bcls writes them"),
            (
                '{"format": "bcls-dataset", "version": 1, "splits": {"train": {"images": 3, "captions": 9}}}',
                "expected 3 images and 9 captions in 'train', got 2 and 4; import the dataset again",
            ),
        ],
    )
    def test_manifest(self, folder, content, message):
        (folder / "manifest.json").write_text(content)
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            open_dataset(folder)
        assert message in str(caught.value)

    def test_a_message_stays_short(self, folder):
        splits = {"x" * 5000: {"images": 3, "captions": 9}}
        text = json.dumps({"format": "bcls-dataset", "version": 1, "splits": splits})
        (folder / "manifest.json").write_text(text)
        with pytest.raises(ValueError, match="import the dataset again") as caught:
            open_dataset(folder)
        assert len(str(caught.value)) < 1000

    def test_bytes_of_another_encoding(self, folder):
        with (folder / "captions.jsonl").open("ab") as file:
            file.write(json.dumps(row(text="caf?")).encode().replace(b"?", b"\xe9"))
        with pytest.raises(ValueError, match=r"line 9`: expected utf-8 text, got the byte 0xe9; convert"):
            open_dataset(folder)

    def test_broken_gzip(self, folder):
        path = folder / "captions.jsonl"
        path.write_bytes(gzip.compress(path.read_bytes())[:-20])
        with pytest.raises(ValueError, match="expected a whole gzip file"):
            open_dataset(folder)

    def test_a_folder_that_is_no_dataset(self, tmp_path):
        with pytest.raises(ValueError, match=r"a dataset with a manifest\.json, got none; import it first"):
            open_dataset(tmp_path)
        with pytest.raises(FileNotFoundError, match="no such dataset folder"):
            open_dataset(tmp_path / "nothing")


class TestQuarantine:
    def test_bad_ones_are_left_out(self, folder):
        write_quarantine(folder, Quarantine({"i1": "damaged"}, {"i2#0": "empty"}))
        data = open_dataset(folder).without_quarantined()
        assert data.image_ids == ("i0", "i2", "i3")
        assert [caption.caption_id for caption in data.captions] == ["i0#0", "i0#1", "i2#1", "i3#0", "i3#1"]
        assert data.image_of_caption.tolist() == [0, 0, 1, 2, 2]

    def test_an_image_whose_captions_are_all_bad_goes_with_them(self, folder):
        write_quarantine(folder, Quarantine({}, {"i2#0": "empty", "i2#1": "empty", "i3#1": "empty"}))
        data = open_dataset(folder).without_quarantined()
        assert data.image_ids == ("i0", "i1", "i3")
        assert data.splits == {"train": (2, 4), "test": (1, 1)}

    def test_without_a_check_everything_stays(self, folder):
        data = open_dataset(folder)
        assert data.without_quarantined() == data

    def test_a_broken_file(self, folder):
        (folder / "quarantine.json").write_text("[]")
        with pytest.raises(ValueError, match="run `bcls data check` again"):
            open_dataset(folder).without_quarantined()


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

    def test_the_rest_after_a_quarantine(self, data):
        write_quarantine(data.folder, Quarantine({"i0": "bad"}))
        assert data.without_quarantined().features("regions").take([0, 2])[:, 0, 0].tolist() == [6, 18]

    def test_unknown_names(self, data):
        with pytest.raises(
            ValueError, match=r"\('regions'\), got 'region'; did you mean 'regions'\? Or make them with `bc"
        ):
            data.features("region")
        with pytest.raises(ValueError, match=r"got 'x'; make them with `bcls data features .* --name x`"):
            data.features("x")

    def test_counts_that_disagree(self, data):
        np.save(data.folder / "features" / "test.npy", np.zeros((3, 3, 2)))
        with pytest.raises(ValueError, match=r"one row for each of 1 images, got shape \(3, 3, 2\)"):
            data.features("regions")

    def test_no_images_have_a_shape_too(self, data):
        features = data.of_images([]).features("regions")
        assert features.shape == (0, 3, 2)
        assert features.take([]).shape == (0, 3, 2)
        write_manifest(data.folder, Manifest("made", features={"grid": {}}))
        with pytest.raises(ValueError, match="a file for a split of the dataset, got files for none"):
            open_dataset(data.folder).of_images([]).features("grid")

    @pytest.mark.parametrize("shape", [(1, 0), (1, 0, 2), (1, 3, 0)])
    def test_rows_of_nothing(self, data, shape):
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
        with pytest.raises(ValueError, match="one shape for an image"):
            data.features("regions")

    def test_no_array(self, data):
        (data.folder / "features" / "test.npy").write_bytes(b"no array")
        with pytest.raises(ValueError, match=r"an \.npy file with numbers"):
            data.features("regions")

    def test_a_split_without_features(self, folder):
        write_manifest(folder, Manifest("made", features={"grid": {}}))
        with pytest.raises(ValueError, match="a file for split 'train', got files for none"):
            open_dataset(folder).features("grid")
