import pytest

from bcls.search.source import MAX_BYTES, ExifInfo, read_exif, read_sidecar


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
def test_captions(ending, content, expected):
    assert read_sidecar(ending, content) == expected


@pytest.mark.parametrize("date", ["0000:00:00 00:00:00", "", "\0\0", "2021-07-09", "2021:07:09 25:00:00"])
def test_dates_that_are_none(date, tmp_path):
    from PIL import Image

    exif = Image.Exif()
    exif[306] = date
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", exif=exif)
    assert read_exif((tmp_path / "a.jpg").read_bytes()) == ExifInfo()


def test_places_that_are_none(tmp_path):
    from PIL import ExifTags, Image

    for latitude in ((400.0, 0.0, 0.0), (1.0,)):
        exif = Image.Exif()
        exif[306] = "2020:01:02 03:04:05"
        exif.get_ifd(ExifTags.IFD.GPSInfo).update({1: "N", 2: latitude, 3: "E", 4: (1.0, 0.0, 0.0)})
        Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", exif=exif)
        notes = read_exif((tmp_path / "a.jpg").read_bytes())
        assert notes.latitude is notes.longitude is None
        assert notes.date == 1577934245.0
