import base64
import gzip
import os

import numpy as np
import pytest

from bcls._core.locks import FolderInUseError, lock_folder
from bcls.data import records
from bcls.data.dataset import open_dataset
from bcls.data.importers import ImportSettings, regions, run_import
from bcls.data.records import FeatureFile, add_features
from tests.data.factories import (
    import_dataset,
    import_error,
    make_dataset,
)
from tests.samples import DATA, expect


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
        opened, notes = import_dataset("butd", tmp_path / "tsv", data)
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

    def test_features_added_meanwhile_stay_in_the_manifest(self, tmp_path, data, values, monkeypatch):
        (tmp_path / "a.tsv").write_text(self.lines(values))
        plain = regions._write_regions

        def meanwhile(*arguments):
            add_features(data, "grid", "train", FeatureFile("grid.npy"))
            return plain(*arguments)

        monkeypatch.setattr(regions, "_write_regions", meanwhile)
        opened, _ = import_dataset("butd", tmp_path / "a.tsv", data)
        assert opened.feature_names == ("grid", "regions")

    def test_waits_for_the_lock_of_other_processes(self, tmp_path, data, values, monkeypatch):
        (tmp_path / "a.tsv").write_text(self.lines(values))
        written = []

        def write(path, content):
            with pytest.raises(FolderInUseError, match=f"process {os.getpid()}"), lock_folder(data / "features"):
                pass
            written.append(path)
            write_json(path, content)

        write_json = records._write_json
        monkeypatch.setattr(records, "_write_json", write)
        import_dataset("butd", tmp_path / "a.tsv", data)
        assert written == [data / "manifest.json"] * 2

    def test_interrupted_import_leaves_no_files(self, tmp_path, data, values, monkeypatch):
        (tmp_path / "a.tsv").write_text(self.lines(values))

        def stop(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(regions, "track", stop)
        with pytest.raises(KeyboardInterrupt):
            import_dataset("butd", tmp_path / "a.tsv", data)
        assert not list((data / "features").rglob("*.tmp"))
        assert open_dataset(data).feature_names == ()

    def test_split_that_is_not_a_file_name(self, tmp_path, values):
        rows = [{"image_id": "42", "caption_id": "c", "text": "x", "split": "a/b"}]
        data = make_dataset(tmp_path / "odd", rows=rows)
        (tmp_path / "a.tsv").write_text(tsv_line("42", values[0]))
        assert "expected names of splits that are valid file names, got 'a/b'" in self.complaint(
            tmp_path / "a.tsv", data
        )

    def test_name_is_refused(self, tmp_path, data, values):
        (tmp_path / "a.tsv").write_text(self.lines(values))
        with pytest.raises(ValueError, match="`--name`: expected no value for a butd source"):
            run_import("butd", tmp_path / "a.tsv", ImportSettings(str(data), name="mine"))

    def test_errors(self, tmp_path, data, values):
        path = tmp_path / "a.tsv"
        path.write_text(tsv_line("42", values[0]))
        assert "a line for each of the 4 images, got none for 3 of them, the first is '1000.jpg'" in self.complaint(
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
        assert "the same number of values for all regions, got several" in self.complaint(path, data)
        (tmp_path / "none").mkdir()
        assert "expected .tsv files, got none" in self.complaint(tmp_path / "none", data)
        assert open_dataset(data).feature_names == ()


def precomp(folder, split="train", images=4, each=5, rows=None, ids="each", seed=0):
    folder.mkdir(exist_ok=True)
    (folder / f"{split}_caps.txt").write_text("".join(f"{split} {n} .\n" for n in range(images * each)))
    names = [f"{split}{n}" for n in range(images)]
    if ids:
        lines = [name for name in names for _ in range(each)] if ids == "each" else names
        (folder / f"{split}_ids.txt").write_text("".join(f"{line}\n" for line in lines))
    if rows:
        values = np.random.default_rng(seed).random((images, 3, 8)).astype(np.float32)
        np.save(folder / f"{split}_ims.npy", np.repeat(values, rows, axis=0))
    return folder


class TestScan:
    @pytest.mark.parametrize("rows", [1, 5])
    @pytest.mark.parametrize("ids", ["each", "once", None])
    @pytest.mark.parametrize("copy", [False, True])
    def test_rows_for_images_or_captions(self, tmp_path, out, rows, ids, copy):
        source = precomp(tmp_path / "f30k_precomp", rows=rows, ids=ids)
        data, notes = import_dataset("scan", source, out, copy=copy)
        assert notes == ()
        assert data.name == "f30k_precomp"
        assert data.splits == {"train": (4, 20)}
        assert data.image_ids == (
            tuple(f"train{n}" for n in range(4)) if ids else tuple(f"train-{n}" for n in range(4))
        )
        assert data.texts[5] == "train 5 ."
        values = np.random.default_rng(0).random((4, 3, 8)).astype(np.float32)
        assert np.array_equal(data.features("regions").take([0, 1, 2, 3]), values)
        assert (out / "features").exists() == copy

    def test_one_caption_an_image(self, tmp_path, out):
        data, _ = import_dataset("scan", precomp(tmp_path / "x", images=5, each=1, rows=1, ids=None), out)
        assert data.splits == {"train": (5, 5)}

    def test_splits_and_notes(self, tmp_path, out):
        source = tmp_path / "coco_precomp"
        for split in ("testall", "test", "dev"):
            precomp(source, split, rows=1 if split == "dev" else None)
        data, notes = import_dataset("scan", source, out)
        assert list(data.splits) == ["dev", "testall"]
        assert notes == (
            "split 'test' is left out: it repeats the first images of 'testall'",
            "no features for testall: there is no *_ims.npy",
        )

    def test_disagreements(self, tmp_path, out):
        source = precomp(tmp_path / "x", rows=1)
        np.save(source / "train_ims.npy", np.zeros((3, 3, 8)))
        assert "a row for each image or caption, got 3 rows and 20 captions" in import_error("scan", source, out)
        precomp(source, rows=1)
        (source / "train_ids.txt").write_text("a\n" * 3)
        assert "train_ids.txt`: expected 4 or 20 lines, got 3" in import_error("scan", source, out)
        (source / "train_ids.txt").write_text("a\n" * 6 + "b\n" * 14)
        assert "line 7`: expected one id for 5 captions, got 'b' after 'a'" in import_error("scan", source, out)
        (source / "train_ims.npy").unlink()
        (source / "train_ids.txt").unlink()
        (source / "train_caps.txt").write_text("a\n" * 7)
        assert "expected 5 lines per image, got 7 lines; add a *_ids.txt file" in import_error("scan", source, out)
        (source / "train_ids.txt").write_text("a\na\nb\nb\nc\nc\nd\n")
        assert "the same number of captions for every image, got 7 captions, 2 of the first image" in import_error(
            "scan", source, out
        )
        (source / "train_caps.txt").write_text("")
        assert "train_caps.txt`: expected one caption per line, got an empty file" in import_error("scan", source, out)
        np.save(source / "train_ims.npy", np.zeros((0, 3, 8)))
        assert "train_caps.txt`: expected one caption per line, got an empty file" in import_error("scan", source, out)
        (source / "train_caps.txt").unlink()
        assert "files such as train_caps.txt, got none" in import_error("scan", source, out)
        with pytest.raises(FileNotFoundError):
            run_import("scan", source / "nothing", ImportSettings(str(out)))

    @pytest.mark.parametrize(
        ("name", "splits"),
        [
            ("flickr30k", expect({"dev": (1014, 5070), "test": (1000, 5000)}, {"dev": (3, 15), "test": (3, 15)})),
            ("coco", expect({"dev": (1000, 5000), "testall": (5000, 25000)}, {"dev": (3, 15), "testall": (3, 15)})),
        ],
    )
    def test_real_files(self, out, name, splits):
        data, _ = import_dataset("scan", DATA / name, out)
        assert data.splits == splits
        if name == "flickr30k":
            assert data.texts[0] == expect(
                "A group of people stand in the back of a truck filled with cotton .",
                "A man in a dark coat looks through a camera on a tripod .",
            )

    def test_real_captions_with_made_features(self, tmp_path, out):
        source = tmp_path / "f30k_precomp"
        source.mkdir()
        for name in ("dev_caps.txt.gz", "dev_ids.txt.gz"):
            (source / name).write_bytes((DATA / "flickr30k" / name).read_bytes())
        images = expect(1014, 3)
        np.save(source / "dev_ims.npy", np.arange(images * 2 * 3, dtype=np.float32).reshape(images, 2, 3))
        data, _ = import_dataset("scan", source, out)
        assert data.features("regions").shape == (images, 2, 3)
        assert data.image_ids[:2] == expect(("67", "99"), ("2", "6"))
