import gzip
import json

import numpy as np
import pytest

from bcls.data.importers import ImportSettings, run_import
from tests.data.factories import image_bytes, import_dataset, import_error, make_images, write_lines
from tests.samples import DATA, expect


def karpathy(images, name="tiny"):
    return {"dataset": name, "images": images}


def entry(number, split="train", **more):
    sentences = [{"raw": f"caption {number} {place}", "sentid": 10 * number + place} for place in range(2)]
    return {"filename": f"{number}.jpg", "split": split, "sentences": sentences, **more}


class TestKarpathy:
    def test_other_extensions_are_reported_once(self, tmp_path, out):
        archive = make_images(tmp_path / "images", ["images/0.webp", "images/1.webp"], "zip")
        (tmp_path / "dataset_tiny.json.gz").write_bytes(
            gzip.compress(json.dumps(karpathy([entry(0), entry(1, "test")])).encode())
        )
        # The plain name is found although only the packed file is there.
        data, notes = import_dataset("karpathy", tmp_path / "dataset_tiny.json", out, images=str(archive))
        assert notes == ("2 images have another file extension than in the captions (.webp for .jpg)",)
        assert data.name == "tiny"
        assert data.image_ids == ("0.jpg", "1.jpg")
        assert [caption.caption_id for caption in data.captions] == ["0", "1", "10", "11"]
        assert data.split("test").read_bytes("1.jpg") == image_bytes(1)

    def test_coco_ids_folders_and_restval(self, tmp_path, out):
        images = [entry(0, "restval", cocoid=42, filepath="val2014"), entry(1, "val", cocoid=43, filepath="val2014")]
        (tmp_path / "dataset_coco.json").write_text(json.dumps(karpathy(images)))
        place = make_images(tmp_path / "photos", ["val2014/0.jpg", "val2014/1.jpg", "train2014/0.jpg"])
        data, notes = import_dataset("karpathy", tmp_path / "dataset_coco.json", out, images=str(place))
        assert data.splits == {"train": (1, 2), "val": (1, 2)}
        assert data.image_ids == ("42", "43")
        assert data.file_of("42") == "val2014/0.jpg"
        assert notes[-1] == "1 images of split 'restval' are in 'train'"
        kept, _ = import_dataset("karpathy", tmp_path / "dataset_coco.json", out.with_name("kept"), restval="restval")
        assert list(kept.splits) == ["restval", "val"]

    def test_two_images_of_one_file(self, tmp_path, out):
        images = [entry(0, cocoid=1), entry(0, "test", cocoid=2, sentences=[{"raw": "a cat"}])]
        (tmp_path / "dataset_x.json").write_text(json.dumps(karpathy(images)))
        place = make_images(tmp_path / "photos", ["0.jpg"])
        data, notes = import_dataset("karpathy", tmp_path / "dataset_x.json", out, images=str(place))
        assert data.file_of("1") == data.file_of("2") == "0.jpg"
        assert notes == ()

    def test_ids_that_are_null(self, tmp_path, out):
        images = [entry(n, cocoid=None, sentences=[{"raw": "a dog", "sentid": None}]) for n in range(2)]
        (tmp_path / "dataset_x.json").write_text(json.dumps(karpathy(images)))
        data, _ = import_dataset("karpathy", tmp_path / "dataset_x.json", out)
        assert [caption.caption_id for caption in data.captions] == ["0.jpg#0", "1.jpg#0"]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("[]", "expected 'images' to be a list"),
            ('{"images": [3]}', "images[0]`: expected 'split' to be a non-empty Unicode string, got None"),
            (json.dumps(karpathy([entry(0), {"split": "train"}])), "images[1]`: expected 'filename' to be a non-empty"),
            (json.dumps(karpathy([entry(0, sentences=[{"raw": 3}])])), "sentences[0]`: expected 'raw' to be a"),
            (json.dumps(karpathy([entry(0), entry(0)])), "x.json, image 1`: expected a unique image_id, got '0.jpg'"),
            ('{"images": [', "line 1`: expected JSON"),
        ],
    )  # fmt: skip
    def test_errors(self, tmp_path, out, content, message):
        (tmp_path / "dataset_x.json").write_text(content)
        assert message in import_error("karpathy", tmp_path / "dataset_x.json", out)

    def test_missing_files(self, tmp_path, out):
        with pytest.raises(FileNotFoundError):
            run_import("karpathy", tmp_path / "nothing.json", ImportSettings(str(out)))
        (tmp_path / "d.json").write_text(json.dumps(karpathy([entry(0)])))
        with pytest.raises(FileNotFoundError):
            run_import("karpathy", tmp_path / "d.json", ImportSettings(str(out), images=str(tmp_path / "no.zip")))

    def test_flickr8k(self, out):
        folder = DATA / "flickr8k"
        data, notes = import_dataset(
            "karpathy", folder / "dataset_flickr8k.json", out, images=str(folder / "images_224.zip")
        )
        assert data.splits == expect(
            {"train": (6000, 30000), "val": (1000, 5000), "test": (1000, 5000)},
            {"train": (6, 30), "val": (3, 15), "test": (3, 15)},
        )
        assert notes == (
            f"{expect(8000, 12)} images have another file extension than in the captions (.webp for .jpg)",
            f"{expect(91, 1)} images in images_224.zip have no captions and are left out",
        )
        test = data.split("test")
        assert np.array_equal(test.image_of_caption, np.repeat(np.arange(expect(1000, 3)), 5))
        assert max(test.read_image(test.image_ids[expect(7, 2)]).size) == 224

    def test_flickr30k_without_images(self, out):
        data, notes = import_dataset("karpathy", DATA / "flickr30k" / "dataset_flickr30k.json.gz", out)
        assert data.splits == expect(
            {"train": (29000, 145000), "test": (1000, 5000), "val": (1014, 5070)},
            {"train": (6, 30), "test": (3, 15), "val": (3, 15)},
        )
        assert notes == ("the dataset has no images; add them with --images PATH",)


