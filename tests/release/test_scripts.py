"""What scripts write is there whole, or as it was before."""

import errno
import json

import pytest

from scripts import demo_table, faults_page, mutants

RESULTS = {"settings": {"out": "x"}, "seconds": 1.0, "summary": {}, "runs": []}


def keep_demo(folder, monkeypatch):
    monkeypatch.setattr(demo_table, "KEPT", folder / "written")
    (folder / "results.json").write_text(json.dumps(RESULTS), encoding="utf-8")
    demo_table.keep(folder / "results.json")


def write_faults(folder, monkeypatch):
    monkeypatch.setattr(faults_page, "PAGE", folder / "written")
    faults_page.main()


@pytest.mark.parametrize("write", [keep_demo, write_faults])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, write):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "written").write_text("before", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path, patch)
    assert (tmp_path / "written").read_text(encoding="utf-8") == "before"
    write(tmp_path, monkeypatch)
    assert (tmp_path / "written").read_text(encoding="utf-8") != "before"


def test_the_result_of_mutants_is_exchanged_as_a_whole(tmp_path):
    (tmp_path / "mutants.json").write_text("before", encoding="utf-8")
    with (tmp_path / "mutants.json").open(encoding="utf-8") as opened:
        mutants._write(tmp_path / "mutants.json", {"killed": 1})
        assert opened.read() == "before"
    assert json.loads((tmp_path / "mutants.json").read_text(encoding="utf-8")) == {"killed": 1}
