import os

import numpy as np
import pytest

from bcls.data.dataset import open_dataset
from bcls.data.records import Caption, Content, FeatureFile, ImageRecord, write_dataset
from tests.data.factories import image_bytes, make_images

ODD = [
    "tab\there",
    'say "cheese"',
    "\U0001f436 dog",
    "x" * 10_000,
    "two\nlines",
    "a\u2028b\x0cc\x85d",
    "",
    "naïve café",
]


def content(texts=ODD, **more):
    images = (ImageRecord("i0", "train", "i0.png"), ImageRecord("i1", "test", "i1.png"))
    captions = tuple(Caption(f"c{n}", "i0", text, "train") for n, text in enumerate(texts))
    return Content("odd", images, captions, **more)


class TestWriting:
    def test_unusual_texts_survive_a_round_trip(self, tmp_path):
        write_dataset(tmp_path / "out", content())
        data = open_dataset(tmp_path / "out")
        assert data.texts == ODD
        assert data.images == content().images
        assert data.splits == {"train": (1, len(ODD)), "test": (1, 0)}
        assert "\U0001f436" in (tmp_path / "out" / "captions.jsonl").read_text(encoding="utf-8")

    @pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
    @pytest.mark.parametrize("copy", [False, True])
    def test_images_stay_in_place_or_are_copied(self, tmp_path, kind, copy):
        source = make_images(tmp_path / "source" / "photos", ["i0.png", "i1.png", "other.png"], kind)
        write_dataset(tmp_path / "out", content(sources=(source,)), copy=copy)
        data = open_dataset(tmp_path / "out")
        assert data.read_bytes("i1") == image_bytes(1)
        expected = str(source) if not copy else "images" if kind == "folder" else f"images.{kind}"
        assert data.manifest.images[0].path == expected
        assert not list((tmp_path / "out").rglob("other.png"))
        if copy:
            (tmp_path / "out").rename(tmp_path / "moved")
            assert open_dataset(tmp_path / "moved").read_bytes("i0") == image_bytes(0)
        else:
            (tmp_path / "source").rename(tmp_path / "moved")
            with pytest.raises(FileNotFoundError, match="the images are missing; if they have moved"):
                open_dataset(tmp_path / "out").read_bytes("i0")

    def test_unfinished_folder_is_not_a_dataset_and_can_be_overwritten(self, tmp_path, monkeypatch):
        with monkeypatch.context() as broken:
            broken.setattr("bcls.data.records.write_manifest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                write_dataset(tmp_path / "out", content())
        with pytest.raises(ValueError, match="again if an import was interrupted"):
            open_dataset(tmp_path / "out")
        write_dataset(tmp_path / "out", content())
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
            "captions.jsonl", "images.jsonl", "manifest.json"
        ]  # fmt: skip
        with pytest.raises(ValueError, match="`--out`: expected a new folder"):
            write_dataset(tmp_path / "out", content())

    def test_a_folder_with_other_files_is_left_alone(self, tmp_path):
        (tmp_path / "captions.jsonl").write_text("mine")
        with pytest.raises(ValueError, match="expected a new or empty folder"):
            write_dataset(tmp_path, content())
        assert (tmp_path / "captions.jsonl").read_text() == "mine"

    def test_names_outside_the_folder_are_not_copied(self, tmp_path):
        source = make_images(tmp_path / "a" / "source", ["i0.png", "../evil.png"])
        evil = Content("x", (ImageRecord("i", "train", "../evil.png"),), (Caption("c", "i", "x", "train"),), (source,))
        with pytest.raises(ValueError, match="names inside the archive"):
            write_dataset(tmp_path / "out", evil, copy=True)
        assert not list((tmp_path / "out").rglob("evil.png"))

    @pytest.mark.parametrize("copy", [False, True])
    def test_features_come_with_their_counts(self, tmp_path, copy):
        (tmp_path / "source").mkdir()
        np.save(tmp_path / "source" / "train.npy", np.ones((1, 3, 2)))
        np.save(tmp_path / "source" / "counts.npy", np.array([2]))
        file = FeatureFile(str(tmp_path / "source" / "train.npy"), counts=str(tmp_path / "source" / "counts.npy"))
        write_dataset(tmp_path / "out", content(features={"regions": {"train": file}}), copy=copy)
        if copy:
            (tmp_path / "source").rename(tmp_path / "gone")
        assert open_dataset(tmp_path / "out").split("train").features("regions").regions(0) == 2

    def test_all_files_are_flushed_before_the_manifest(self, tmp_path, monkeypatch):
        synced = set()
        plain = os.fsync

        def note(file):
            synced.add(os.path.realpath(f"/proc/self/fd/{file}"))
            plain(file)

        def stop(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", note)
        monkeypatch.setattr("bcls.data.records.write_manifest", stop)
        source = make_images(tmp_path / "source", ["i0.png", "i1.png"])
        with pytest.raises(KeyboardInterrupt):
            write_dataset(tmp_path / "copied", content(sources=(source,)), copy=True)
        with pytest.raises(KeyboardInterrupt):
            write_dataset(tmp_path / "packed", content(image_bytes=[("i0.png", b"x"), ("i1.png", b"y")]))
        for name in ("copied/images", "copied/images/i0.png", "copied/images/i1.png", "packed/images.zip", "packed"):
            assert str(tmp_path / name) in synced

    def test_content_without_captions_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="expected at least one caption, got none"):
            write_dataset(tmp_path / "out", content([]))
        assert not (tmp_path / "out").exists()

    def test_half_of_a_surrogate_pair(self, tmp_path):
        with pytest.raises(ValueError, match="`source, caption 1`: expected 'text' to be a Unicode string"):
            write_dataset(tmp_path / "out", content(["fine", "\ud83d"]))
        assert not (tmp_path / "out").exists()

    @pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="root may write anywhere")
    def test_a_read_only_folder(self, tmp_path):
        tmp_path.chmod(0o500)
        with pytest.raises(PermissionError):
            write_dataset(tmp_path / "out", content())

    def test_file_instead_of_a_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match="file"):
            write_dataset(tmp_path / "file" / "out", content())
