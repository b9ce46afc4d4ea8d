import json

import pytest

from bcls.data.importers import KINDS
from bcls.data.importers.captions import split_from_name
from tests.data.factories import import_dataset, import_error, make_images


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
    assert split_from_name(name) == split


def test_settings_that_do_not_apply(tmp_path, out):
    assert "`--images`: expected no value for a scan source" in import_error("scan", tmp_path, out, images="x")
    assert "did you mean 'karpathy'" in import_error("karpaty", tmp_path, out)
    assert set(KINDS) == {"folder", "karpathy", "coco", "scan", "butd", "webdataset", "huggingface"}


class TestHeldOut:
    @pytest.fixture
    def source(self, tmp_path):
        names = [f"{n}.png" for n in range(30)]
        make_images(tmp_path / "mine", names)
        lines = [f"{name},caption {turn} of {name}" for name in names for turn in range(2)]
        (tmp_path / "mine" / "captions.csv").write_text("\n".join(["image,caption", *lines]))
        return tmp_path / "mine"

    def test_a_tenth_each(self, source, out, tmp_path):
        data, _ = import_dataset("folder", source, out, held_out=0.1)
        assert data.splits == {"train": (24, 48), "val": (3, 6), "test": (3, 6)}
        again, _ = import_dataset("folder", source, tmp_path / "again", held_out=0.1)
        assert again.captions == data.captions
        for split in data.splits:  # the captions went along
            part = data.split(split)
            assert {caption.image_id for caption in part.captions} == set(part.image_ids)

    @pytest.mark.parametrize(("share", "held"), [(0.001, 1), (0.49, 14)])
    def test_no_split_is_empty(self, source, out, share, held):
        data, _ = import_dataset("folder", source, out, held_out=share)
        assert data.splits["val"][0] == data.splits["test"][0] == held
        assert data.splits["train"][0] == 30 - 2 * held

    @pytest.mark.parametrize("share", [0, 0.5, -1, float("nan")])
    def test_invalid_shares(self, source, out, share):
        assert "`--held-out`: expected a" in import_error("folder", source, out, held_out=share)

    def test_source_with_splits_is_refused(self, source, out):
        (source / "captions.csv").write_text("image,caption,split\n0.png,a,train\n1.png,b,test\n2.png,c,train")
        message = import_error("folder", source, out, held_out=0.1)
        assert "expected a source without splits of its own, got test, train" in message

    def test_ids_with_invalid_unicode(self, tmp_path, out):
        rows = [{"image_id": f"{n}\ud83d", "id": n, "caption": "x"} for n in range(3)]
        (tmp_path / "captions.json").write_text(json.dumps(rows))
        assert "'image_id' to be a non-empty Unicode string or an integer, got '0\\ud83d'" in import_error(
            "coco", tmp_path / "captions.json", out, held_out=0.2
        )

    def test_too_few(self, source, out):
        (source / "captions.csv").write_text("image,caption\n0.png,a\n1.png,b")
        assert "expected at least 3 images, got 2" in import_error("folder", source, out, held_out=0.3)
        (source / "captions.csv").write_text("image,caption\n")
        assert "expected at least 3 images, got 0" in import_error("folder", source, out, held_out=0.3)
