"""Making an index and bringing it up to date."""

import json
import os
import shutil
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from bcls.data import Caption, Content, ImageRecord, write_dataset
from bcls.index import IndexSettings, build_index, open_index, read_index_manifest
from bcls.index._lock import sole_writer
from tests.index.made import index, photo, photos, tiny_model

pytest.importorskip("faiss", reason='needs pip install "bcls[index]"')


@pytest.fixture
def source(tmp_path):
    return photos(tmp_path / "photos")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "index"


def counts(report):
    return report.added, report.updated, report.removed, report.unchanged


def names(out):
    index = open_index(out)
    try:
        numbers = index.photos.numbers().tolist()
        assert numbers == index.catalog.numbers().tolist()
        assert index.captions.numbers().tolist() == index.catalog.numbers("captions").tolist()
        return {one.facts.name: number for number, one in index.catalog.photos(numbers).items()}
    finally:
        index.close()


def test_every_photo_has_the_vector_of_the_model(source, out, tiny):
    assert counts(index(source, out, tiny)) == (12, 0, 0, 0)
    opened = open_index(out)
    model = opened.load_model()
    for name, number in names(out).items():
        np.testing.assert_allclose(
            opened.photos.vectors([number])[0], model.encode_images([source / name])[0], atol=1e-6
        )
    opened.close()


def test_a_second_run_does_only_what_changed(source, out, tiny):
    index(source, out, tiny)
    before = names(out)
    assert counts(index(source, out, tiny)) == (0, 0, 0, 12)
    photo(source / "new.jpg", ["white"])
    photo(source / "0/000-red-red.png", ["yellow"], seed=99)
    (source / "1/001-green-red.png").unlink()
    os.utime(source / "2/002-blue-red.png", (1, 1))
    assert counts(index(source, out, tiny)) == (1, 1, 1, 10)
    after = names(out)
    assert after.keys() == before.keys() - {"1/001-green-red.png"} | {"new.jpg"}
    same = before.keys() & after.keys() - {"0/000-red-red.png"}
    assert {name: before[name] for name in same} == {name: after[name] for name in same}
    assert after["0/000-red-red.png"] > max(before.values()), "numbers are never used again"
    assert counts(index(source, out, tiny)) == (0, 0, 0, 12)


def test_moved_photos_are_not_embedded_again(source, out, tiny, monkeypatch):
    index(source, out, tiny)
    (source / "0").rename(source / "elsewhere")
    monkeypatch.setattr("bcls.index.run.image_vectors", None)  # whoever calls it fails
    report = index(source, out, tiny)
    assert counts(report) == (4, 0, 4, 8)
    assert sum(name.startswith("elsewhere/") for name in names(out)) == 4


def test_swapped_photos(source, out, tiny):
    """Each has the contents that the other had: vectors must not be mixed up."""
    index(source, out, tiny)
    a, b = source / "0/000-red-red.png", source / "1/001-green-red.png"
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    for path in (a, b):
        os.utime(path, (2, 2))
    assert counts(index(source, out, tiny)) == (0, 2, 0, 10)
    opened = open_index(out)
    expected = opened.load_model().encode_images([a])[0]
    number = opened.catalog.number_of("0/000-red-red.png")
    np.testing.assert_allclose(opened.photos.vectors([number])[0], expected, atol=1e-6)
    opened.close()


def test_captions_beside_photos(source, out, tiny):
    beside = source / "0/000-red-red.txt"
    beside.write_text("a red wall\nall red\n")
    (source / "1/001-green-red.json").write_text('{"caption": "green above red"}')
    assert index(source, out, tiny).captions == 3
    number = names(out)["0/000-red-red.png"]
    beside.write_text("a red wall\n")
    report = index(source, out, tiny)
    assert counts(report) == (0, 1, 0, 11)
    assert report.captions == 2
    assert names(out)["0/000-red-red.png"] != number
    beside.unlink()
    assert index(source, out, tiny).captions == 1
    assert index(source, out, tiny, captions=False).captions == 0