COCO = {
    "images": [{"id": 9, "file_name": "COCO_val2014_000000000009.jpg"}, {"id": 5, "file_name": "five.jpg"}],
    "annotations": [{"id": 1, "image_id": 9, "caption": "nine"}, {"id": 2, "image_id": 9, "caption": "neuf"}],
}


class TestCoco:
    def test_official_files(self, tmp_path, out):
        (tmp_path / "captions_val2014.json").write_text(json.dumps(COCO))
        place = make_images(tmp_path / "photos", ["val2014/COCO_val2014_000000000009.jpg"])
        data, notes = import_dataset("coco", tmp_path / "captions_val2014.json", out, images=str(place))
        assert data.splits == {"val": (1, 2)}
        assert data.read_bytes("9") == image_bytes(0)
        assert notes == ("1 images without captions are left out",)

    def test_the_current_folder(self, tmp_path, out, monkeypatch):
        rows = [{"image_id": 3, "id": 1, "caption": "x"}]
        (tmp_path / "captions_val2017.json").write_text(json.dumps(rows))
        monkeypatch.chdir(tmp_path)
        assert import_dataset("coco", ".", out)[0].splits == {"val": (1, 1)}

    def test_a_folder_of_files_and_plain_lists(self, tmp_path, out):
        (tmp_path / "captions_val2014.json").write_text(json.dumps(COCO))
        rows = [{"caption_id": 7, "image_id": 4, "caption": "four"}]
        (tmp_path / "captions_train.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
        place = make_images(tmp_path / "photos", ["000000000004.jpg", "000000000009.jpg"])
        data, _ = import_dataset("coco", tmp_path, out, images=str(place))
        assert data.splits == {"train": (1, 1), "val": (1, 2)}
        assert [data.read_bytes(image) for image in ("4", "9")] == [image_bytes(0), image_bytes(1)]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ('{"images": 3}', "'images' to be a list"),
            ('{"images": []}', "'annotations' to be a list"),
            ("3", "'images' to be a list"),
            (
                '[{"image_id": 1, "id": 2}]',
                "caption 0`: expected 'caption' to be a Unicode string, got only the fields image_id, id",
            ),
            (
                '[{"id": 2, "caption": "x"}]',
                "caption 0`: expected 'image_id' to be a non-empty Unicode string or an integer",
            ),
            ("[3]", "'image_id' to be a non-empty"),
        ],
    )
    def test_errors(self, tmp_path, out, content, message):
        (tmp_path / "captions.json").write_text(content)
        assert message in import_error("coco", tmp_path / "captions.json", out)
        (tmp_path / "captions.json").unlink()
        assert "expected captions_*.json files, got none" in import_error("coco", tmp_path, out)

    def test_the_5k_test_captions(self, out):
        data, _ = import_dataset("coco", DATA / "coco" / "captions_karpathy_test5k.json.gz", out)
        assert sum(n for n, _ in data.splits.values()) == expect(5000, 12)
        assert data.image_ids[0] == expect("391895", "100")
        assert data.captions[0].caption_id == expect("770337", "1000")


