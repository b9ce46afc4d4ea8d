"""Input checks of ``bcls index``: folders, models and options."""

import json
import os
import shutil

import pytest

from bcls._core.locks import lock_folder
from bcls.search.build import IndexSettings, build_index
from bcls.search.index import open_index
from tests.search.factories import counts, index, photos, tiny_model

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')


def test_another_model_version_engine_or_folder_is_rejected(source, out, tiny, tmp_path, monkeypatch):
    index(source, out, tiny)
    other = tiny_model(monkeypatch, tmp_path / "other", seed=7)
    with pytest.raises(ValueError, match=r"expected the model '.*tiny' with weights .*, got '.*other' with weights"):
        index(source, out, other)
    with pytest.raises(ValueError, match="`engine`: expected 'faiss', which"):
        index(source, out, tiny, engine="milvus", uri="x.db")
    for uri in ("x.db", "http://there:19530"):
        with pytest.raises(ValueError, match=f"`uri`: expected none, which .*index was built with, got '{uri}'"):
            index(source, out, tiny, uri=uri)
    content = json.loads((out / "index.json").read_text())
    for uri, given in (("http://here:19530", "http://there:19530"), (str(tmp_path / "a.db"), "a.db")):
        (out / "index.json").write_text(json.dumps({**content, "engine": "milvus", "uri": uri}))
        with pytest.raises(ValueError, match=f"`uri`: expected {uri}, which .*, got '{given}'"):
            index(source, out, tiny, uri=given)
    (out / "index.json").write_text(json.dumps(content))
    photos(tmp_path / "others", 2)
    with pytest.raises(ValueError, match=r"`photos`: expected .*photos, which .*index is an index of, got .*others"):
        index(tmp_path / "others", out, tiny)
    opened = open_index(out)
    with pytest.raises(ValueError, match="expected the model"):
        opened.load_model(str(other))
    opened.close()
    content = json.loads((out / "index.json").read_text())
    for version, given in ((99, content["photos"]), (1, str(source))):  # version 1 had a single path
        (out / "index.json").write_text(json.dumps({**content, "version": version, "photos": given}))
        rebuild = (
            rf"got version {version}; build it again: delete the folder, then run `bcls index {source} --out {out}`"
        )
        with pytest.raises(ValueError, match=rebuild):
            index(source, out, tiny)
        with pytest.raises(ValueError, match=rebuild):
            open_index(out)
    for change in ({"photos": []}, {"calibration": {"text": 3}}):
        (out / "index.json").write_text(json.dumps({**content, **change}))
        with pytest.raises(ValueError, match="expected fields as bcls writes them"):
            open_index(out)


def test_other_weights_of_the_same_model_give_the_command(source, out, tiny, monkeypatch):
    index(source, out, tiny, exclude=["a b", "*.tif"], follow_links=True, captions=False, max_pixels=9000)
    tiny_model(monkeypatch, tiny, seed=7)
    for run in (lambda: index(source, out, tiny), lambda: open_index(out).load_model()):
        with pytest.raises(ValueError, match="build an index in another folder, or delete this one and run") as raised:
            run()
        command = f"bcls index {source} --out {out} --model {tiny} --exclude 'a b' '*.tif' --follow-links"
        assert f"`{command} --no-captions --max-pixels 9000`" in str(raised.value)


def test_moved_photo_folder_keeps_its_entries(source, out, tiny, tmp_path):
    index(source, out, tiny)
    shutil.move(source, tmp_path / "moved")
    assert counts(index(tmp_path / "moved", out, tiny)) == (0, 0, 0, 12)


def test_the_same_folder_by_another_path(source, out, tiny, tmp_path):
    index(source, out, tiny)
    (tmp_path / "link").symlink_to(source)
    for same in (source / "../photos", tmp_path / "link"):
        assert counts(index(same, out, tiny)) == (0, 0, 0, 12)
        with pytest.raises(
            ValueError, match=r"expected folders that do not contain each other, got .*photos, which is the same as"
        ):
            index([source, same], out, tiny)


def test_missing_and_empty_photos(out, tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder, zip, tar or dataset of photos"):
        index(tmp_path / "none", out, tiny)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="expected at least one image, got none"):
        index(tmp_path / "empty", out, tiny)
    assert not out.exists()


def test_other_files_are_not_overwritten(source, out, tiny):
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="`out`: expected a new or empty folder, or an index"):
        index(source, out, tiny)
    with pytest.raises(ValueError, match="`out`: expected a folder, got the file"):
        index(source, out / "letter.txt", tiny)


def test_one_writer_at_a_time(source, out, tiny):
    out.mkdir()
    with lock_folder(out, name="lock"), pytest.raises(ValueError, match=f"in use by process {os.getpid()}; wait"):
        index(source, out, tiny)
    assert index(source, out, tiny).photos == 12


def test_model_that_cannot_read_images(source, out, monkeypatch, tmp_path):
    from bcls.models import build
    from bcls.models.folder import save_folder

    save_folder(build({"name": "vsepp", "words": 20, "features": 8, "width": 16}), tmp_path / "words")
    with pytest.raises(ValueError, match=r"`model`: expected one that reads images, got an error .*; choose another"):
        index(source, out, tmp_path / "words")


def test_invalid_options(source, out, tiny):
    for settings, match in (
        ({"device": "cuda:99"}, "`device`: expected one that torch can use here: cpu"),
        ({"device": "nonsense"}, "`device`: expected one that torch can use here: cpu"),
        ({"device": "meta"}, "`device`: expected one that torch can use here: cpu"),
        ({"workers": -1}, "`workers`: expected a whole number not below 0"),
        ({"engine": "milvus"}, "`uri`: expected a file or address with --engine milvus"),
        ({"uri": "x.db"}, "`uri`: expected a file or address with --engine milvus"),
        ({"engine": "fais"}, "did you mean 'faiss'"),
        ({"features": "patches"}, "`features`: expected a dataset that has features"),
        ({"exclude": "*.png"}, r"`exclude`: expected a list, got '\*.png'"),
        ({"captions": "no"}, "`captions`: expected true or false, got 'no'"),
        ({"follow_links": 1}, "`follow_links`: expected true or false, got 1"),
    ):
        with pytest.raises(ValueError, match=match):
            index(source, out, tiny, **settings)
        assert not out.exists()


def test_a_read_only_folder(source, tmp_path, tiny):
    if getattr(os, "geteuid", int)() == 0:
        pytest.skip("root may write anywhere")
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        index(source, tmp_path / "locked" / "index", tiny)


def test_settings_of_the_first_run_are_defaults(source, out, tiny):
    index(source, out, tiny)
    report = build_index(source, IndexSettings(out=str(out)))  # neither model nor engine is named again
    assert counts(report) == (0, 0, 0, 12)
