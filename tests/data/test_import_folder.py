import gzip
import json

import pytest

from bcls.data.importers import KINDS, ImportSettings, run_import
from bcls.data.importers.splits import split_of
from tests.data.importing import bring, refused
from tests.data.made import make_pictures, picture, write_lines


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("captions_train2014.json", "train"),
        ("x-validation-1.tar", "val"),
        ("testall_caps", "testall"),
        ("a.b", "train"),
    ],
)
def test_splits_in_names(name, split):
    assert split_of(name) == split


def test_settings_that_do_not_apply(tmp_path, out):
    assert "`--images`: expected it only where it applies, not with scan" in refused("scan", tmp_path, out, images="x")
    assert "did you mean 'karpathy'" in refused("karpaty", tmp_path, out)
    assert set(KINDS) == {"folder", "karpathy", "coco", "scan", "butd", "webdataset", "huggingface"}


class TestFolder:
    @pytest.fixture
    def source(self, tmp_path):
        make_pictures(tmp_path / "mine", ["a.png", "b.png", "c.png"])
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
        data, notes = bring("folder", source, out)
        assert data.texts == ["one", 'two, "three"', "four"]
        assert data.image_ids == ("a.png", "b.png")
        assert [caption.caption_id for caption in data.captions] == ["a.png#0", "a.png#1", "b.png#0"]
        assert data.read_bytes("b.png") == picture(1)
        assert data.splits == {"train": (2, 3)}
        assert notes == ("1 pictures in mine have no captions and are left out",)

    def test_odd_texts(self, source, out):
        texts = ["tab\there", 'say "cheese"', "\U0001f436 dog", "x" * 10_000, "a\u2028b\x0cc", "", "two\nlines"]
        write_lines(source / "captions.jsonl", [{"image": "a", "caption": text} for text in texts])
        data, notes = bring("folder", source, out)
        assert data.texts == texts
        assert notes[0] == "1 image has another file ending than in the captions (.png for none)"
        quoted = "".join('a.png,"{}"\n'.format(text.replace('"', '""')) for text in texts)
        (source / "table.csv").write_text("image,caption\n" + quoted, encoding="utf-8")
        again, _ = bring("folder", source, out.with_name("again"), captions=str(source / "table.csv"))
        assert again.texts == texts

    def test_own_columns_splits_and_ids(self, source, out):
        (source / "captions.csv").write_text("pic,words,split,caption_id\na.png,one,train,7\nb.png,two,test,8\n")
        data, _ = bring("folder", source, out, image_column="pic", caption_column="words", name="mine", copy=True)
        assert data.splits == {"train": (1, 1), "test": (1, 1)}
        assert [caption.caption_id for caption in data.captions] == ["7", "8"]
        assert data.manifest.images[0].path == "images"

    def test_a_folder_may_have_a_dot_in_its_name(self, tmp_path, out):
        source = make_pictures(tmp_path / "mine.v2", ["a.png"])
        (source / "captions.csv").write_text("image,caption\na.png,one\n")
        assert bring("folder", source, out)[0].name == "mine.v2"

    def test_another_encoding(self, source, out):
        (source / "captions.csv").write_bytes("image,caption\na.png,café\n".encode("cp1252"))
        assert "line 2`: expected utf-8 text, got the byte 0xe9" in refused("folder", source, out)
        assert "name of a text encoding" in refused("folder", source, out, encoding="latin-99")
        assert bring("folder", source, out, encoding="cp1252")[0].texts == ["café"]

    def test_another_encoding_of_json(self, source, out):
        (source / "captions.jsonl").write_bytes('{"image": "a.png", "text": "café"}'.encode("cp1252"))
        assert "name its encoding with --encoding" in refused("folder", source, out)
        assert bring("folder", source, out, encoding="cp1252")[0].texts == ["café"]

    def test_spaces_around_splits_and_ids(self, source, out):
        text = "image, caption, split, caption_id\na.png, one, train, 7\nb.png, two, test , \n"
        (source / "captions.csv").write_text(text)
        data, _ = bring("folder", source, out)
        assert data.splits == {"train": (1, 1), "test": (1, 1)}
        assert [caption.caption_id for caption in data.captions] == ["7", "b.png#0"]

    def test_folders_without_a_picture_of_that_name(self, tmp_path, out):
        source = make_pictures(tmp_path / "mine", ["cats/1.png"])
        (source / "captions.csv").write_text("image,caption\ncats/1.png,cat\ndogs/1.png,dog\n")
        data, notes = bring("folder", source, out)
        assert data.read_bytes("cats/1.png") == picture(0)
        with pytest.raises(FileNotFoundError):
            data.read_bytes("dogs/1.png")
        assert "1 of 2 images have no file" in notes[0]

    def test_a_zip_with_the_captions_beside(self, tmp_path, out):
        archive = make_pictures(tmp_path / "photos", ["a.png"], "zip")
        (tmp_path / "c.tsv").write_text("image\tcaption\na.jpg\tone\n")
        data, notes = bring("folder", archive, out, captions=str(tmp_path / "c.tsv"), split="test")
        assert data.splits == {"test": (1, 1)}
        assert data.read_bytes("a.jpg") == picture(0)
        assert notes == ("1 image has another file ending than in the captions (.png for .jpg)",)

    @pytest.mark.parametrize(
        ("file", "text", "message"),
        [
            ("captions.csv", "image,caption\na.png\n", "line 2`: expected 2 columns, got 1"),
            ("captions.csv", "image,caption\na.png,one,two\n", "line 2`: expected 2 columns, got 3; put captions"),
            ("captions.csv", 'image,caption\na.png,"one\n', "line 2`: expected quotes that close"),
            ("captions.csv", "image,words\n", "line 1`: expected a column for the caption, such as 'caption'"),
            ("captions.csv", "", "`source`: expected at least one caption, got none"),
            ("captions.csv", "image,caption\n,one\n", "line 2`: expected the name of an image, got ''"),
            ("captions.csv", "image,caption,split\na.png,one,train\na.png,two,test\n", "line 3`: expected one split"),
            ("captions.csv", "image,caption,caption_id\na.png,x,1\nb.png,y,1\n", "each caption id once, got '1' twice"),
            ("captions.csv", "image,caption\nz.png,one\n", "`--images`: expected files such as 'z.png'"),
            ("captions.txt", "a.png#0\tone\nb.png two\n", "line 2`: expected name#number, a tab, a caption"),
            ("captions.jsonl", '{"image": "a.png"}', "line 1`: expected a column for the caption"),
            ("captions.jsonl", '{"image": "a.png", "text": 3}', "line 1`: expected a caption, got 3"),
            ("captions.jsonl", '{"image": ["a.png"], "text": "x"}', "line 1`: expected the name of an image"),
            ("captions.jsonl", '{"image": "a.png", "text": "x", "split": 3}', "the name of a split, got 3"),
            ("other.csv", "image,caption\na.png,one\n", "expected one captions file, such as captions.csv, got none"),
        ],
    )  # fmt: skip
    def test_errors(self, source, out, file, text, message):
        (source / file).write_text(text)
        assert message in refused("folder", source, out)

    def test_more_errors(self, source, out):
        (source / "captions.xls").write_text("x")
        assert "a .csv, .tsv, .txt or .jsonl file, got .xls" in refused(
            "folder", source, out, captions=str(source / "captions.xls")
        )
        (source / "captions.csv").write_text("image,caption\na.png,x\n")
        assert "expected a column 'words'" in refused("folder", source, out, caption_column="words")
        with pytest.raises(FileNotFoundError):
            run_import("folder", source / "nothing", ImportSettings(str(out)))

    def test_some_images_missing(self, source, out):
        (source / "captions.csv").write_text("image,caption\na.png,one\nz.png,two\n")
        data, notes = bring("folder", source, out)
        assert any("1 of 2 images have no file in" in note and "'z.png' the first" in note for note in notes)
        with pytest.raises(FileNotFoundError, match=r"no file for image 'z\.png'"):
            data.read_image("z.png")


