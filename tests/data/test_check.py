import errno
import io
import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bcls.data.check import CheckSettings, check_dataset, difference_hash, near_pairs
from bcls.data.dataset import open_dataset
from bcls.data.image_files import FolderStore
from bcls.data.importers import ImportSettings, run_import
from bcls.data.records import FeatureFile, ImageFiles, Manifest, write_manifest
from tests.data.factories import caption_rows, image_bytes, make_dataset, make_images, write_lines
from tests.samples import DATA, FULL, expect

pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


def found(folder, **settings):
    """What a check finds, as ``kind: subjects``, and the report."""
    report = check_dataset(folder, CheckSettings(**settings))
    kinds = {}
    for one in report.findings:
        kinds.setdefault(one.kind, []).append(one.subject)
    return kinds, report


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_a_clean_dataset(tmp_path, kind):
    folder = make_dataset(tmp_path / "made", kind)
    kinds, report = found(folder)
    assert kinds == {}
    assert report.is_clean
    assert json.loads((folder / "quarantine.json").read_text()) == {"images": {}, "captions": {}}


class TestImages:
    def put(self, folder, content, name="i1.png"):
        (folder / "images" / name).write_bytes(content)

    @pytest.mark.parametrize(
        ("content", "detail"),
        [
            (b"", "an empty file"),
            (b"hello", "5 bytes of something else"),
            (image_bytes(1, (300, 300), "JPEG")[:2000], "damaged"),
            (image_bytes(1, (300, 300), "PNG")[:500], "damaged"),
        ],
    )
    def test_damaged_images_go_into_quarantine(self, folder, content, detail):
        self.put(folder, content)
        kinds, report = found(folder)
        assert kinds == {"damaged-image": ["i1"]}
        assert detail in report.quarantine.images["i1"]
        assert not report.is_clean
        data = open_dataset(folder).without_quarantined()
        assert data.image_ids == ("i0", "i2", "i3")
        assert len(data.captions) == 6

    def test_missing_images(self, folder):
        (folder / "images" / "i2.png").unlink()
        kinds, report = found(folder)
        assert kinds == {"missing-image": ["i2"]}
        assert "i2" in report.quarantine.images

    def test_too_many_pixels(self, folder):
        self.put(folder, image_bytes(1, (40, 40)))
        kinds, report = found(folder, max_pixels=1000)
        assert kinds == {"damaged-image": ["i1"]}
        assert "at most 1000 pixels, got 40 x 40" in report.quarantine.images["i1"]

    def test_unusual_images_are_notes(self, folder):
        self.put(folder, image_bytes(1, file_format="JPEG", mode="CMYK"))
        frames = [Image.open(io.BytesIO(image_bytes(seed))) for seed in (2, 9)]
        frames[0].save(folder / "images" / "i2.png", save_all=True, append_images=frames[1:])
        depth = np.linspace(0, 65535, 400, dtype=np.uint16).reshape(20, 20)
        Image.fromarray(depth).save(folder / "images" / "i3.png")
        kinds, report = found(folder)
        assert kinds == {"wrong-extension": ["i1"], "animated": ["i2"]}
        assert report.is_clean
        assert report.quarantine.images == {}

    def test_a_damaged_member_of_a_zip(self, tmp_path):
        folder = make_dataset(tmp_path / "made", "zip")
        content = bytearray((folder / "images.zip").read_bytes())
        content[60] ^= 255
        (folder / "images.zip").write_bytes(content)
        assert found(folder)[0] == {"damaged-image": ["i0"]}

    def test_moved_image_folder_is_one_error(self, folder, tmp_path):
        write_manifest(folder, Manifest("made", images=open_dataset(folder).manifest.images))
        moved = shutil.move(folder / "images", tmp_path / "there")
        (folder / "manifest.json").write_text(
            json.dumps({"format": "bcls-dataset", "version": 1, "images": [{"path": "images"}]})
        )
        with pytest.raises(FileNotFoundError, match="set their location with --images PATH"):
            check_dataset(folder)
        assert found(folder, images=str(moved))[0] == {}

    def test_files_that_cannot_be_opened(self, folder, monkeypatch):
        (folder / "images" / "i0.png").unlink()
        (folder / "images" / "i0.png").symlink_to("i0.png")
        read = FolderStore.read

        def refuse(store, name):
            if name == "i1.png":  # the tests may run as root, who can open every file
                raise PermissionError(errno.EACCES, "Permission denied", name)
            return read(store, name)

        monkeypatch.setattr(FolderStore, "read", refuse)
        kinds, report = found(folder)
        assert kinds == {"missing-image": ["i0", "i1"]}
        assert report.quarantine.images["i1"] == "missing-image: Permission denied"

    def test_system_errors_are_not_findings(self, folder, monkeypatch):
        def refuse(*_):
            raise OSError(24, "Too many open files")

        monkeypatch.setattr("bcls.data.image_files.FolderStore.read", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            check_dataset(folder)
        assert not (folder / "quarantine.json").exists()

    def test_all_images_missing_is_one_error(self, folder, tmp_path):
        make_images(tmp_path / "others", ["other.png"])
        with pytest.raises(ValueError, match=r"`--images`: expected images of the 4 records .* got none of them"):
            check_dataset(folder, CheckSettings(images=str(tmp_path / "others")))
        assert not (folder / "quarantine.json").exists()

    def test_archives_that_moved_to_another_folder(self, tmp_path):
        rows = caption_rows(4, 1)
        folder = make_dataset(tmp_path / "made", rows=rows)
        tars = [make_images(tmp_path / "old" / f"{n}", [f"{k}.png" for k in range(n + 1)], "tar") for n in range(4)]
        images = [{**row, "file": f"{n}.png", "source": n} for n, row in enumerate(rows)]
        write_lines(folder / "images.jsonl", images)
        write_manifest(folder, Manifest("made", images=tuple(ImageFiles(str(path)) for path in tars)))
        (tmp_path / "old").rename(tmp_path / "new")
        assert found(folder, images=str(tmp_path / "new"))[0] == {}
        (tmp_path / "new" / "2.tar").unlink()
        with pytest.raises(FileNotFoundError, match="set their location with --images PATH"):
            check_dataset(folder, CheckSettings(images=str(tmp_path / "new")))

    def test_dataset_without_images(self, folder):
        shutil.rmtree(folder / "images")
        assert found(folder)[0] == {"not-checked": ["images"]}


class TestDuplicates:
    def test_the_same_file_in_two_splits(self, folder):
        shutil.copy(folder / "images" / "i3.png", folder / "images" / "i0.png")
        kinds, report = found(folder)
        assert kinds == {"duplicate-image": ["i0"]}
        assert report.quarantine.images == {"i0": "duplicate-image: in train, same file as i3 in test"}

    def test_every_copy_outside_the_kept_split_is_removed(self, tmp_path):
        folder = make_dataset(tmp_path / "made", rows=caption_rows(5, splits=("train", "train", "val", "test", "test")))
        for name in ("i0", "i1", "i2", "i4"):
            shutil.copy(folder / "images" / "i3.png", folder / "images" / f"{name}.png")
        kinds, report = found(folder)
        assert kinds == {"duplicate-image": ["i0", "i1", "i2"], "repeated-image": ["i4"]}
        assert report.quarantine.images["i1"] == "duplicate-image: in train, same file as i3 in test"
        assert report.quarantine.images["i2"] == "duplicate-image: in val, same file as i3 in test"

    def test_name_decides_between_splits_of_a_kind(self, tmp_path):
        folder = make_dataset(tmp_path / "made", rows=caption_rows(4, splits=("val", "dev", "dev", "val")))
        for one, other in (("i0", "i1"), ("i2", "i3")):
            shutil.copy(folder / "images" / f"{one}.png", folder / "images" / f"{other}.png")
        assert found(folder)[0] == {"duplicate-image": ["i1", "i2"]}

    def test_the_same_file_in_one_split(self, folder):
        shutil.copy(folder / "images" / "i1.png", folder / "images" / "i0.png")
        kinds, report = found(folder)
        assert kinds == {"repeated-image": ["i1"]}
        assert report.is_clean

    def test_copies_that_were_saved_again(self, folder):
        original = Image.open(io.BytesIO(image_bytes(5, (320, 240))))
        original.save(folder / "images" / "i3.png")
        original.resize((200, 150)).save(folder / "images" / "i2.png", "JPEG", quality=50)
        kinds, report = found(folder)
        assert kinds["near-duplicate-image"] == ["i2"]
        assert report.quarantine.images["i2"].startswith("near-duplicate-image: in val, looks like i3 in test")
        assert "near-duplicate-image" not in found(folder, near=-1)[0]

    def test_single_colour_images_are_not_compared(self, folder):
        for name, colour in (("i0", "red"), ("i3", "blue")):
            Image.new("RGB", (32, 24), colour).save(folder / "images" / f"{name}.png")
        assert found(folder)[0] == {}

    @given(
        st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2)), min_size=1, max_size=25),
        st.lists(st.integers(0, 63), max_size=5),
        st.integers(0, 8),
    )
    def test_near_pairs_finds_every_pair(self, items, flips, most):
        base = items[0][0]
        for flip in flips:  # make some that are near
            base ^= 1 << flip
            items = [*items, (base, flip % 3)]
        hashes = np.array([one for one, _ in items], dtype=np.uint64)
        groups = np.array([group for _, group in items])
        slow = [
            (one, other)
            for one in range(len(items))
            for other in range(one + 1, len(items))
            if groups[one] != groups[other] and (items[one][0] ^ items[other][0]).bit_count() <= most
        ]
        assert near_pairs(hashes, groups, most) == slow

    def test_the_hash_reads_from_left_to_right(self):
        ramp = Image.fromarray(np.tile(np.arange(0, 180, 2, dtype=np.uint8), (40, 1)))
        assert difference_hash(ramp) == 2**64 - 1
        assert difference_hash(ramp.transpose(Image.Transpose.FLIP_LEFT_RIGHT)) == 0


