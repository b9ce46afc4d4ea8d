"""Building and updating an index."""

import json
import os
import sys
import tarfile
import threading
import warnings
import zipfile
from datetime import UTC, datetime

import numpy as np
import pytest
from PIL import Image

from bcls.data.records import Caption, Content, ImageRecord, write_dataset
from bcls.models import build
from bcls.search.engine import SearchFilter
from bcls.search.index import open_index, read_index_manifest
from bcls.search.service import Service
from bcls.search.source import FileSource
from tests.models import factories as made
from tests.search.factories import counts, index, photo

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')


def names(out):
    index = open_index(out)
    try:
        numbers = index.photos.numbers().tolist()
        assert numbers == index.catalog.numbers().tolist()
        assert index.captions.numbers().tolist() == index.catalog.numbers("captions").tolist()
        return {one.name: number for number, one in index.catalog.photos(numbers).items()}
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


def test_bfloat16_vectors_are_close_to_float32(source, out, tmp_path):
    pytest.importorskip("transformers")
    sides = {"image": str(made.vit(tmp_path / "vit")), "text": str(made.bert(tmp_path / "bert"))}
    build({"name": "dual", **sides, "width": 8}).save_pretrained(tmp_path / "model")
    vectors = []
    for place, precision in ((out, "float32"), (tmp_path / "short", "bfloat16")):
        index(source, place, tmp_path / "model", precision=precision)
        opened = open_index(place)
        vectors.append(opened.photos.vectors(opened.photos.numbers()))
        opened.close()
    exact, short = vectors
    assert short.dtype == np.float32
    assert not np.array_equal(exact, short)
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-5)
    assert (exact * short).sum(1).min() > 0.99
    with pytest.raises(ValueError, match="`precision`: expected one of 'float32', 'bfloat16'"):
        index(source, tmp_path / "other", tmp_path / "model", precision="float8")


def test_second_run_processes_only_changed_photos(source, out, tiny):
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
    monkeypatch.setattr("bcls.search.build.image_vectors", None)  # calling it fails
    report = index(source, out, tiny)
    assert counts(report) == (4, 0, 4, 8)
    assert sum(name.startswith("elsewhere/") for name in names(out)) == 4


def test_photos_that_swap_contents_keep_the_right_vectors(source, out, tiny):
    """Each photo has the contents that the other had before."""
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
    assert index(source, out, tiny).captions == 0
    assert index(source, out, tiny, captions=True).captions == 1


def test_unreadable_files_are_reported_and_retried(source, out, tiny):
    (source / "0/bad.jpg").write_bytes(b"not an image")
    (source / "0/empty.png").write_bytes(b"")
    photo(source / "0/large.png", ["red"], side=64)
    report = index(source, out, tiny, max_pixels=2000)
    assert report.photos == 12
    assert sorted(report.skipped) == ["0/bad.jpg", "0/empty.png", "0/large.png"]
    assert "got 64 x 64" in report.skipped["0/large.png"]
    assert all(name in reason for name, reason in report.skipped.items())
    photo(source / "0/bad.jpg", ["red"])
    report = index(source, out, tiny, max_pixels=5000)
    assert report.photos == 14
    assert list(report.skipped) == ["0/empty.png"]


def test_the_limit_of_pixels_is_remembered(source, out, tiny):
    def limits():
        manifest = read_index_manifest(out)
        return manifest.index_pixels, manifest.max_pixels

    photo(source / "a.png", ["red"], side=64)
    for given, photos, stored in ((2000, 12, 2000), (None, 12, 2000), (5000, 13, 5000)):
        assert index(source, out, tiny, max_pixels=given).photos == photos
        assert limits() == (stored, stored)
    photo(source / "b.png", ["red"], side=64, seed=1)
    for given in (2000, None):
        assert index(source, out, tiny, max_pixels=given).photos == 13
        assert limits() == (2000, 5000), "photos that are already in the index can still be displayed"
    content = json.loads((out / "index.json").read_text())
    del content["index_pixels"], content["captions"]  # an index of an earlier version
    (out / "index.json").write_text(json.dumps(content))
    assert limits() == (5000, 5000)
    assert index(source, out, tiny).photos == 14


def test_folder_that_cannot_be_listed_keeps_its_entries(source, out, tiny, monkeypatch):
    index(source, out, tiny)
    photo(source / "1/new.png", ["white"])
    (source / "2/002-blue-red.png").unlink()
    real = os.scandir

    def denied(path):
        if os.path.basename(os.path.normpath(path)) == "0":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", denied)
    report = index(source, out, tiny)
    assert (report.photos, *counts(report)) == (12, 1, 0, 1, 7)
    assert report.skipped == {"0/": "`0/`: Permission denied; its photos in the index are kept"}
    assert report.reasons == {"unreadable folder": 1}
    monkeypatch.undo()
    assert sum(name.startswith("0/") for name in names(out)) == 4


