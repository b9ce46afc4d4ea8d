import zipfile

import pytest

from bcls.search.build import compare
from bcls.search.calibration import never_shown, shown
from bcls.search.source import Item, open_source
from tests.index.made import photo, photos


def test_a_folder(tmp_path):
    photos(tmp_path / "p", 3)
    source = open_source(tmp_path / "p")
    items = source.items()
    assert [item.name for item in items] == ["0/000-red-red.png", "1/001-green-red.png", "2/002-blue-red.png"]
    assert source.place("0/a.png") == str(tmp_path / "p/0/a.png")
    assert source.features(["0/000-red-red.png"]) is None
    (tmp_path / "p/0/000-red-red.txt").write_text("new")
    assert [a.look != b.look for a, b in zip(items, source.items(), strict=True)] == [True, False, False]
    for name in ("../secret.png", "/etc/passwd", "a/../../b.png"):
        with pytest.raises(ValueError, match="do not trust this source"):
            source.read(name)


def test_large_files_beside_photos_are_not_read(tmp_path):
    photo(tmp_path / "p/a.png", ["red"])
    (tmp_path / "p/a.txt").write_text("word " * 10_000)
    (tmp_path / "p/a.json").write_text('"short"')
    assert open_source(tmp_path / "p").captions("a.png") == ("short",)
    assert open_source(tmp_path / "p", captions=False).captions("a.png") == ()


def test_something_else(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="expected a folder, a zip or an uncompressed tar"):
        open_source(tmp_path / "a.txt")


def test_what_lacks_a_vector_is_read_again():
    items = [Item("a", "1"), Item("b", "1")]
    plan = compare(items, {"a": (1, "1"), "b": (2, "1")}, {2})
    assert plan.read == [Item("b", "1")]
    assert plan.unchanged == 1
    assert plan.gone == []


def test_texts_to_measure_with():
    assert len(set(shown())) == len(shown()) >= 20
    assert len(set(never_shown())) == 64
    assert not set(shown()) & set(never_shown())


def test_a_damaged_caption_in_an_archive_leaves_the_photo_alone(tmp_path):
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
