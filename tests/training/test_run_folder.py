"""A run's folder: one process at a time, and checkpoints that are whole at every moment."""

import multiprocessing
import shutil

import pytest

from bcls._core.files import recover, replace_folder
from bcls._core.locks import lock_folder


def write(text):
    return lambda folder: (folder / "file").write_text(text)


def test_a_folder_is_replaced(tmp_path):
    place = tmp_path / "last"
    replace_folder(place, write("one"))
    replace_folder(place, write("two"))
    assert (place / "file").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_a_writer_that_fails_leaves_the_old_one(tmp_path):
    place = tmp_path / "last"
    replace_folder(place, write("one"))

    def fail(folder):
        (folder / "file").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_folder(place, fail)
    assert recover(place)
    assert (place / "file").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({"last": "one", ".last.new-bcls": "half"}, "one"),  # killed while writing
        ({".last.old-bcls": "one", ".last.new-bcls": "two"}, "one"),  # between the two renamings
        ({"last": "two", ".last.old-bcls": "one"}, "two"),  # before the old one was removed
        ({"last": "two"}, "two"),
        ({".last.new-bcls": "half"}, None),  # the very first one was never finished
        ({}, None),
    ],
)
def test_every_intermediate_state_is_recovered(tmp_path, there, expected):
    for name, text in there.items():
        (tmp_path / name).mkdir()
        write(text)(tmp_path / name)
    assert recover(tmp_path / "last") == (expected is not None)
    assert [path.name for path in tmp_path.iterdir()] == (["last"] if expected else [])
    if expected:
        assert (tmp_path / "last" / "file").read_text() == expected


def test_folders_with_similar_names_are_kept(tmp_path):
    for name in ("last", "last.old", "last.new"):
        (tmp_path / name).mkdir()
        write(name)(tmp_path / name)
    replace_folder(tmp_path / "last", write("two"))
    assert recover(tmp_path / "last")
    found = {path.name: (path / "file").read_text() for path in tmp_path.iterdir()}
    assert found == {"last": "two", "last.old": "last.old", "last.new": "last.new"}
    shutil.rmtree(tmp_path / "last")
    assert not recover(tmp_path / "last")
    assert (tmp_path / "last.old").exists()


def test_nested_folders_are_on_the_disk_before_the_rename(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr("bcls._core.files.sync_folder", lambda folder: done.append(folder.name))

    def nested(folder):
        (folder / "encoder").mkdir()
        write("one")(folder / "encoder")

    replace_folder(tmp_path / "last", nested)
    assert done[:2] == ["encoder", ".last.new-bcls"]


def hold(folder, ready, leave):
    with lock_folder(folder):
        ready.set()
        leave.wait(30)


def test_a_locked_folder_is_refused_until_its_process_ends(tmp_path):
    context = multiprocessing.get_context("fork")
    ready, leave = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, ready, leave))
    other.start()
    assert ready.wait(30)
    with pytest.raises(ValueError, match=f"in use by process {other.pid}"), lock_folder(tmp_path):
        pass
    other.kill()
    other.join()
    with lock_folder(tmp_path):
        pass
