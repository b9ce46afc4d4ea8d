import shutil
import tarfile
import zipfile

import pytest

from tests.data.factories import add_to_tar, image_bytes, import_dataset, import_error, make_images


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
            {"a.png": image_bytes(0), "a.txt": b"one \n", "b.png": image_bytes(1), "b.json": b'{"caption": "two"}'},
        )
        self.shard(
            source / "test-0.tar",
            {"c.png": image_bytes(2), "c.json": b'{"captions": ["x", "y"]}', "d.png": image_bytes(3), "e.txt": b"z"},
        )
        for copy in (False, True):
            data, notes = import_dataset("webdataset", source, out / str(copy), copy=copy)
            assert data.splits == {"test": (1, 2), "train": (2, 2)}
            assert data.texts == ["x", "y", "one", "two"]
            assert [data.read_bytes(key) for key in "abc"] == [image_bytes(n) for n in range(3)]
            assert notes == ("2 samples without an image or a caption are left out",)

    def test_one_file(self, tmp_path, out):
        data, _ = import_dataset(
            "webdataset", self.shard(tmp_path / "0.tar", {"a.jpg": image_bytes(0), "a.txt": b"one"}), out, split="val"
        )
        assert data.splits == {"val": (1, 1)}
        assert data.name == "0"

    def test_a_folder_may_have_a_dot_in_its_name(self, tmp_path, out):
        self.shard(tmp_path / "cc3m.v2" / "0.tar", {"a.jpg": image_bytes(0), "a.txt": b"one"})
        assert import_dataset("webdataset", tmp_path / "cc3m.v2", out)[0].name == "cc3m.v2"

    def test_keys_that_repeat_in_several_files(self, tmp_path, out):
        for number in (0, 1):
            members = {"a.png": image_bytes(number), "a.txt": f"take {number}".encode()}
            self.shard(tmp_path / "shards" / f"{number}.tar", members)
        data, notes = import_dataset("webdataset", tmp_path / "shards", out)
        assert data.image_ids == ("0/a", "1/a")
        assert [caption.caption_id for caption in data.captions] == ["0/a#0", "1/a#0"]
        assert [data.read_bytes(key) for key in data.image_ids] == [image_bytes(0), image_bytes(1)]
        assert notes == ("several tar files have the same keys, so image ids begin with the name of the tar file",)

    def test_a_caption_that_is_null(self, tmp_path, out):
        members = {"a.png": image_bytes(0), "a.json": b'{"caption": null, "text": "one"}'}
        assert import_dataset("webdataset", self.shard(tmp_path / "0.tar", members), out)[0].texts == ["one"]

    @pytest.mark.parametrize(
        ("members", "message"),
        [
            ({"a.png": b"", "a.txt": b"caf\xe9"}, "a.txt`: expected utf-8 text, got the byte 0xe9"),
            ({"a.png": b"", "a.json": b"{"}, "a.json, line 1`: expected JSON"),
            ({"a.png": b"", "a.json": b'{"caption": 3}'}, "a.json`: expected a caption or a list of captions, got 3"),
            ({"a.png": b""}, "at least one caption, got none"),
        ],
    )
    def test_errors(self, tmp_path, out, members, message):
        assert message in import_error("webdataset", self.shard(tmp_path / "0.tar", members), out)

    def test_no_tars(self, tmp_path, out):
        assert "a .tar file or a folder of them, got none" in import_error("webdataset", tmp_path, out)
        archive = make_images(tmp_path / "x", ["a.png"], "zip")
        assert "expected a tar file" in import_error("webdataset", archive, out)


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
        rows = [{"bytes": image_bytes(n), "path": "x.png" if n else None} for n in range(2)]
        self.save(tmp_path / "saved" / "train", rows, caption=[["a", "b"], ["c"]])
        self.save(tmp_path / "saved" / "validation", rows[:1], caption=["d"])
        (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
        data, _ = import_dataset("huggingface", tmp_path / "saved", out)
        assert data.splits == {"train": (2, 3), "val": (1, 1)}
        assert data.texts == ["a", "b", "c", "d"]
        assert [data.read_bytes(image) for image in data.image_ids] == [image_bytes(0), image_bytes(1), image_bytes(0)]
        with zipfile.ZipFile(out / "images.zip") as archive:
            assert archive.namelist() == ["train-0.png", "train-1.png", "val-0.png"]

    def test_only_the_files_that_were_saved(self, tmp_path, out):
        source = self.save(tmp_path / "saved", [{"bytes": image_bytes(0), "path": "x.png"}], caption=["a"])
        shutil.copy(source / "data-00000-of-00001.arrow", source / "cache-0123456789abcdef.arrow")
        assert import_dataset("huggingface", source, out / "without")[0].texts == ["a"]
        shutil.copy(source / "data-00000-of-00001.arrow", source / "tmp.arrow")
        state = source / "state.json"
        state.write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
        assert import_dataset("huggingface", source, out / "with")[0].texts == ["a"]
        state.write_text('{"_data_files": [{"filename": "../a.arrow"}]}')
        new = tmp_path / "new"
        assert "names inside the archive, got '../a.arrow'" in import_error("huggingface", source, new)
        for content, message in (
            ("[]", "state.json`: expected a mapping, got []"),
            ('{"_data_files": 3}', "state.json, _data_files`: expected a list, got 3"),
            ('{"_data_files": [{"filename": 3}]}', "state.json, _data_files[0], filename`: expected a string, got 3"),
        ):
            state.write_text(content)
            assert message in import_error("huggingface", source, new)

    def test_val_and_validation_are_two_splits(self, tmp_path, out):
        for place, split in enumerate(("val", "validation")):
            self.save(tmp_path / "saved" / split, [{"bytes": image_bytes(place), "path": "x.png"}], caption=[split])
        (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["val", "validation"]}')
        assert import_dataset("huggingface", tmp_path / "saved", out)[0].splits == {"val": (1, 1), "validation": (1, 1)}

    def test_errors(self, tmp_path, out):
        good = [{"bytes": image_bytes(0), "path": "x.png"}]
        assert "a column for the caption" in import_error(
            "huggingface", self.save(tmp_path / "a", good, words=["x"]), out
        )
        assert import_dataset("huggingface", tmp_path / "a", tmp_path / "fine", caption_column="words")[0].texts == [
            "x"
        ]
        assert "a caption or a list of captions, got 3" in import_error(
            "huggingface", self.save(tmp_path / "b", good, caption=[3]), out
        )
        bare = [{"bytes": None, "path": "x.png"}]
        assert "an image inside of the arrow file, got none" in import_error(
            "huggingface", self.save(tmp_path / "c", bare, text=["x"]), out
        )
        assert "images in column 'text'" in import_error("huggingface", tmp_path / "c", out, image_column="text")
        (tmp_path / "c" / "data-00000-of-00001.arrow").write_bytes(b"no arrow")
        assert "a complete arrow file" in import_error("huggingface", tmp_path / "c", out)

    def test_no_arrow_files(self, tmp_path, out):
        assert "written by save_to_disk, with .arrow files, got none" in import_error("huggingface", tmp_path, out)
