import gzip
import json

import numpy as np
import pytest

from bcls.data.importers import ImportSettings, run_import
from tests.data.importing import bring, refused
from tests.data.made import REAL, make_pictures, needs_real, picture


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def karpathy(images, name="tiny"):
    return {"dataset": name, "images": images}


def entry(number, split="train", **more):
    sentences = [{"raw": f"caption {number} {place}", "sentid": 10 * number + place} for place in range(2)]
    return {"filename": f"{number}.jpg", "split": split, "sentences": sentences, **more}


class TestKarpathy:
    def test_other_endings_are_said_once(self, tmp_path, out):
        archive = make_pictures(tmp_path / "images", ["images/0.webp", "images/1.webp"], "zip")
        (tmp_path / "dataset_tiny.json.gz").write_bytes(
            gzip.compress(json.dumps(karpathy([entry(0), entry(1, "test")])).encode())
        )
        # The plain name is found although only the packed file is there.
        data, notes = bring("karpathy", tmp_path / "dataset_tiny.json", out, images=str(archive))
        assert notes == ("2 images have another file ending than in the captions (.webp for .jpg)",)
        assert data.name == "tiny"
        assert data.image_ids == ("0.jpg", "1.jpg")
        assert [caption.caption_id for caption in data.captions] == ["0", "1", "10", "11"]
        assert data.split("test").read_bytes("1.jpg") == picture(1)

    def test_coco_ids_folders_and_restval(self, tmp_path, out):
        images = [entry(0, "restval", cocoid=42, filepath="val2014"), entry(1, "val", cocoid=43, filepath="val2014")]
        (tmp_path / "dataset_coco.json").write_text(json.dumps(karpathy(images)))
        place = make_pictures(tmp_path / "pictures", ["val2014/0.jpg", "val2014/1.jpg", "train2014/0.jpg"])
        data, notes = bring("karpathy", tmp_path / "dataset_coco.json", out, images=str(place))
        assert data.splits == {"train": (1, 2), "val": (1, 2)}
        assert data.image_ids == ("42", "43")
        assert data.file_of("42") == "val2014/0.jpg"
        assert notes[-1] == "1 images of split 'restval' went to 'train'"
        kept, _ = bring("karpathy", tmp_path / "dataset_coco.json", out.with_name("kept"), restval="restval")
        assert list(kept.splits) == ["restval", "val"]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("[]", "expected \"images\" with a list"),
            ('{"images": [3]}', "images[0]`: expected 'split' with a text, got none"),
            (json.dumps(karpathy([entry(0), {"split": "train"}])), "images[1]`: expected 'filename' with a text"),
            (json.dumps(karpathy([entry(0, sentences=[{"raw": 3}])])), "sentences[0]`: expected 'raw' with a text"),
            (json.dumps(karpathy([entry(0), entry(0)])), "expected each image once, got '0.jpg' twice"),
            ('{"images": [', "line 1`: expected JSON"),
        ],
    )  # fmt: skip
    def test_errors(self, tmp_path, out, content, message):
        (tmp_path / "dataset_x.json").write_text(content)
        assert message in refused("karpathy", tmp_path / "dataset_x.json", out)

    def test_missing_files(self, tmp_path, out):
        with pytest.raises(FileNotFoundError):
            run_import("karpathy", tmp_path / "nothing.json", ImportSettings(str(out)))
        (tmp_path / "d.json").write_text(json.dumps(karpathy([entry(0)])))
        with pytest.raises(FileNotFoundError):
            run_import("karpathy", tmp_path / "d.json", ImportSettings(str(out), images=str(tmp_path / "no.zip")))

    @needs_real
    def test_flickr8k(self, out):
        folder = REAL / "flickr8k"
        data, notes = bring("karpathy", folder / "dataset_flickr8k.json", out, images=str(folder / "images_224.zip"))
        assert data.splits == {"train": (6000, 30000), "val": (1000, 5000), "test": (1000, 5000)}
        assert notes == (
            "8000 images have another file ending than in the captions (.webp for .jpg)",
            "91 pictures in images_224.zip have no captions and are left out",
        )
        test = data.split("test")
        assert np.array_equal(test.image_of_caption, np.repeat(np.arange(1000), 5))
        assert max(test.read_image(test.image_ids[7]).size) == 224

    @needs_real
    def test_flickr30k_without_pictures(self, out):
        data, notes = bring("karpathy", REAL / "flickr30k" / "dataset_flickr30k.json.gz", out)
        assert data.splits == {"train": (29000, 145000), "test": (1000, 5000), "val": (1014, 5070)}
        assert notes == ("no pictures: give --images to have them",)


COCO = {
    "images": [{"id": 9, "file_name": "COCO_val2014_000000000009.jpg"}, {"id": 5, "file_name": "five.jpg"}],
    "annotations": [{"id": 1, "image_id": 9, "caption": "nine"}, {"id": 2, "image_id": 9, "caption": "neuf"}],
}


class TestCoco:
    def test_official_files(self, tmp_path, out):
        (tmp_path / "captions_val2014.json").write_text(json.dumps(COCO))
        place = make_pictures(tmp_path / "pictures", ["val2014/COCO_val2014_000000000009.jpg"])
        data, notes = bring("coco", tmp_path / "captions_val2014.json", out, images=str(place))
        assert data.splits == {"val": (1, 2)}
        assert data.read_bytes("9") == picture(0)
        assert notes == ("1 images without captions are left out",)

    def test_a_folder_of_files_and_plain_lists(self, tmp_path, out):
        (tmp_path / "captions_val2014.json").write_text(json.dumps(COCO))
        rows = [{"caption_id": 7, "image_id": 4, "caption": "four"}]
        (tmp_path / "captions_train.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
        place = make_pictures(tmp_path / "pictures", ["000000000004.jpg", "000000000009.jpg"])
        data, _ = bring("coco", tmp_path, out, images=str(place))
        assert data.splits == {"train": (1, 1), "val": (1, 2)}
        assert [data.read_bytes(image) for image in ("4", "9")] == [picture(0), picture(1)]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ('{"images": 3}', "'images' with a list"),
            ('{"images": []}', "'annotations' with a list"),
            ("3", "'captions' with a list"),
            ('[{"image_id": 1, "id": 2}]', "caption 0`: expected 'caption' with a text, got None"),
            ('[{"id": 2, "caption": "x"}]', "caption 0`: expected 'image_id' with a number or text, got None"),
            ("[3]", "'image_id' with a number or text"),
        ],
    )
    def test_errors(self, tmp_path, out, content, message):
        (tmp_path / "captions.json").write_text(content)
        assert message in refused("coco", tmp_path / "captions.json", out)
        (tmp_path / "captions.json").unlink()
        assert "expected captions_*.json files, got none" in refused("coco", tmp_path, out)

    @needs_real
    def test_the_5k_test_captions(self, out):
        data, _ = bring("coco", REAL / "coco" / "captions_karpathy_test5k.json.gz", out)
        assert sum(n for n, _ in data.splits.values()) == 5000
        assert data.image_ids[0] == "391895"
        assert data.captions[0].caption_id == "770337"