class TestCaptions:
    def test_empty_repeated_shared_and_long(self, tmp_path):
        rows = caption_rows()
        rows[0]["text"] = " . "
        rows[3]["text"] = "Image  1, take 0."
        rows[4]["text"] = "image 1, take 0"
        rows[5]["text"] = "word " * 300
        kinds, report = found(make_dataset(tmp_path / "made", rows=rows))
        assert kinds == {
            "empty-caption": ["i0#0"],
            "repeated-caption": ["i1#1"],
            "shared-caption": ["i2#0"],
            "long-caption": ["i2#1"],
        }
        assert list(report.quarantine.captions) == ["i0#0"]

    @pytest.mark.parametrize("text", ["…", "*** ()", "\u200b", "\ufeff .", "—", "\x00"])
    def test_captions_without_words(self, tmp_path, text):
        rows = caption_rows()
        rows[0]["text"] = text
        assert found(make_dataset(tmp_path / "made", rows=rows))[0] == {"empty-caption": ["i0#0"]}

    @pytest.mark.parametrize("text", ["\U0001f436", "犬", "42", "$"])
    def test_symbols_numbers_and_other_scripts_are_words(self, tmp_path, text):
        rows = caption_rows()
        rows[0]["text"] = text
        assert found(make_dataset(tmp_path / "made", rows=rows))[0] == {}

    def test_images_without_captions(self, folder):
        images = [
            {"image_id": f"i{n}", "split": split} for n, split in enumerate(["train", "train", "val", "test", "test"])
        ]
        write_lines(folder / "images.jsonl", images)
        (folder / "images" / "i4.png").write_bytes(image_bytes(9))
        kinds, report = found(folder)
        assert kinds == {"image-without-captions": ["i4"]}
        assert list(report.quarantine.images) == ["i4"]


