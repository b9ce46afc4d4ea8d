import json
import os

import numpy as np
import pytest
from PIL import Image

from bcls.data.synthetic import load, make_scenes, render, save

SPLITS = ["train", "val", "test", "train"]


@pytest.fixture(scope="module")
def data():
    return make_scenes(4, seed=6)


@pytest.fixture
def folder(data, tmp_path):
    save(data, tmp_path / "made" / "here", splits=SPLITS, size=48)
    return tmp_path / "made" / "here"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_round_trip(data, folder):
    assert load(folder) == data
    assert load(str(folder)) == data


def test_images_are_the_rendered_scenes(data, folder):
    names = sorted(path.name for path in (folder / "images").iterdir())
    assert names == ["00000.png", "00001.png", "00002.png", "00003.png"]
    for name, scene in zip(names, data.scenes, strict=True):
        with Image.open(folder / "images" / name) as image:
            np.testing.assert_array_equal(np.asarray(image), np.asarray(render(scene, 48)))


def test_captions_file(data, folder):
    written = lines(folder / "captions.jsonl")
    assert [line["text"] for line in written] == data.texts
    assert [int(line["image_id"]) for line in written] == data.image_of_caption.tolist()
    assert [line["split"] for line in written[::5]] == SPLITS
    assert len({line["caption_id"] for line in written}) == 20
    assert all(set(line) == {"image_id", "caption_id", "text", "split"} for line in written)
    assert all((folder / "images" / f"{line['image_id']}.png").exists() for line in written)


def test_no_temporary_files_are_left(folder):
    assert {path.name for path in folder.iterdir()} == {"images", "captions.jsonl", "scenes.jsonl"}


def test_failed_write_keeps_the_old_files(data, folder, monkeypatch):
    before = {name: (folder / name).read_bytes() for name in ("captions.jsonl", "scenes.jsonl", "images/00000.png")}

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save(make_scenes(4, seed=7), folder, size=48)
    assert before == {name: (folder / name).read_bytes() for name in before}
    assert {path.name for path in folder.iterdir()} == {"images", "captions.jsonl", "scenes.jsonl"}


def test_images_are_on_the_disk_before_they_get_their_names(data, tmp_path, monkeypatch):
    flushed, sync = {}, os.fsync

    def record(handle):
        flushed[os.fstat(handle).st_ino] = sorted(path.name for path in (tmp_path / "images").glob("*"))
        sync(handle)

    monkeypatch.setattr(os, "fsync", record)
    save(data, tmp_path, size=32)
    images = sorted((tmp_path / "images").iterdir())
    assert len(images) == 4
    assert [flushed[path.stat().st_ino] for path in images] == [[]] * 4
    assert len(flushed[(tmp_path / "captions.jsonl").stat().st_ino]) == 4


def test_other_images_of_the_folder_are_kept(data, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "mine.png").write_bytes(b"mine")
    save(data, tmp_path, size=32)
    assert len(list((tmp_path / "images").iterdir())) == 5
    assert (tmp_path / "images" / "mine.png").read_bytes() == b"mine"


def test_every_image_is_training_data_by_default(data, tmp_path):
    save(data, tmp_path, size=32)
    assert {line["split"] for line in lines(tmp_path / "captions.jsonl")} == {"train"}


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (["train"] * 3, "`splits`: expected one split for each of the 4 images, got 3; pass"),
        (["train", "val", "test", "dev"], "`splits`: expected one of 'train', 'val', 'test', got 'dev'; choose"),
    ],
)
def test_bad_splits_are_refused_before_anything_is_written(data, tmp_path, splits, message):
    with pytest.raises(ValueError, match=message):
        save(data, tmp_path / "new", splits=splits)
    assert not (tmp_path / "new").exists()


def test_files_that_do_not_belong_together_are_refused(folder):
    captions = folder / "captions.jsonl"
    captions.write_text("".join(captions.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match=r"`folder`: expected as many captions .* got 19 and 20"):
        load(folder)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("scenes.jsonl", "{", "line 2`: expected JSON"),
        ("scenes.jsonl", "{}", r"line 2`: expected fields as `save` writes them, got something else \(KeyError: 'back"),
        ("scenes.jsonl", '{"background": "beach", "objects": 3, "seed": 1, "facts": []}', "line 2`.*TypeError"),
        ("scenes.jsonl", '{"background": "moon", "objects": [], "seed": 1, "facts": []}', "line 2`.*ValueError"),
        ("captions.jsonl", "[]", "line 2`: expected a JSON object"),
        ("captions.jsonl", "{}", r"line 2`: expected fields .* \(KeyError: 'text'"),
    ],
)
def test_damaged_files_are_refused_with_the_line(folder, file, line, message):
    written = (folder / file).read_text().splitlines()
    (folder / file).write_text("\n".join([written[0], line, *written[2:]]))
    with pytest.raises(ValueError, match=f"{file}, {message}"):
        load(folder)