def test_skipped_files_are_counted_by_reason(source, out, tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (source / "a.heic").write_bytes(b"\0\0\0\x18ftypheic")
    (source / "b.jpg").write_bytes((source / "0/000-red-red.png").read_bytes()[:300])
    (source / "c.nef").write_bytes(b"IIU\0")
    (source / "d.jpg").touch()
    (source / "e.mov").touch()
    photo(source / "f.png", ["red"], side=64)
    (source / "g.png").symlink_to("/etc/hostname")
    (source / "h.ppm").write_bytes(b"P6 1 1 255\n123")
    report = index(source, out, tiny, max_pixels=2000)
    assert report.photos == 13
    assert report.reasons == dict.fromkeys(
        [
            "video",
            "link that leaves the folder",
            'HEIC (pip install "bcls[heif]")',
            "damaged",
            "RAW without preview",
            "empty",
            "too large",
        ],
        1,
    )
    assert len(report.skipped) == 6


def test_a_run_that_is_killed_early_keeps_the_first_photos(source, out, tiny, monkeypatch):
    from bcls.search import build as run

    real, calls = run.image_vectors, []

    def killed(*given):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("killed")
        return real(*given)

    monkeypatch.setattr(run, "image_vectors", killed)
    with pytest.raises(RuntimeError, match="killed"):
        index(source, out, tiny)
    monkeypatch.setattr(run, "image_vectors", real)
    assert counts(index(source, out, tiny)) == (4, 0, 0, 8)


def test_file_names_beside_photos_are_not_captions(source, out, tiny):
    """As Google Takeout writes them; with 20 and more captions, these are what scores are calibrated with."""
    for number in range(12, 24):
        photo(source / f"{number}.png", ["red"], seed=number)
    for number, path in enumerate(sorted(source.rglob("*.png"))):
        path.with_suffix(".json").write_text(json.dumps({"title": f"IMG_{number:04}.jpg", "description": ""}))
    assert index(source, out, tiny).captions == 0
    assert read_index_manifest(out).calibration["text"].origin != "captions"


def test_several_folders(source, out, tiny, tmp_path):
    index(source, out, tiny)
    other = photo(tmp_path / "other/a.png", ["white"]).parent
    report = index([source, other], out, tiny)
    assert (report.photos, report.added, report.removed) == (13, 13, 12)  # the names now begin with the folder's
    assert {name.partition("/")[0] for name in names(out)} == {"photos", "other"}
    assert counts(index([source, other], out, tiny)) == (0, 0, 0, 13)
    with pytest.raises(ValueError, match=r"`photos`: expected .*photos .*other, which .* is an index of, got .*other"):
        index(other, out, tiny)
    opened = open_index(out)
    number = opened.catalog.number_of("other/a.png")
    np.testing.assert_allclose(
        opened.photos.vectors([number])[0], opened.load_model().encode_images([other / "a.png"])[0], atol=1e-6
    )
    found, name = opened.source.locate("other/a.png")
    assert found.path_of(name) == str(other / "a.png")
    opened.close()


def test_patterns_and_links_are_remembered(source, out, tiny, tmp_path):
    linked = photo(tmp_path / "elsewhere/a.png", ["white"])
    (source / "link.png").symlink_to(linked)
    assert index(source, out, tiny, exclude=["0", "*-green-*"], follow_links=True).photos == 7
    assert counts(index(source, out, tiny)) == (0, 0, 0, 7)
    opened = open_index(out)
    assert opened.source.read("link.png") == linked.read_bytes()
    opened.close()
    assert index(source, out, tiny, exclude=["link*"]).photos == 12
    assert index(source, out, tiny, exclude=[""]).photos == 13


def test_links_are_followed_only_as_long_as_they_should_be(source, out, tiny, tmp_path):
    linked = photo(tmp_path / "elsewhere/a.png", ["white"])
    (tmp_path / "elsewhere/a.txt").write_text("a white wall")
    (source / "link.png").symlink_to(linked)
    (source / "0/000-red-red.txt").symlink_to(tmp_path / "elsewhere/a.txt")
    for follow, expected in ((None, (12, 0)), (True, (13, 1)), (None, (13, 1)), (False, (12, 0)), (None, (12, 0))):
        report = index(source, out, tiny, follow_links=follow)
        assert (report.photos, report.captions) == expected


def test_names_that_are_not_unicode_are_reported(source, out, tiny):
    os.rename(source / "0/000-red-red.png", bytes(source) + b"/\xff.png")
    report = index(source, out, tiny)
    assert report.photos == 11
    assert list(report.skipped) == ["'\\udcff.png'"]
    assert "rename the file" in report.skipped["'\\udcff.png'"]


def test_a_photo_that_becomes_unreadable_is_removed(source, out, tiny):
    index(source, out, tiny)
    (source / "0/000-red-red.png").write_bytes(b"broken now")
    before = read_index_manifest(out).calibration
    report = index(source, out, tiny)
    assert (report.photos, *counts(report)) == (11, 0, 0, 1, 11)
    assert "0/000-red-red.png" not in names(out)
    assert read_index_manifest(out).calibration != before


def test_photos_that_may_not_be_read_keep_their_entries(source, out, tiny, monkeypatch):
    """As in a folder that may be listed but not entered, where neither size nor contents of a photo are known."""
    index(source, out, tiny)
    photo(source / "0/new.png", ["white"])
    real = os.stat, FileSource.read

    def stat(path, *arguments, **options):
        if "photos/0/" in os.fspath(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real[0](path, *arguments, **options)

    def read(self, name):
        if name.startswith("0/"):
            raise PermissionError(13, "Permission denied", name)
        return real[1](self, name)

    before = names(out)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        patch.setattr(FileSource, "read", read)
        report = index(source, out, tiny)
    assert (report.photos, *counts(report)) == (12, 0, 0, 0, 8)
    assert report.reasons == {"unreadable": 5}
    assert report.skipped["0/new.png"] == "`0/new.png`: Permission denied"
    assert names(out) == before
    assert counts(index(source, out, tiny)) == (1, 0, 0, 12)


@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="root may read anything")
@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_folders_that_may_not_be_entered_keep_their_entries(source, out, tiny, mode):
    (source / "0/link.png").symlink_to("000-red-red.png")
    index(source, out, tiny)
    (source / "0").chmod(mode)
    try:
        report = index(source, out, tiny)
    finally:
        (source / "0").chmod(0o755)
    assert (report.photos, *counts(report)) == (13, 0, 0, 0, 8)


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


def dataset(tmp_path, source, text="a {} thing"):
    files = sorted(path.relative_to(source).as_posix() for path in source.rglob("*.png"))
    images = tuple(ImageRecord(f"i{n}", "train" if n % 2 else "test", file) for n, file in enumerate(files))
    captions = tuple(
        Caption(f"c{n}", image.image_id, text.format(file.split("-")[1]), image.split)
        for n, (image, file) in enumerate(zip(images, files, strict=True))
    )
    write_dataset(tmp_path / "data", Content("tiny", images, captions, sources=(source,)))
    return tmp_path / "data"


def test_dataset_captions_are_indexed(source, out, tiny, tmp_path):
    report = index(dataset(tmp_path, source), out, tiny)
    assert (report.photos, report.captions) == (12, 12)
    assert read_index_manifest(out).calibration["text"].origin == "texts"  # 12 are few
    assert counts(index(tmp_path / "data", out, tiny)) == (0, 0, 0, 12)


def test_dataset_captions_that_describe_nothing_are_left_out(source, out, tiny, tmp_path):
    report = index(dataset(tmp_path, source, text=" IMG_{}.jpg "), out, tiny)
    assert (report.photos, report.captions) == (12, 0)


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


def test_an_interrupted_first_run_is_continued(source, out, tiny, monkeypatch):
    monkeypatch.setattr("bcls.search.build._TOGETHER", 4)
    monkeypatch.setattr("bcls.search.embedding.BATCH", 4)
    from bcls.search import build as run

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
        ValueError, match="expected a complete index, got one whose first run was interrupted; run `bcls"
    ):
        open_index(out)
    monkeypatch.setattr(run, "image_vectors", real)
    assert counts(index(source, out, tiny)) == (4, 0, 0, 8)