class TestFeatures:
    def add(self, folder, values, **more):
        np.save(folder / "f.npy", values)
        write_manifest(
            folder,
            Manifest(
                "made",
                images=open_dataset(folder).manifest.images,
                features={"grid": {"train": FeatureFile("f.npy", **more)}},
            ),
        )

    def test_bad_rows(self, folder):
        values = np.ones((2, 3, 4), dtype=np.float32)
        values[0, 1, 2] = np.nan
        values[1] = 0
        self.add(folder, values)
        kinds, report = found(folder)
        assert kinds == {"bad-features": ["i0", "i1"], "not-checked": ["grid/val", "grid/test"]}
        assert report.quarantine.images == {
            "i0": "bad-features: grid are not finite",
            "i1": "bad-features: grid are all zero",
        }

    def test_bad_views(self, folder):
        values = np.ones((2, 4, 3, 4), dtype=np.float32)
        values[0, 0, 1] = 0
        values[0, 2, 1, 2] = np.nan
        values[0, 3] = np.nan  # behind the views
        values[1, :3] = 0
        self.add(folder, values.reshape(8, 3, 4), every=4, views=3)
        kinds, report = found(folder)
        assert kinds == {
            "empty-regions": ["i0"],
            "bad-features": ["i0", "i1"],
            "not-checked": ["grid/val", "grid/test"],
        }
        assert report.quarantine.images == {
            "i0": "bad-features: grid of view 2 are not finite",
            "i1": "bad-features: grid are all zero",
        }
        self.add(folder, np.ones((8, 3, 4)), every=4, views=4)
        assert found(folder)[0] == {"not-checked": ["grid/val", "grid/test"]}

    def test_padding_is_accepted_with_counts(self, folder):
        values = np.ones((2, 3, 4), dtype=np.float32)
        values[1, 2] = 0
        self.add(folder, values)
        assert found(folder)[0]["empty-regions"] == ["i1"]
        np.save(folder / "counts.npy", np.array([3, 2]))
        self.add(folder, values, counts="counts.npy")
        assert "empty-regions" not in found(folder)[0]

    def test_one_vector_an_image(self, folder):
        self.add(folder, np.array([[1.0, 0.0], [0.0, 0.0]]))
        assert found(folder)[0]["bad-features"] == ["i1"]

    def test_empty_vectors(self, folder):
        self.add(folder, np.ones((2, 0)))
        kinds, report = found(folder)
        assert kinds["bad-features"] == ["grid/train"]
        assert report.quarantine.images == {}

    def test_counts_that_disagree(self, folder):
        self.add(folder, np.ones((3, 4)))
        kinds, report = found(folder)
        assert kinds["bad-features"] == ["grid/train"]
        assert report.quarantine.images == {}