def test_unreadable_files_are_listed_and_tried_again(source, out, tiny):
    (source / "0/bad.jpg").write_bytes(b"no picture")
    (source / "0/empty.png").write_bytes(b"")
    photo(source / "0/large.png", ["red"], side=64)
    report = index(source, out, tiny, max_pixels=2000)
    assert report.photos == 12
    assert sorted(report.skipped) == ["0/bad.jpg", "0/empty.png", "0/large.png"]
    assert "got 64 x 64" in report.skipped["0/large.png"]
    assert all(name in reason for name, reason in report.skipped.items())
    photo(source / "0/bad.jpg", ["red"])
    report = index(source, out, tiny)
    assert report.photos == 14
    assert list(report.skipped) == ["0/empty.png"]


def test_names_that_are_no_text_are_listed(source, out, tiny):
    os.rename(source / "0/000-red-red.png", bytes(source) + b"/\xff.png")
    report = index(source, out, tiny)
    assert report.photos == 11
    assert list(report.skipped) == ["'\\udcff.png'"]
    assert "rename the file" in report.skipped["'\\udcff.png'"]


def test_a_photo_that_breaks_leaves_the_index(source, out, tiny):
    index(source, out, tiny)
    (source / "0/000-red-red.png").write_bytes(b"broken now")
    report = index(source, out, tiny)
    assert report.photos == 11
    assert "0/000-red-red.png" not in names(out)


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_archives(source, out, tiny, tmp_path, kind):
    (source / "0/000-red-red.txt").write_text("a red wall")
    archive = tmp_path / f"photos.{kind}"
    files = sorted(path for path in source.rglob("*") if path.is_file())
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as pack:
            for path in files:
                pack.write(path, path.relative_to(source).as_posix())
    else:
        with tarfile.open(archive, "w") as pack:
            for path in files:
                pack.add(path, path.relative_to(source).as_posix())
    report = index(archive, out, tiny)
    assert (report.photos, report.captions) == (12, 1)
    os.utime(archive, (5, 5))
    assert counts(index(archive, out, tiny)) == (0, 0, 0, 12)


def dataset(tmp_path, source):
    files = sorted(path.relative_to(source).as_posix() for path in source.rglob("*.png"))
    images = tuple(ImageRecord(f"i{n}", "train" if n % 2 else "test", file) for n, file in enumerate(files))
    captions = tuple(
        Caption(f"c{n}", image.image_id, f"a {file.split('-')[1]} thing", image.split)
        for n, (image, file) in enumerate(zip(images, files, strict=True))
    )
    write_dataset(tmp_path / "data", Content("tiny", images, captions, sources=(source,)))
    return tmp_path / "data"


def test_datasets_bring_their_captions(source, out, tiny, tmp_path):
    report = index(dataset(tmp_path, source), out, tiny)
    assert (report.photos, report.captions) == (12, 12)
    assert read_index_manifest(out).calibration["text"].origin == "texts"  # 12 are few
    assert counts(index(tmp_path / "data", out, tiny)) == (0, 0, 0, 12)


def test_features_of_a_dataset(source, out, tiny, tmp_path):
    data = dataset(tmp_path, source)
    manifest = json.loads((data / "manifest.json").read_text())
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        np.save(data / f"{split}.npy", rng.standard_normal((6, 4, 3), dtype=np.float32))
    manifest["features"] = {"patches": {split: {"path": f"{split}.npy"} for split in ("train", "test")}}
    (data / "manifest.json").write_text(json.dumps(manifest))
    report = index(data, out, tiny, features="patches")
    assert (report.photos, report.captions) == (12, 12)
    assert "i3" in names(out)
    with pytest.raises(ValueError, match="`features`: expected 'patches', which"):
        index(data, out, tiny)


