import zipfile

import pytest

from bcls.search.calibration import NEVER_SHOWN, SCENES
from bcls.search.source import MAX_BYTES, ExifInfo, open_source, read_exif, read_sidecar
from tests.search.factories import photo, photos


def test_a_folder(tmp_path):
    photos(tmp_path / "p", 3)
    source = open_source(tmp_path / "p")
    items = source.items()
    assert [item.name for item in items] == ["0/000-red-red.png", "1/001-green-red.png", "2/002-blue-red.png"]
    assert source.path_of("0/a.png") == str(tmp_path / "p/0/a.png")
    assert source.features(["0/000-red-red.png"]) is None
    (tmp_path / "p/0/000-red-red.txt").write_text("new")
    assert [a.stamp != b.stamp for a, b in zip(items, source.items(), strict=True)] == [True, False, False]
    for name in ("../secret.png", "/etc/passwd", "a/../../b.png"):
        with pytest.raises(ValueError, match="do not trust this source"):
            source.read(name)


def test_large_files_beside_photos_are_not_read(tmp_path):
    photo(tmp_path / "p/a.png", ["red"])
    (tmp_path / "p/a.txt").write_text("word " * 10_000)
    (tmp_path / "p/a.json").write_text('"short"')
    assert open_source(tmp_path / "p").captions("a.png") == ("short",)
    assert open_source(tmp_path / "p", captions=False).captions("a.png") == ()


def test_source_that_is_not_a_folder_or_archive(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="expected a folder, a zip or an uncompressed tar"):
        open_source(tmp_path / "a.txt")


def test_calibration_texts_are_distinct():
    assert len(set(SCENES)) == len(SCENES) >= 20
    assert len(set(NEVER_SHOWN)) == 64
    assert not set(SCENES) & set(NEVER_SHOWN)


def test_damaged_caption_in_an_archive_is_ignored(tmp_path):
    archive = tmp_path / "photos.zip"
    with zipfile.ZipFile(archive, "w") as pack:
        pack.write(photo(tmp_path / "a.png", ["red"]), "a.png")
        pack.writestr("a.txt", "a red wall")
        pack.writestr("a.json", '"all red"')
    whole = archive.read_bytes()
    archive.write_bytes(whole.replace(b"a red wall", b"a bad wall", 1))
    source = open_source(archive)
    with pytest.raises(ValueError, match="Bad CRC"):
        source.read("a.txt")
    assert source.captions("a.png") == ("all red",)


@pytest.mark.parametrize(
    ("ending", "content", "expected"),
    [
        (".txt", b"", ()),
        (".txt", b"\xef\xbb\xbfone\r\none\r\n", ("one",)),
        (".txt", b"caf\xe9", ("caf\ufffd",)),
        (".txt", b"x" * (MAX_BYTES + 1), ()),
        (".json", b'"one"', ("one",)),
        (".json", b'["one", 2, "two"]', ("one", "two")),
        (".json", b'{"text": "one", "exif": {"a": 1}}', ("one",)),
        (".json", b'{"caption": null}', ()),
        (".json", b"{broken", ()),
        (".json", b"[" * 9000, ()),
        (".json", b'"\\ud800"', ("?",)),
        (".json", b"3", ()),
    ],
)
def test_sidecar_captions(ending, content, expected):
    assert read_sidecar(ending, content) == expected


@pytest.mark.parametrize("date", ["0000:00:00 00:00:00", "", "\0\0", "2021-07-09", "2021:07:09 25:00:00"])
def test_invalid_exif_dates(date, tmp_path):
    from PIL import Image

    exif = Image.Exif()
    exif[306] = date
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", exif=exif)
    assert read_exif((tmp_path / "a.jpg").read_bytes()) == ExifInfo()


def test_invalid_exif_locations(tmp_path):
    from PIL import ExifTags, Image

    for latitude in ((400.0, 0.0, 0.0), (1.0,)):
        exif = Image.Exif()
        exif[306] = "2020:01:02 03:04:05"
        exif.get_ifd(ExifTags.IFD.GPSInfo).update({1: "N", 2: latitude, 3: "E", 4: (1.0, 0.0, 0.0)})
        Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", exif=exif)
        notes = read_exif((tmp_path / "a.jpg").read_bytes())
        assert notes.latitude is notes.longitude is None
        assert notes.date == 1577934245.0