class TestFiles:
    def test_changed_files(self, tmp_path):
        source = tmp_path / "mine"
        archive = make_images(tmp_path / "photos", ["a.png"], "zip")
        source.mkdir()
        (source / "captions.csv").write_text("image,caption\na.png,one\n")
        run_import("folder", source, ImportSettings(str(tmp_path / "out"), images=str(archive)))
        assert found(tmp_path / "out")[0] == {}
        moved = shutil.copy(archive, tmp_path / "moved.zip")
        make_images(tmp_path / "photos", ["a.png", "b.png"], "zip")
        assert found(tmp_path / "out", images=str(moved))[0] == {}
        captions = tmp_path / "out" / "captions.jsonl"
        captions.write_text(captions.read_text().replace("one", "two"))
        assert found(tmp_path / "out")[0] == {"changed-file": ["captions.jsonl", str(archive)]}

    def test_a_folder_that_cannot_be_written(self, folder, monkeypatch):
        def refuse(*_):
            raise PermissionError(13, "Permission denied", "quarantine.json")

        monkeypatch.setattr("bcls.data.check.write_quarantine", refuse)
        kinds, report = found(folder)
        assert kinds == {"not-checked": ["quarantine.json"]}
        assert report.is_clean

    @pytest.mark.parametrize("settings", [{"workers": -1}, {"max_pixels": 0}, {"near": -2}, {"near": 9}])
    def test_settings(self, folder, settings):
        with pytest.raises(ValueError, match=next(iter(settings)).replace("_", "-")):
            check_dataset(folder, CheckSettings(**settings))


@pytest.mark.parametrize("_", [pytest.param("", marks=[pytest.mark.slow] * FULL)])
def test_flickr8k(tmp_path, _):
    source = DATA / "flickr8k"
    settings = ImportSettings(str(tmp_path / "out"), images=str(source / "images_224.zip"))
    run_import("karpathy", source / "dataset_flickr8k.json.gz", settings)
    report = check_dataset(tmp_path / "out")
    assert report.is_clean
    assert report.counts() == expect({"repeated-image": 1, "repeated-caption": 19, "shared-caption": 105}, {})