class TestHeldOut:
    @pytest.fixture
    def source(self, tmp_path):
        names = [f"{n}.png" for n in range(30)]
        make_pictures(tmp_path / "mine", names)
        lines = [f"{name},caption {turn} of {name}" for name in names for turn in range(2)]
        (tmp_path / "mine" / "captions.csv").write_text("\n".join(["image,caption", *lines]))
        return tmp_path / "mine"

    def test_a_tenth_each(self, source, out, tmp_path):
        data, _ = bring("folder", source, out, held_out=0.1)
        assert data.splits == {"train": (24, 48), "val": (3, 6), "test": (3, 6)}
        again, _ = bring("folder", source, tmp_path / "again", held_out=0.1)
        assert again.captions == data.captions
        for split in data.splits:  # the captions went along
            part = data.split(split)
            assert {caption.image_id for caption in part.captions} == set(part.image_ids)

    @pytest.mark.parametrize(("share", "held"), [(0.001, 1), (0.49, 14)])
    def test_no_split_is_empty(self, source, out, share, held):
        data, _ = bring("folder", source, out, held_out=share)
        assert data.splits["val"][0] == data.splits["test"][0] == held
        assert data.splits["train"][0] == 30 - 2 * held

    @pytest.mark.parametrize("share", [0, 0.5, -1, float("nan")])
    def test_shares_that_are_none(self, source, out, share):
        assert "`--held_out`: expected a" in refused("folder", source, out, held_out=share)

    def test_splits_that_are_there_stand(self, source, out):
        (source / "captions.csv").write_text("image,caption,split\n0.png,a,train\n1.png,b,test\n2.png,c,train")
        message = refused("folder", source, out, held_out=0.1)
        assert "expected a source without splits of its own, got test, train" in message

    def test_ids_that_are_no_text(self, tmp_path, out):
        rows = [{"image_id": f"{n}\ud83d", "id": n, "caption": "x"} for n in range(3)]
        (tmp_path / "captions.json").write_text(json.dumps(rows))
        assert "valid Unicode, got '0\\ud83d'" in refused("coco", tmp_path / "captions.json", out, held_out=0.2)

    def test_too_few(self, source, out):
        (source / "captions.csv").write_text("image,caption\n0.png,a\n1.png,b")
        assert "expected at least 3 images, got 2" in refused("folder", source, out, held_out=0.3)
