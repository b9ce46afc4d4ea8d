import os
import zipfile

import pytest

from bcls.search.calibration import NEVER_SHOWN, SCENES
from bcls.search.source import MAX_BYTES, ExifInfo, describes, open_source, read_exif, read_sidecar
from tests.search.factories import photo, photos


def test_a_folder(tmp_path):
    photos(tmp_path / "p", 3)
    source = open_source(tmp_path / "p")
    items = source.scan().items
    assert [item.name for item in items] == ["0/000-red-red.png", "1/001-green-red.png", "2/002-blue-red.png"]
    assert source.path_of("0/a.png") == str(tmp_path / "p/0/a.png")
    assert source.features(["0/000-red-red.png"]) is None
    (tmp_path / "p/0/000-red-red.txt").write_text("new")
    assert [a.stamp != b.stamp for a, b in zip(items, source.scan().items, strict=True)] == [True, False, False]
    for name in ("../secret.png", "/etc/passwd", "a/../../b.png"):
        with pytest.raises(ValueError, match="do not trust this source"):
            source.read(name)


def test_large_files_beside_photos_are_not_read(tmp_path):
    photo(tmp_path / "p/a.png", ["red"])
    (tmp_path / "p/a.txt").write_text("word " * 10_000)
    (tmp_path / "p/a.json").write_text('"short"')
    assert open_source(tmp_path / "p").captions("a.png") == ("short",)
    assert open_source(tmp_path / "p", captions=False).captions("a.png") == ()


def names(source):
    return [item.name for item in source.scan().items]


@pytest.mark.timeout(20)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_regular_files_are_read(tmp_path):
    photo(tmp_path / "p/a.png", ["red"])
    os.mkfifo(tmp_path / "p/a.txt")
    os.mkfifo(tmp_path / "p/b.jpg")
    (tmp_path / "p/c.png").symlink_to("nothing")
    source = open_source(tmp_path / "p")
    assert names(source) == ["a.png"]
    assert source.captions("a.png") == ()
    assert source.scan().skipped == {name: f"`{name}`: not a regular file" for name in ("b.jpg", "c.png")}


def test_links_that_leave_the_folder(tmp_path):
    photo(tmp_path / "p/a.png", ["red"])
    secret = photo(tmp_path / "secret/s.png", ["blue"])
    (tmp_path / "secret/s.txt").write_text("a secret text")
    (tmp_path / "p/inside.png").symlink_to("a.png")
    (tmp_path / "p/out.png").symlink_to(secret)
    (tmp_path / "p/folder").symlink_to(tmp_path / "secret")
    (tmp_path / "p/loop").symlink_to(tmp_path / "p")
    (tmp_path / "p/a.txt").symlink_to(tmp_path / "secret/s.txt")
    source = open_source(tmp_path / "p")
    assert names(source) == ["a.png", "inside.png"]
    assert list(source.scan().skipped) == ["folder", "out.png"]
    assert source.scan().others == {"caption (a link that leaves the folder)": 1}
    assert open_source(tmp_path / "p", captions=False).scan().others == {}
    assert source.captions("a.png") == ()
    for name in ("out.png", "folder/s.png"):
        with pytest.raises(ValueError, match="expected files inside the folder, got the link"):
            source.read(name)
    source = open_source(tmp_path / "p", follow_links=True)
    assert names(source) == ["a.png", "folder/s.png", "inside.png", "out.png"]
    assert source.captions("a.png") == source.captions("folder/s.png") == ("a secret text",)
    assert source.read("out.png") == secret.read_bytes()


def test_links_to_folders_inside_the_folder(tmp_path):
    photo(tmp_path / "p/sub/deep/a.png", ["red"])
    photo(tmp_path / "p/.hidden/b.png", ["red"])
    for link, target in (("a", "sub"), ("b", "sub/deep"), ("c", ".hidden"), ("d", ".hidden")):
        (tmp_path / "p" / link).symlink_to(target)
    assert names(open_source(tmp_path / "p")) == ["c/b.png", "sub/deep/a.png"]