def test_another_model_version_engine_or_folder_is_refused(source, out, tiny, tmp_path, monkeypatch):
    index(source, out, tiny)
    other = tiny_model(monkeypatch, tmp_path / "other", seed=7)
    with pytest.raises(ValueError, match=r"expected the model '.*tiny' with weights .*, got '.*other' with weights"):
        index(source, out, other)
    with pytest.raises(ValueError, match="`engine`: expected 'faiss', which"):
        index(source, out, tiny, engine="milvus", uri="x.db")
    photos(tmp_path / "others", 2)
    with pytest.raises(ValueError, match=r"`PHOTOS`: expected .*photos, which .*index is an index of, got .*others"):
        index(tmp_path / "others", out, tiny)
    opened = open_index(out)
    with pytest.raises(ValueError, match="expected the model"):
        opened.load_model(str(other))
    opened.close()
    content = json.loads((out / "index.json").read_text())
    (out / "index.json").write_text(json.dumps({**content, "version": 99}))
    with pytest.raises(ValueError, match="expected an index of version 1, got version 99"):
        index(source, out, tiny)
    with pytest.raises(ValueError, match="expected an index of version 1, got version 99"):
        open_index(out)
    (out / "index.json").write_text(json.dumps({**content, "calibration": {"text": 3}}))
    with pytest.raises(ValueError, match="expected fields as bcls writes them"):
        open_index(out)


def test_photos_that_moved_as_a_whole_keep_their_entries(source, out, tiny, tmp_path):
    index(source, out, tiny)
    shutil.move(source, tmp_path / "moved")
    assert counts(index(tmp_path / "moved", out, tiny)) == (0, 0, 0, 12)


def test_missing_and_empty_photos(out, tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder, zip, tar or dataset of photos"):
        index(tmp_path / "none", out, tiny)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="expected at least one picture, got none"):
        index(tmp_path / "empty", out, tiny)
    assert not out.exists()


def test_nothing_else_is_overwritten(source, out, tiny):
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="`out`: expected a new or empty folder, or an index"):
        index(source, out, tiny)
    with pytest.raises(ValueError, match="`out`: expected a folder, got the file"):
        index(source, out / "letter.txt", tiny)


def test_one_writer_at_a_time(source, out, tiny):
    out.mkdir()
    with sole_writer(out), pytest.raises(ValueError, match=f"one that process {os.getpid()} is writing; wait for it"):
        index(source, out, tiny)
    assert index(source, out, tiny).photos == 12


