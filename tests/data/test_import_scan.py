import numpy as np
import pytest

from bcls.data.importers import ImportSettings, run_import
from tests.data.importing import bring, refused
from tests.data.made import REAL, needs_real


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


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
        data, notes = bring("scan", source, out, copy=copy)
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
        data, _ = bring("scan", precomp(tmp_path / "x", images=5, each=1, rows=1, ids=None), out)
        assert data.splits == {"train": (5, 5)}

    def test_splits_and_what_is_said(self, tmp_path, out):
        source = tmp_path / "coco_precomp"
        for split in ("testall", "test", "dev"):
            precomp(source, split, rows=1 if split == "dev" else None)
        data, notes = bring("scan", source, out)
        assert list(data.splits) == ["dev", "testall"]
        assert notes == (
            "split 'test' is left out: it repeats the first images of 'testall'",
            "no features for testall: there is no *_ims.npy",
        )

    def test_disagreements(self, tmp_path, out):
        source = precomp(tmp_path / "x", rows=1)
        np.save(source / "train_ims.npy", np.zeros((3, 3, 8)))
        assert "a row for each image or caption, got 3 rows and 20 captions" in refused("scan", source, out)
        precomp(source, rows=1)
        (source / "train_ids.txt").write_text("a\n" * 3)
        assert "train_ids.txt`: expected 4 or 20 lines, got 3" in refused("scan", source, out)
        (source / "train_ids.txt").write_text("a\n" * 6 + "b\n" * 14)
        assert "line 7`: expected one id for 5 captions, got 'b' after 'a'" in refused("scan", source, out)
        (source / "train_ims.npy").unlink()
        (source / "train_ids.txt").unlink()
        (source / "train_caps.txt").write_text("a\n" * 7)
        assert "expected 5 lines an image, got 7 lines; add a *_ids.txt file" in refused("scan", source, out)
        (source / "train_ids.txt").write_text("a\na\nb\nb\nc\nc\nd\n")
        assert "as many captions of every image, got 7 captions, 2 of the first image" in refused("scan", source, out)
        (source / "train_caps.txt").write_text("")
        assert "train_caps.txt`: expected a caption a line, got an empty file" in refused("scan", source, out)
        np.save(source / "train_ims.npy", np.zeros((0, 3, 8)))
        assert "train_caps.txt`: expected a caption a line, got an empty file" in refused("scan", source, out)
        (source / "train_caps.txt").unlink()
        assert "files such as train_caps.txt, got none" in refused("scan", source, out)
        with pytest.raises(FileNotFoundError):
            run_import("scan", source / "nothing", ImportSettings(str(out)))

    @needs_real
    @pytest.mark.parametrize(
        ("name", "splits"),
        [
            ("flickr30k", {"dev": (1014, 5070), "test": (1000, 5000)}),
            ("coco", {"dev": (1000, 5000), "testall": (5000, 25000)}),
        ],
    )
    def test_real_files(self, out, name, splits):
        data, _ = bring("scan", REAL / name, out)
        assert data.splits == splits
        first = {"flickr30k": "A group of people stand in the back of a truck filled with cotton ."}
        assert data.texts[0] == first.get(name, data.texts[0])

    @needs_real
    def test_real_captions_with_made_features(self, tmp_path, out):
        source = tmp_path / "f30k_precomp"
        source.mkdir()
        for name in ("dev_caps.txt.gz", "dev_ids.txt.gz"):
            (source / name).write_bytes((REAL / "flickr30k" / name).read_bytes())
        np.save(source / "dev_ims.npy", np.arange(1014 * 2 * 3, dtype=np.float32).reshape(1014, 2, 3))
        data, _ = bring("scan", source, out)
        assert data.features("regions").shape == (1014, 2, 3)
        assert data.image_ids[:2] == ("67", "99")
