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
from bcls.data.records import ImageFiles, Manifest, Quarantine, write_manifest, write_quarantine
from tests.data.factories import caption_rows, image_bytes, make_dataset, make_images, write_lines


class TestHandWrittenDataset:
    @pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
    def test_two_files_and_images_are_enough(self, tmp_path, kind):
        data = open_dataset(make_dataset(tmp_path / "made", kind))
        assert data.name == "made"
        assert data.image_ids == ("i0", "i1", "i2", "i3")
        assert data.splits == {"train": (2, 4), "val": (1, 2), "test": (1, 2)}
        assert data.texts[:2] == ["image 0, take 0", "image 0, take 1"]
        assert data.image_of_caption.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        with ThreadPoolExecutor(4) as pool:
            decoded = list(pool.map(data.read_image, data.image_ids * 3))
        for number, image in enumerate(decoded):
            with Image.open(io.BytesIO(image_bytes(number % 4))) as expected:
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

    def test_dataset_is_frozen_and_can_be_pickled(self, folder):
        data = open_dataset(folder)
        with pytest.raises(AttributeError):
            data.images = ()
        there = pickle.loads(pickle.dumps(data))  # noqa: S301
        assert there == data
        assert there.read_bytes("i1") == image_bytes(1)

    def test_images_that_moved(self, folder, tmp_path):
        (folder / "images").rename(tmp_path / "elsewhere")
        write_manifest(folder, Manifest("made", images=open_dataset(folder).manifest.images))
        data = open_dataset(folder)
        with pytest.raises(ValueError, match="import the dataset with --images, or open it with images"):
            data.read_image("i0")
        assert open_dataset(folder, images=tmp_path / "elsewhere").read_bytes("i0") == image_bytes(0)

    def test_a_fork_while_a_thread_reads(self, folder):
        data = open_dataset(folder)
        with data._reader._lock:
            child = multiprocessing.get_context("fork").Process(target=data.read_bytes, args=("i0",))
            child.start()
        child.join(20)
        hangs = child.is_alive()
        child.kill()
        assert (hangs, child.exitcode) == (False, 0)

    def test_archives_that_moved_to_another_folder(self, tmp_path):
        rows = caption_rows(2, 1)
        folder = make_dataset(tmp_path / "made", rows=rows)
        tars = [make_images(tmp_path / "old" / f"{n}", [f"{n}.png"], "tar") for n in range(2)]
        images = [{**row, "file": f"{n}.png", "source": n} for n, row in enumerate(rows)]
        write_lines(folder / "images.jsonl", images)
        write_manifest(folder, Manifest("made", images=tuple(ImageFiles(str(path)) for path in tars)))
        (tmp_path / "old").rename(tmp_path / "new")
        data = open_dataset(folder, images=tmp_path / "new")
        assert [data.read_bytes(one) for one in ("i0", "i1")] == [image_bytes(0)] * 2
        (tmp_path / "new" / "1.tar").unlink()
        with pytest.raises(FileNotFoundError, match="the images are missing"):
            open_dataset(folder, images=tmp_path / "new").read_bytes("i1")

    def test_missing_image_file(self, folder):
        (folder / "images" / "i2.png").unlink()
        with pytest.raises(FileNotFoundError, match="no file for image 'i2'"):
            open_dataset(folder).read_image("i2")

    def test_images_without_a_file_are_found_in_their_own_source(self, tmp_path):
        rows = caption_rows(3, 1)
        folder = make_dataset(tmp_path / "made", rows=rows)
        places = [make_images(tmp_path / name, ["i0.png", f"a/{name}.png"]) for name in ("one", "two")]
        images = [{**row, "source": n % 2} for n, row in enumerate(rows)]
        images[0]["file"] = "i0.png"
        images[1]["image_id"] = rows[1]["image_id"] = "two"
        images[2]["image_id"] = rows[2]["image_id"] = "b/i0.png"
        write_lines(folder / "images.jsonl", images)
        write_lines(folder / "captions.jsonl", rows)
        write_manifest(folder, Manifest("made", images=tuple(ImageFiles(str(path)) for path in places)))
        data = open_dataset(folder)
        assert data.read_bytes("two") == image_bytes(1)
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
            ("no json", "captions.jsonl, line 9`: expected JSON, got an error (Expecting value)"),
            ("[" * 100_000, "captions.jsonl, line 9`: expected JSON, got maximum recursion depth exceeded"),
            ("[1]", "line 9`: expected a JSON object, got list"),
            (json.dumps(row(text=None)), "line 9`: expected 'text' to be a Unicode string, got None"),
            (
                json.dumps({"image_id": "i0"}),
                "line 9`: expected 'caption_id' to be a non-empty Unicode string or an integer, got only",
            ),
            (
                json.dumps(row(image_id=1.5)),
                "line 9`: expected 'image_id' to be a non-empty Unicode string or an integer, got 1.5",
            ),
            (json.dumps(row(caption_id="")), "line 9`: expected 'caption_id' to be"),
            (json.dumps(row(caption_id=True)), "line 9`: expected 'caption_id' to be"),
            (json.dumps(row(split="")), "line 9`: expected 'split' to be a non-empty Unicode string, got ''"),
            (json.dumps(row(caption_id="i1#1")), "line 9`: expected a unique caption_id, got 'i1#1' as in line 4"),
            (
                json.dumps(row(text="half \ud83d")),
                "line 9`: expected 'text' to be a Unicode string, got 'half \\ud83d'",
            ),
            (json.dumps(row(caption_id="\ud83d")), "line 9`: expected 'caption_id' to be a non-empty Unicode string"),
            (json.dumps(row(split="\ud83d")), "line 9`: expected 'split' to be a non-empty"),
            (
                json.dumps(row(split="test")),
                "expected image 'i0' of caption 'x' in split 'test', got an image of split 'train'",
            ),
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
            ([{"image_id": "i0", "split": "train", "file": 3}], "'file' to be a Unicode string, got 3"),
            ([{"image_id": "i0", "split": "train", "source": -1}], "'source' to be an integer of at least 0, got -1"),
            ([{"image_id": "i0", "split": "train"}] * 2, "images.jsonl, line 2`: expected a unique image_id"),
            (
                [{"image_id": "i0", "split": "train"}],
                "image 'i1' of caption 'i1#0' in split 'train', got no such image",
            ),
            (
                [{"image_id": "i0", "split": "val"}],
                "image 'i0' of caption 'i0#0' in split 'train', got an image of split 'val'",
            ),
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
        with pytest.raises(ValueError, match="expected a complete gzip file"):
            open_dataset(folder)

    def test_a_folder_that_is_no_dataset(self, tmp_path):
        with pytest.raises(ValueError, match=r"a dataset with a manifest\.json, got none; import it, again"):
            open_dataset(tmp_path)
        with pytest.raises(FileNotFoundError, match="no such dataset folder"):
            open_dataset(tmp_path / "nothing")


class TestQuarantine:
    def test_quarantined_items_are_left_out(self, folder):
        write_quarantine(folder, Quarantine({"i1": "damaged"}, {"i2#0": "empty"}))
        data = open_dataset(folder).without_quarantined()
        assert data.image_ids == ("i0", "i2", "i3")
        assert [caption.caption_id for caption in data.captions] == ["i0#0", "i0#1", "i2#1", "i3#0", "i3#1"]
        assert data.image_of_caption.tolist() == [0, 0, 1, 2, 2]

    def test_image_without_remaining_captions_is_removed(self, folder):
        write_quarantine(folder, Quarantine({}, {"i2#0": "empty", "i2#1": "empty", "i3#1": "empty"}))
        data = open_dataset(folder).without_quarantined()
        assert data.image_ids == ("i0", "i1", "i3")
        assert data.splits == {"train": (2, 4), "test": (1, 1)}

    def test_without_a_check_nothing_is_removed(self, folder):
        data = open_dataset(folder)
        assert data.without_quarantined() == data

    def test_a_broken_file(self, folder):
        (folder / "quarantine.json").write_text("[]")
        with pytest.raises(ValueError, match=r"run `bcls data check .*` again"):
            open_dataset(folder).without_quarantined()