def test_an_index_whose_first_run_was_stopped(source, out, tiny, monkeypatch):
    monkeypatch.setattr("bcls.index.run._TOGETHER", 4)
    monkeypatch.setattr("bcls.index.run.BATCH", 4)
    from bcls.index import run

    real, calls = run.image_vectors, []

    def interrupted(*given):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(run, "image_vectors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index(source, out, tiny)
    with pytest.raises(
        ValueError, match="expected a finished index, got one whose first run was broken off; run `bcls"
    ):
        open_index(out)
    monkeypatch.setattr(run, "image_vectors", real)
    assert counts(index(source, out, tiny)) == (4, 0, 0, 8)


def test_models_that_cannot_be_used(source, out, monkeypatch, tmp_path):
    from bcls.models import build
    from bcls.models.folder import save_folder

    save_folder(build({"name": "vsepp", "words": 20, "features": 8, "width": 16}), tmp_path / "words")
    with pytest.raises(ValueError, match=r"`model`: expected one that reads pictures, got an error .*; choose another"):
        index(source, out, tmp_path / "words")


def test_a_model_without_a_finite_vector(source, out, tiny, monkeypatch):
    from tests.index.tiny import TinyModel

    real = TinyModel.image_vectors

    def broken(self, codes):
        vectors = real(self, codes).clone()
        vectors[:1] = float("nan")
        return vectors

    monkeypatch.setattr(TinyModel, "image_vectors", broken)
    report = index(source, out, tiny)
    assert (report.photos, len(report.skipped)) == (11, 1)
    assert "no finite vector" in next(iter(report.skipped.values()))


def test_bad_flags(source, out, tiny):
    for settings, match in (
        ({"engine": "milvus"}, "`uri`: expected a file or address with --engine milvus"),
        ({"uri": "x.db"}, "`uri`: expected a file or address with --engine milvus"),
        ({"engine": "fais"}, "did you mean 'faiss'"),
        ({"workers": -1}, "`workers`: expected a whole number not below 0"),
        ({"features": "patches"}, "`features`: expected a dataset that has features"),
    ):
        with pytest.raises(ValueError, match=match):
            index(source, out, tiny, **settings)


def test_a_read_only_folder(source, tmp_path, tiny):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        index(source, tmp_path / "locked" / "index", tiny)


def test_milvus_gives_what_faiss_gives(source, tmp_path, tiny):
    pytest.importorskip("milvus_lite", reason='needs pip install "bcls[milvus]"')
    (source / "0/000-red-red.txt").write_text("a red wall\nall red")
    index(source, tmp_path / "a", tiny)
    index(source, tmp_path / "b", tiny, engine="milvus", uri=str(tmp_path / "m.db"))
    photo(source / "new.jpg", ["white"])
    (source / "1/001-green-red.png").unlink()
    assert counts(index(source, tmp_path / "a", tiny)) == counts(index(source, tmp_path / "b", tiny)) == (1, 0, 1, 11)
    assert names(tmp_path / "a").keys() == names(tmp_path / "b").keys()
    one, two = open_index(tmp_path / "a"), open_index(tmp_path / "b")
    queries = one.load_model().encode_texts(["red", "white and black", "green"]).numpy()
    first, second = one.photos.search(queries, 5), two.photos.search(queries, 5)
    assert first.numbers.tolist() == second.numbers.tolist()
    np.testing.assert_allclose(first.scores, second.scores, atol=1e-5)
    one.close()
    two.close()


def test_facts_of_the_camera(source, out, tiny):
    from PIL import ExifTags

    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2021:07:09 12:30:00"
    exif.get_ifd(ExifTags.IFD.GPSInfo).update({1: "S", 2: (33.0, 51.0, 36.0), 3: "E", 4: (151.0, 12.0, 0.0)})
    photo(source / "camera.jpg", ["red"], exif=exif)
    index(source, out, tiny)
    opened = open_index(out)
    number = opened.catalog.number_of("camera.jpg")
    facts = opened.catalog.photos([number])[number].facts
    assert facts.taken
    assert facts.date == 1625833800.0
    assert (round(facts.latitude, 2), round(facts.longitude, 2)) == (-33.86, 151.2)
    opened.close()


def test_settings_are_those_of_the_first_run(source, out, tiny):
    index(source, out, tiny)
    report = build_index(source, IndexSettings(out=str(out)))  # neither model nor engine is named again
    assert counts(report) == (0, 0, 0, 12)


def test_a_vector_whose_photo_changed_meanwhile_is_made_anew(source, out, tiny, monkeypatch):
    """The second photo takes the contents of the first, which is replaced before."""
    monkeypatch.setattr("bcls.index.run._TOGETHER", 1)
    monkeypatch.setattr("bcls.index.run.BATCH", 1)
    index(source, out, tiny)
    a, b = source / "0/000-red-red.png", source / "1/001-green-red.png"
    b.write_bytes(a.read_bytes())
    photo(a, ["white"], seed=5)
    assert counts(index(source, out, tiny)) == (0, 2, 0, 10)
    opened = open_index(out)
    for path in (a, b):
        number = opened.catalog.number_of(path.relative_to(source).as_posix())
        expected = opened.load_model().encode_images([path])[0]
        np.testing.assert_allclose(opened.photos.vectors([number])[0], expected, atol=1e-6)
    opened.close()