def test_photos_with_non_finite_vectors_are_skipped(source, out, tiny, monkeypatch):
    from tests.search.factories import ColorModel

    real = ColorModel.image_vectors

    def broken(self, codes):
        vectors = real(self, codes).clone()
        vectors[:1] = float("nan")
        return vectors

    monkeypatch.setattr(ColorModel, "image_vectors", broken)
    monkeypatch.setattr("bcls.search.build._FIRST", 64)
    report = index(source, out, tiny)
    assert (report.photos, len(report.skipped)) == (11, 1)
    assert "no finite vector" in next(iter(report.skipped.values()))


def test_milvus_and_faiss_return_the_same_results(source, tmp_path, tiny):
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


def test_date_and_location_from_exif(source, out, tiny):
    from PIL import ExifTags

    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2021:07:09 12:30:00"
    exif.get_ifd(ExifTags.IFD.GPSInfo).update({1: "S", 2: (33.0, 51.0, 36.0), 3: "E", 4: (151.0, 12.0, 0.0)})
    photo(source / "camera.jpg", ["red"], exif=exif)
    index(source, out, tiny)
    opened = open_index(out)
    number = opened.catalog.number_of("camera.jpg")
    facts = opened.catalog.photos([number])[number]
    assert facts.from_camera
    assert facts.date == 1625833800.0
    assert (round(facts.latitude, 2), round(facts.longitude, 2)) == (-33.86, 151.2)
    opened.close()


