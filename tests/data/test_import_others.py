import base64
import gzip
import os
import shutil
import tarfile
import zipfile

import numpy as np
import pytest

from bcls._core.files import take
from bcls.data.dataset import open_dataset
from bcls.data.importers import ImportSettings, butd, run_import
from bcls.data.records import FeatureFile, add_features
from tests.data.importing import bring, refused
from tests.data.made import add_to_tar, make_dataset, make_pictures, picture


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def tsv_line(image, values):
    boxes = base64.b64encode(np.zeros((len(values), 4), np.float32).tobytes()).decode()
    return f"{image}\t640\t480\t{len(values)}\t{boxes}\t{base64.b64encode(values.tobytes()).decode()}\n"


class TestButd:
    @pytest.fixture
    def values(self):
        generator = np.random.default_rng(0)
        return [generator.random((regions, 8)).astype(np.float32) for regions in (3, 2, 3, 3)]

    @pytest.fixture
    def data(self, tmp_path):
        ids = ["COCO_val2014_000000000042.jpg", "1000.jpg", "7", "x_y.jpg"]
        rows = [
            {"image_id": one, "caption_id": one, "text": "x", "split": "train" if n < 2 else "test"}
            for n, one in enumerate(ids)
        ]
        return make_dataset(tmp_path / "data", rows=rows)

    def test_features_join_a_dataset(self, tmp_path, data, values):
        (tmp_path / "tsv").mkdir()
        (tmp_path / "tsv" / "a.tsv").write_text(
            "\t".join(["image_id", "image_w", "image_h", "num_boxes", "boxes", "features"]) + "\n"
            + tsv_line("42", values[0]) + tsv_line("1000", values[1])
            + tsv_line("42", values[2]) + tsv_line("5", values[2])
        )  # fmt: skip
        (tmp_path / "tsv" / "b.tsv.gz").write_bytes(
            gzip.compress((tsv_line("x_y", values[3]) + tsv_line("7", values[2])).encode())
        )
        opened, notes = bring("butd", tmp_path / "tsv", data)
        assert notes == ("1 lines of images outside the dataset are left out",)
        features = opened.features("regions")
        assert features.shape == (4, 3, 8)
        for number in (0, 2, 3):
            assert np.array_equal(features[number], values[number])
        assert np.array_equal(features[1][:2], values[1])
        assert not features[1][2:].any()
        assert [features.regions(number) for number in range(4)] == [3, 2, None, None]
        assert not list((data / "features").rglob("*.tmp"))
        assert "expected a dataset without 'regions' features" in self.complaint(tmp_path / "tsv", data)

    @staticmethod
    def complaint(source, data):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            run_import("butd", source, ImportSettings(str(data)))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def lines(self, values):
        return "".join(tsv_line(image, one) for image, one in zip(("42", "1000", "7", "x_y"), values, strict=True))

    def test_features_of_others_stay_in_the_manifest(self, tmp_path, data, values, monkeypatch):
        (tmp_path / "a.tsv").write_text(self.lines(values))
        plain = butd._write

        def meanwhile(*arguments):
            add_features(data, "grid", "train", FeatureFile("grid.npy"))
            plain(*arguments)

        monkeypatch.setattr(butd, "_write", meanwhile)
        opened, _ = bring("butd", tmp_path / "a.tsv", data)
        assert opened.feature_names == ("grid", "regions")

    def test_it_waits_for_others_who_enter_features(self, tmp_path, data, values, monkeypatch):
        (tmp_path / "a.tsv").write_text(self.lines(values))
        entered = []

        def enter(*arguments):
            with (data / "features" / ".lock").open("a+") as file:
                entered.append(take(file))
            add_features(*arguments)

        monkeypatch.setattr(butd, "enter", enter)
        bring("butd", tmp_path / "a.tsv", data)
        assert entered == [f"process {os.getpid()}"] * 2

    def test_an_interrupt_leaves_nothing_behind(self, tmp_path, data, values, monkeypatch):
        (tmp_path / "a.tsv").write_text(self.lines(values))

        def stop(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(butd, "progress", stop)
        with pytest.raises(KeyboardInterrupt):
            bring("butd", tmp_path / "a.tsv", data)
        assert not list((data / "features").rglob("*.tmp"))
        assert open_dataset(data).feature_names == ()

    def test_a_split_that_is_no_file_name(self, tmp_path, values):
        rows = [{"image_id": "42", "caption_id": "c", "text": "x", "split": "a/b"}]
        data = make_dataset(tmp_path / "odd", rows=rows)
        (tmp_path / "a.tsv").write_text(tsv_line("42", values[0]))
        assert "expected splits whose names a file can have, got 'a/b'" in self.complaint(tmp_path / "a.tsv", data)

    def test_it_gives_no_name(self, tmp_path, data, values):
        (tmp_path / "a.tsv").write_text(self.lines(values))
        with pytest.raises(ValueError, match="`--name`: expected it only where it applies, not with butd"):
            run_import("butd", tmp_path / "a.tsv", ImportSettings(str(data), name="mine"))

    def test_errors(self, tmp_path, data, values):
        path = tmp_path / "a.tsv"
        path.write_text(tsv_line("42", values[0]))
        assert "a line for each of the 4 images, got none for 3 of them, '1000.jpg' the first" in self.complaint(
            path, data
        )
        path.write_text("42\t1\n")
        assert "a.tsv, line 1`: expected the columns image_id" in self.complaint(path, data)
        path.write_text("42\t1\t1\tmany\tx\tx\n")
        assert "line 1`: expected a number of regions, got 'many'" in self.complaint(path, data)
        path.write_text("42\t1\t1\t3\tx\t???\n")
        assert "line 1`: expected features in base64" in self.complaint(path, data)
        path.write_text("42\t1\t1\t3\tx\tAAAA\n")
        assert "float32 features for 3 regions, got 3 bytes" in self.complaint(path, data)
        every = "".join(tsv_line(image, values[0]) for image in ("42", "1000", "7"))
        path.write_text(every + tsv_line("x_y", values[0][:, :4].copy()))
        assert "one number of values a region, got several" in self.complaint(path, data)
        (tmp_path / "none").mkdir()
        assert "expected .tsv files, got none" in self.complaint(tmp_path / "none", data)
        assert open_dataset(data).feature_names == ()


class TestWebdataset:
    def shard(self, path, members):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as archive:
            for name, content in members.items():
                add_to_tar(archive, name, content)
        return path

    def test_shards(self, tmp_path, out):
        source = tmp_path / "shards"
        self.shard(
            source / "train-0.tar",
            {"a.png": picture(0), "a.txt": b"one \n", "b.png": picture(1), "b.json": b'{"caption": "two"}'},
        )
        self.shard(
            source / "test-0.tar",
            {"c.png": picture(2), "c.json": b'{"captions": ["x", "y"]}', "d.png": picture(3), "e.txt": b"z"},
        )
        for copy in (False, True):
            data, notes = bring("webdataset", source, out / str(copy), copy=copy)
            assert data.splits == {"test": (1, 2), "train": (2, 2)}
            assert data.texts == ["x", "y", "one", "two"]
            assert [data.read_bytes(key) for key in "abc"] == [picture(n) for n in range(3)]
            assert notes == ("2 samples without a picture or a caption are left out",)

    def test_one_file(self, tmp_path, out):
        data, _ = bring(
            "webdataset", self.shard(tmp_path / "0.tar", {"a.jpg": picture(0), "a.txt": b"one"}), out, split="val"
        )
        assert data.splits == {"val": (1, 1)}
        assert data.name == "0"

    def test_a_folder_may_have_a_dot_in_its_name(self, tmp_path, out):
        self.shard(tmp_path / "cc3m.v2" / "0.tar", {"a.jpg": picture(0), "a.txt": b"one"})
        assert bring("webdataset", tmp_path / "cc3m.v2", out)[0].name == "cc3m.v2"

    @pytest.mark.parametrize(
        ("members", "message"),
        [
            ({"a.png": b"", "a.txt": b"caf\xe9"}, "a.txt`: expected utf-8 text, got the byte 0xe9"),
            ({"a.png": b"", "a.json": b"{"}, "a.json`: expected JSON"),
            ({"a.png": b"", "a.json": b'{"caption": 3}'}, "a.json`: expected captions as text, got 3"),
            ({"a.png": b""}, "at least one caption, got none"),
        ],
    )
    def test_errors(self, tmp_path, out, members, message):
        assert message in refused("webdataset", self.shard(tmp_path / "0.tar", members), out)

    def test_no_tars(self, tmp_path, out):
        assert "a .tar file or a folder of them, got none" in refused("webdataset", tmp_path, out)
        archive = make_pictures(tmp_path / "x", ["a.png"], "zip")
        assert "expected a tar file" in refused("webdataset", archive, out)


class TestHuggingface:
    def save(self, folder, rows, **columns):
        pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
        folder.mkdir(parents=True)
        table = pa.table(
            {"image": pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())])), **columns}
        )
        with (
            pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as stream,
        ):
            stream.write_table(table)
        return folder

    def test_a_saved_dict(self, tmp_path, out):
        pictures = [{"bytes": picture(n), "path": "x.png" if n else None} for n in range(2)]
        self.save(tmp_path / "saved" / "train", pictures, caption=[["a", "b"], ["c"]])
        self.save(tmp_path / "saved" / "validation", pictures[:1], caption=["d"])
        (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
        data, _ = bring("huggingface", tmp_path / "saved", out)
        assert data.splits == {"train": (2, 3), "val": (1, 1)}
        assert data.texts == ["a", "b", "c", "d"]
        assert [data.read_bytes(image) for image in data.image_ids] == [picture(0), picture(1), picture(0)]
        with zipfile.ZipFile(out / "images.zip") as archive:
            assert archive.namelist() == ["train-0.png", "train-1.png", "val-0.png"]

    def test_only_the_files_that_were_saved(self, tmp_path, out):
        source = self.save(tmp_path / "saved", [{"bytes": picture(0), "path": "x.png"}], caption=["a"])
        shutil.copy(source / "data-00000-of-00001.arrow", source / "cache-0123456789abcdef.arrow")
        assert bring("huggingface", source, out / "without")[0].texts == ["a"]
        shutil.copy(source / "data-00000-of-00001.arrow", source / "tmp.arrow")
        state = source / "state.json"
        state.write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
        assert bring("huggingface", source, out / "with")[0].texts == ["a"]
        state.write_text('{"_data_files": [{"filename": "../a.arrow"}]}')
        new = tmp_path / "new"
        assert "names inside the archive, got '../a.arrow'" in refused("huggingface", source, new)
        for content in ("[]", '{"_data_files": 3}', '{"_data_files": [{"filename": 3}]}'):
            state.write_text(content)
            assert 'state.json`: expected "_data_files" with file names' in refused("huggingface", source, new)

    def test_val_and_validation_are_two_splits(self, tmp_path, out):
        for place, split in enumerate(("val", "validation")):
            self.save(tmp_path / "saved" / split, [{"bytes": picture(place), "path": "x.png"}], caption=[split])
        (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["val", "validation"]}')
        assert bring("huggingface", tmp_path / "saved", out)[0].splits == {"val": (1, 1), "validation": (1, 1)}

    def test_errors(self, tmp_path, out):
        good = [{"bytes": picture(0), "path": "x.png"}]
        assert "a column for the caption" in refused("huggingface", self.save(tmp_path / "a", good, words=["x"]), out)
        assert bring("huggingface", tmp_path / "a", tmp_path / "fine", caption_column="words")[0].texts == ["x"]
        assert "a text or a list of texts, got 3" in refused(
            "huggingface", self.save(tmp_path / "b", good, caption=[3]), out
        )
        bare = [{"bytes": None, "path": "x.png"}]
        assert "a picture inside the arrow file, got none" in refused(
            "huggingface", self.save(tmp_path / "c", bare, text=["x"]), out
        )
        assert "pictures in column 'text'" in refused("huggingface", tmp_path / "c", out, image_column="text")
        (tmp_path / "c" / "data-00000-of-00001.arrow").write_bytes(b"no arrow")
        assert "a whole arrow file" in refused("huggingface", tmp_path / "c", out)

    def test_no_arrow_files(self, tmp_path, out):
        assert "written by save_to_disk, with .arrow files, got none" in refused("huggingface", tmp_path, out)