def test_files_of_other_kinds_are_counted(tmp_path):
    photo(tmp_path / "p/a.png", ["red"])
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as pack:
        pack.write(tmp_path / "p/a.png", "a.png")
        for name in ("b.mp4", "c.MOV", "d.svg", "e.txt", "._f.mov", "raw/g.mp4", "raw/h.jpg", "i.tmp.jpg"):
            pack.writestr(name, "x")
            (tmp_path / "p" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "p" / name).touch()
    for path, excluded in (("p", {"excluded": 1, "excluded folder": 1}), ("p.zip", {"excluded": 2})):
        source = open_source(tmp_path / path, exclude=["raw", "*.tmp.*"])
        assert source.scan().others == {"video": 2, "image format .svg": 1, **excluded}
        assert names(source) == ["a.png"]


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (["*.png"], ["1/thumb/c.jpg", "b.jpg"]),
        (["thumb"], ["1/a.png", "b.jpg"]),
        (["1/*"], ["b.jpg"]),
        (["thumb", "b.*"], ["1/a.png"]),
        (["B.jpg"], ["1/a.png", "1/thumb/c.jpg", "b.jpg"]),
        (["thumb/"], ["1/a.png", "b.jpg"]),
        (["./1"], ["b.jpg"]),
        (["./1/thumb/", "./thumb"], ["1/a.png", "b.jpg"]),
        (["1/thumb"], ["1/a.png", "b.jpg"]),
    ],
)
def test_excluded_names(tmp_path, patterns, left):
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as pack:
        for name in ("1/a.png", "1/thumb/c.jpg", "b.jpg"):
            pack.write(photo(tmp_path / "p" / name, ["red"]), name)
    assert names(open_source(tmp_path / "p", exclude=patterns)) == left
    assert names(open_source(tmp_path / "p.zip", exclude=patterns)) == left


def test_excluded_names_as_displayed(tmp_path):
    for name in ("p/raw/a.png", "p/b.png", "q/raw/a.png"):
        photo(tmp_path / name, ["red"])
    paths = tmp_path / "p", tmp_path / "q"
    for pattern in ("p/raw", "p/raw/*", "p/raw/a.png", f"{tmp_path}/p/raw", f"{tmp_path}/p/raw/a.png"):
        assert names(open_source(*paths, exclude=[pattern])) == ["p/b.png", "q/raw/a.png"]


def test_several_folders(tmp_path):
    for name in ("x/photos/a.png", "y/photos/a.png", "z/b.png"):
        photo(tmp_path / name, ["red"])
    (tmp_path / "y/photos/a.txt").write_text("a red wall")
    paths = [tmp_path / "x/photos", tmp_path / "y/photos", tmp_path / "z"]
    source = open_source(*paths)
    assert names(source) == ["photos/a.png", "photos (2)/a.png", "z/b.png"]
    second, name = source.locate("photos (2)/a.png")
    assert second.path_of(name) == str(tmp_path / "y/photos/a.png")
    assert second.captions(name) == ("a red wall",)
    third, name = source.locate("z/b.png")
    assert third.read(name) == (tmp_path / "z/b.png").read_bytes()
    for name in ("w/a.png", "a.png"):
        with pytest.raises(FileNotFoundError):
            source.locate(name)
    first, name = source.locate("photos/../../secret")
    with pytest.raises(ValueError, match="do not trust this source"):
        first.read(name)
    (tmp_path / "link").symlink_to("z")
    for same in (tmp_path, tmp_path / "z", tmp_path / "x/../z", tmp_path / "link"):
        with pytest.raises(ValueError, match="`photos`: expected folders that do not contain each other"):
            open_source(*paths, same)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("IMG_0001.jpg", False),
        ("beach.HEIC", False),
        ("IMG_E0042", False),
        ("PXL_20230101_123456", False),
        ("P1010101", False),
        ("OLYMPUS DIGITAL CAMERA", False),
        ("SONY DSC", False),
        ("Untitled", False),
        ("2019-07-04 18.30", False),
        ("n/a", False),
        ("-", False),
        ("dog", True),
        ("2 dogs", True),
        ("a digital camera", True),
        ("海", True),
        ("Ein Foto von Anna", True),
    ],
)
def test_captions_that_describe_nothing(tmp_path, caption, expected):
    assert describes(caption) == expected
    photo(tmp_path / "p/a.png", ["red"])
    (tmp_path / "p/a.txt").write_text(f"{caption}\n")
    assert open_source(tmp_path / "p").captions("a.png") == (caption,) * expected


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