def test_a_photo_takes_the_contents_of_one_that_changed(source, out, tiny, monkeypatch):
    """The second photo gets the contents of the first, which changes in the same run."""
    monkeypatch.setattr("bcls.search.build._TOGETHER", 1)
    monkeypatch.setattr("bcls.search.embedding.BATCH", 1)
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


def test_touched_files_keep_their_number_and_get_the_new_date(source, out, tiny):
    name = "0/000-red-red.png"
    (source / "0/000-red-red.txt").write_text("a red wall\nall red\n")
    index(source, out, tiny)
    before = names(out)
    os.utime(source / name, (1000, 1000))
    assert counts(index(source, out, tiny)) == (0, 0, 0, 12)
    assert names(out) == before
    opened = open_index(out)
    assert opened.catalog.photos([before[name]])[before[name]].date == 1000
    query = np.eye(12, dtype=np.float32)[:1]
    assert opened.photos.search(query, 5, SearchFilter(before=2000.0)).numbers[0].tolist()[:2] == [before[name], -1]
    assert (opened.captions.search(query, 5, SearchFilter(before=2000.0)).numbers[0] >= 0).sum() == 2
    assert (opened.photos.search(query, 5, SearchFilter(before=2000.0, words=("wall",))).numbers[0] >= 0).sum() == 1
    opened.close()


@pytest.mark.parametrize(("seconds", "year"), [(2**40, 9999), (-(2**40), 1)])
def test_dates_that_no_calendar_has(source, out, tiny, monkeypatch, seconds, year):
    real = os.stat

    def stat(path, **options):  # not every file system stores such a time
        found = real(path, **options)
        if not str(path).endswith("000-red-red.png"):
            return found
        return os.stat_result((*found[:8], seconds, found[9]), {"st_mtime": float(seconds), "st_mtime_ns": seconds})

    monkeypatch.setattr(os, "stat", stat)
    index(source, out, tiny)
    with Service(out) as service:
        photo = service.describe(service.number_of("0/000-red-red.png"))
        assert datetime.fromtimestamp(photo.date, UTC).year == year
        assert photo.as_json()["date"].startswith(f"{year}-01-01")


def test_touching_one_of_two_identical_photos(source, out, tiny):
    for name in ("a.png", "b.png"):
        photo(source / name, ["red"], seed=77)
    index(source, out, tiny)
    before = names(out)
    for name in ("b.png", "a.png"):
        os.utime(source / name, (1000, 1000))
        assert counts(index(source, out, tiny)) == (0, 0, 0, 14)
        assert names(out) == before


def test_captions_of_an_archive_can_be_added_later(source, out, tiny, tmp_path):
    (source / "0/000-red-red.txt").write_text("a red wall")
    archive = tmp_path / "photos.zip"
    with zipfile.ZipFile(archive, "w") as pack:
        for path in sorted(source.rglob("*.*")):
            pack.write(path, path.relative_to(source).as_posix())
    assert index(archive, out, tiny, captions=False).captions == 0
    assert index(archive, out, tiny, captions=True).captions == 1
    assert index(archive, out, tiny, captions=False).captions == 0


def test_reading_threads_do_not_change_warning_filters(source, out, tiny, monkeypatch):
    exif = Image.Exif()
    exif[306] = "2020:01:02 03:04:05"
    Image.new("RGB", (8, 8)).save(source / "a.jpg", exif=exif)
    entered = []
    real = warnings.catch_warnings.__enter__

    def enter(self):
        entered.append(threading.current_thread().name)
        return real(self)

    monkeypatch.setattr(warnings.catch_warnings, "__enter__", enter)
    before = list(warnings.filters)
    index(source, out, tiny)
    assert warnings.filters == before
    assert not [name for name in entered if name.startswith("bcls-read")]


def test_pillow_warnings_are_suppressed(source, out, tiny, monkeypatch, recwarn):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # the photos have a few more
    assert index(source, out, tiny).photos == 12
    assert not [one for one in recwarn if "DecompressionBomb" in str(one.category)]


def test_reason_for_skipping_is_one_line(source, out, tiny, monkeypatch):
    name = "0/x\x1b[2Jy.png"
    photo(source / name, ["red"])
    real = FileSource.read

    def denied(self, wanted):
        if wanted == name:
            raise PermissionError(13, "Permission denied", name)
        return real(self, wanted)

    monkeypatch.setattr(FileSource, "read", denied)
    assert index(source, out, tiny).skipped == {name: r"`0/x\x1b[2Jy.png`: Permission denied"}