class TestFolder:
    @pytest.fixture
    def source(self, tmp_path):
        make_images(tmp_path / "mine", ["a.png", "b.png", "c.png"])
        return tmp_path / "mine"

    @pytest.mark.parametrize(
        ("file", "text"),
        [
            ("captions.csv", 'image,caption\na.png,one\na.png,"two, ""three"""\nb.png,four\n'),
            ("captions.tsv", 'filename\ttext\r\na.png\tone\r\na.png\t"two, ""three"""\r\nb.png\tfour\r\n'),
            (
                "results.csv",
                'image_name| comment_number| comment\na.png| 0| one\na.png| 1|"two, ""three"""\nb.png| 0| four\n',
            ),
            ("captions.txt", 'a.png#0\tone\na.png#1\ttwo, "three"\nb.png#0\tfour\n'),
            ("captions.txt", 'image,caption\na.png,one\na.png,"two, ""three"""\nb.png,four\n'),
            (
                "metadata.jsonl",
                '{"file_name": "a.png", "text": ["one", "two, \\"three\\""]}\n{"file_name": "b.png", "text": "four"}',
            ),
        ],
    )
    @pytest.mark.parametrize("packed", [False, True])
    def test_layouts(self, source, out, file, text, packed):
        content = text.encode("utf-8-sig")
        (source / (file + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
        data, notes = import_dataset("folder", source, out)
        assert data.texts == ["one", 'two, "three"', "four"]
        assert data.image_ids == ("a.png", "b.png")
        assert [caption.caption_id for caption in data.captions] == ["a.png#0", "a.png#1", "b.png#0"]
        assert data.read_bytes("b.png") == image_bytes(1)
        assert data.splits == {"train": (2, 3)}
        assert notes == ("1 images in mine have no captions and are left out",)

    def test_file_names_come_before_ids(self, source, out):
        (source / "captions.csv").write_text("image_id,file_name,caption\n17,a.png,one\n18,b.png,two\n")
        data, _ = import_dataset("folder", source, out)
        assert data.image_ids == ("a.png", "b.png")
        assert data.read_bytes("b.png") == image_bytes(1)

    def test_captions_come_before_other_texts(self, source, out):
        (source / "captions.csv").write_text("image,text,caption\na.png,STOP,a sign\n")
        assert import_dataset("folder", source, out)[0].texts == ["a sign"]

    def test_the_file_of_flickr30k(self, source, out):
        (source / "results_20130124.token").write_text("a.png#0\tone\na.png#1\ttwo\n")
        data, _ = import_dataset("folder", source, out, captions=str(source / "results_20130124.token"))
        assert data.texts == ["one", "two"]

    def test_images_with_an_empty_list_of_captions_are_left_out(self, source, out):
        lists = [{"image": "a.png", "caption": ["one", "two"]}, {"image": "b.png", "caption": []}]
        write_lines(source / "captions.jsonl", lists)
        data, notes = import_dataset("folder", source, out)
        assert data.image_ids == ("a.png",)
        assert data.texts == ["one", "two"]
        assert notes == ("2 images in mine have no captions and are left out",)

    def test_odd_texts(self, source, out):
        texts = ["tab\there", 'say "cheese"', "\U0001f436 dog", "x" * 10_000, "a\u2028b\x0cc", "", "two\nlines"]
        write_lines(source / "captions.jsonl", [{"image": "a", "caption": text} for text in texts])
        data, notes = import_dataset("folder", source, out)
        assert data.texts == texts
        assert notes[0] == "1 image has another file extension than in the captions (.png for none)"
        quoted = "".join('a.png,"{}"\n'.format(text.replace('"', '""')) for text in texts)
        (source / "table.csv").write_text("image,caption\n" + quoted, encoding="utf-8")
        again, _ = import_dataset("folder", source, out.with_name("again"), captions=str(source / "table.csv"))
        assert again.texts == texts

    def test_own_columns_splits_and_ids(self, source, out):
        (source / "captions.csv").write_text("pic,words,split,caption_id\na.png,one,train,7\nb.png,two,test,8\n")
        data, _ = import_dataset(
            "folder", source, out, image_column="pic", caption_column="words", name="mine", copy=True
        )
        assert data.splits == {"train": (1, 1), "test": (1, 1)}
        assert [caption.caption_id for caption in data.captions] == ["7", "8"]
        assert data.manifest.images[0].path == "images"

    @pytest.mark.parametrize("file", ["captions.csv", "captions.jsonl"])
    def test_columns_in_upper_case(self, source, out, file):
        if file == "captions.csv":
            (source / file).write_text("Image,CAPTION,Split,Caption_ID\na.png,one,train,7\nb.png,two,test,8\n")
        else:
            rows = [("a.png", "one", "train", 7), ("b.png", "two", "test", 8)]
            keys = ("Image", "CAPTION", "Split", "Caption_ID")
            write_lines(source / file, [dict(zip(keys, row, strict=True)) for row in rows])
        data, _ = import_dataset("folder", source, out)
        assert data.texts == ["one", "two"]
        assert data.splits == {"train": (1, 1), "test": (1, 1)}
        assert [caption.caption_id for caption in data.captions] == ["7", "8"]

    def test_a_folder_may_have_a_dot_in_its_name(self, tmp_path, out):
        source = make_images(tmp_path / "mine.v2", ["a.png"])
        (source / "captions.csv").write_text("image,caption\na.png,one\n")
        assert import_dataset("folder", source, out)[0].name == "mine.v2"

    def test_another_encoding(self, source, out):
        (source / "captions.csv").write_bytes("image,caption\na.png,café\n".encode("cp1252"))
        assert "line 2`: expected utf-8 text, got the byte 0xe9" in import_error("folder", source, out)
        assert "name of a text encoding" in import_error("folder", source, out, encoding="latin-99")
        assert import_dataset("folder", source, out, encoding="cp1252")[0].texts == ["café"]

    def test_another_encoding_of_json(self, source, out):
        (source / "captions.jsonl").write_bytes('{"image": "a.png", "text": "café"}'.encode("cp1252"))
        assert "set its encoding with --encoding" in import_error("folder", source, out)
        assert import_dataset("folder", source, out, encoding="cp1252")[0].texts == ["café"]

    def test_spaces_around_splits_and_ids(self, source, out):
        text = "image, caption, split, caption_id\na.png, one, train, 7\nb.png, two, test , \n"
        (source / "captions.csv").write_text(text)
        data, _ = import_dataset("folder", source, out)
        assert data.splits == {"train": (1, 1), "test": (1, 1)}
        assert [caption.caption_id for caption in data.captions] == ["7", "b.png#0"]

    def test_same_name_in_another_folder_does_not_match(self, tmp_path, out):
        source = make_images(tmp_path / "mine", ["cats/1.png"])
        (source / "captions.csv").write_text("image,caption\ncats/1.png,cat\ndogs/1.png,dog\n")
        data, notes = import_dataset("folder", source, out)
        assert data.read_bytes("cats/1.png") == image_bytes(0)
        with pytest.raises(FileNotFoundError):
            data.read_bytes("dogs/1.png")
        assert "1 of 2 images have no file" in notes[0]

    def test_a_zip_with_the_captions_beside(self, tmp_path, out):
        archive = make_images(tmp_path / "photos", ["a.png"], "zip")
        (tmp_path / "c.tsv").write_text("image\tcaption\na.jpg\tone\n")
        data, notes = import_dataset("folder", archive, out, captions=str(tmp_path / "c.tsv"), split="test")
        assert data.splits == {"test": (1, 1)}
        assert data.read_bytes("a.jpg") == image_bytes(0)
        assert notes == ("1 image has another file extension than in the captions (.png for .jpg)",)

    @pytest.mark.parametrize(
        ("file", "text", "message"),
        [
            ("captions.csv", "image,caption\na.png\n", "line 2`: expected 2 columns, got 1"),
            ("captions.csv", "image,caption\na.png,one,two\n", "line 2`: expected 2 columns, got 3; put captions"),
            ("captions.csv", 'image,caption\na.png,"one\n', "line 2`: expected closed quotes"),
            ("captions.csv", "image,words\n", "line 1`: expected a column for the caption, such as 'caption'"),
            ("captions.csv", "", "mine`: expected at least one caption, got none"),
            ("captions.csv", "image,caption,caption\na.png,x,y\n", "expected one column 'caption', got 2 of them"),
            ("captions.csv", "image,caption\n,one\n", "line 2`: expected 'image' to be a non-empty"),
            ("captions.csv", "image,caption,split\na.png,one,train\na.png,two,test\n", "line 3`: expected one split"),
            ("captions.csv", "image,caption,caption_id\na.png,x,1\nb.png,y,1\n", "a unique caption_id, got '1' as"),
            ("captions.csv", "image,caption\nz.png,one\n", "`--images`: expected files such as 'z.png'"),
            ("captions.txt", "a.png#0\tone\nb.png two\n", "line 2`: expected name#number, a tab, a caption"),
            ("captions.jsonl", '{"image": "a.png"}', "line 1`: expected a column for the caption"),
            ("captions.jsonl", '{"image": "a.png", "text": 3}', "line 1`: expected 'text' to be a Unicode string"),
            ("captions.jsonl", '{"image": ["a.png"], "text": "x"}', "line 1`: expected 'image' to be"),
            ("captions.jsonl", '{"image": "a.png", "text": "x", "split": 3}', "'split' to be a Unicode string, got 3"),
            ("other.csv", "image,caption\na.png,one\n", "expected one captions file, such as captions.csv, got none"),
        ],
    )  # fmt: skip
    def test_errors(self, source, out, file, text, message):
        (source / file).write_text(text)
        assert message in import_error("folder", source, out)

    def test_more_errors(self, source, out):
        for name, got in (("captions.xls", ".xls"), ("captions", "no extension")):
            (source / name).write_text("x")
            message = import_error("folder", source, out, captions=str(source / name))
            assert f"a .csv, .tsv, .txt, .token or .jsonl file, got {got}; convert" in message
        (source / "captions.csv").write_text("image,caption\na.png,x\n")
        assert "expected a column 'words'" in import_error("folder", source, out, caption_column="words")
        with pytest.raises(FileNotFoundError):
            run_import("folder", source / "nothing", ImportSettings(str(out)))

    def test_several_files_of_one_name(self, tmp_path, out):
        source = make_images(tmp_path / "mine", ["cats/1.png", "dogs/1.png", "2.png"])
        (source / "captions.csv").write_text("image,caption\n1.png,one\n2.png,two\n")
        _, notes = import_dataset("folder", source, out)
        assert notes[0].endswith("the first is '1.png', the name of 2 files")

    def test_some_images_missing(self, source, out):
        (source / "captions.csv").write_text("image,caption\na.png,one\nz.png,two\n")
        data, notes = import_dataset("folder", source, out)
        assert any("1 of 2 images have no file in" in note and "the first is 'z.png'" in note for note in notes)
        with pytest.raises(FileNotFoundError, match=r"no file for image 'z\.png'"):
            data.read_image("z.png")
