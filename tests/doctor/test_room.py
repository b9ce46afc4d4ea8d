"""Room on the disk and permission to write."""

from pathlib import Path

import pytest

from bcls.cli import doctor as room


def test_a_folder_of_ours(tmp_path):
    line = room.look("current folder", tmp_path)
    assert line.value.endswith("GiB free, writable")
    assert not line.problem
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone(tmp_path):
    assert "No such file" in room.look("current folder", tmp_path / "gone").problem


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, where not even root can write")
@pytest.mark.parametrize(("name", "remedy"), [("current folder", "--out"), ("temporary folder", "TMPDIR")])
def test_a_folder_that_cannot_be_written(name, remedy):
    line = room.look(name, Path("/proc"))
    assert line.value.endswith("not writable")
    assert remedy in line.problem


def test_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "LEAST_FREE", 1 << 60)
    assert "make room" in room.look("current folder", tmp_path).problem


def test_both_folders_are_looked_at_and_not_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = room.room()
    assert [line.name for line in section.lines] == ["current folder", "temporary folder"]
    assert not any(str(tmp_path) in line.value for line in section.lines)
