"""Atomic files, locks, and progress reports on a terminal and elsewhere."""

import os
import re
import sys
from pathlib import Path

import pytest

from bcls._core import progress as _progress
from bcls._core.errors import check_choice, check_number, check_numbers, check_whole
from bcls._core.files import user_path, write_whole
from bcls._core.locks import FolderInUseError, lock_folder
from bcls._core.progress import progress


def test_files_are_written_atomically(tmp_path):
    path = tmp_path / "a.txt"
    write_whole(path, "früher")
    write_whole(path, b"later")
    assert path.read_bytes() == b"later"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_whole(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_plain_lines_off_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(_progress, "_EVERY", 0.0)
    with progress("reading", 3) as step:
        step(1, "first")
        step(3)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[0] == "reading ..."
    assert shown.err.splitlines()[1].startswith("reading: 1 of 3, ")
    assert "s left (first)" in shown.err.splitlines()[1]
    assert shown.err.splitlines()[2] == "reading: 3 of 3"


def test_plain_lines_are_limited(capsys):
    with progress("reading", 1000) as step:
        for done in range(1, 1001):
            step(done)
    assert capsys.readouterr().err.splitlines() == ["reading ...", "reading: 1000 of 1000"]


def test_a_bar_shows_brackets_as_they_are(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("by x[/b]", 2) as step:
        step(2, "done[/i]")
    shown = capsys.readouterr().err
    assert "by x[/b]" in shown
    assert "done[/i]" in shown


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("reading", 2) as step:
        step(2, "done")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "reading" in shown.err
    assert "2/2" in shown.err


def test_checks_accept_what_is_right():
    import numpy as np

    assert check_whole("n", np.int64(3), least=1) == 3
    assert check_number("x", np.float32(0.5), "", low=0) == 0.5
    assert check_numbers("x", [1, 2.5], "") == [1.0, 2.5]
    assert check_choice("c", "a", {"a": 1}) == "a"


@pytest.mark.parametrize("value", [True, 1.0, "3", None, 0])
def test_whole_numbers(value):
    with pytest.raises(ValueError, match="`n`: expected a whole number not below 1, got"):
        check_whole("n", value, least=1)


def test_a_folder_is_locked_by_one_process_at_a_time(tmp_path):
    with lock_folder(tmp_path / "new"):
        message = rf"`out`: expected .*, got {re.escape(str(tmp_path))}/new, in use by process {os.getpid()}; wait"
        with pytest.raises(FolderInUseError, match=message), lock_folder(tmp_path / "new"):
            pass
        with lock_folder(tmp_path / "new", name="other.lock"):
            pass
    with lock_folder(tmp_path / "new", wait=True):
        assert (tmp_path / "new" / ".lock").read_text() == f"process {os.getpid()}\n"


def test_a_lock_without_an_owner_is_held_by_another_process(tmp_path):
    with lock_folder(tmp_path):
        (tmp_path / ".lock").write_text("")
        with pytest.raises(FolderInUseError, match="in use by another process"), lock_folder(tmp_path):
            pass


def test_the_home_of_an_unknown_user_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/model") == tmp_path / "model"
    assert user_path("~nosuchuser/model") == Path("~nosuchuser/model")
