import json
import subprocess
import sys

import pytest

from bcls.cli import main as cli
from tests.search.factories import photos, tiny_model

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs ``bcls index ...`` as a user would; the exit code, standard output and standard error."""
    monkeypatch.setitem(cli.COMMANDS, "index", ("bcls.cli.index", "index"))

    def call(*words):
        code = cli.main(["index", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    return tiny_model(monkeypatch, tmp_path / "tiny")


def test_index_and_update(run, tiny, tmp_path):
    source, out = photos(tmp_path / "photos"), tmp_path / "index"
    (source / "0/bad.jpg").write_bytes(b"not a photo")
    for name in ("a.mp4", "b.MOV"):
        (source / name).touch()
    code, printed, notes = run(source, "--out", out, "--model", tiny)
    assert code == 0
    assert "12 photos and 0 captions (12 added, 0 updated, 0 removed, 0 unchanged)" in printed
    assert "skipped: 2 video, 1 not an image\n" in printed
    assert "skipped: `0/bad.jpg`: expected an image, got 11 bytes of something else" in notes
    assert "indexing: 13 of 13" in notes
    code, printed, _ = run(source, "--out", out, "--json")
    assert code == 0
    report = json.loads(printed)
    assert (report["photos"], report["unchanged"], list(report["skipped"])) == (12, 12, ["0/bad.jpg"])
    assert report["reasons"] == {"video": 2, "not an image": 1}


def test_several_folders_and_patterns(run, tiny, tmp_path):
    sources = [photos(tmp_path / name, 6) for name in ("a", "b")]
    code, printed, _ = run(
        *sources, "--out", tmp_path / "index", "--model", tiny, "--exclude", "2", "*-blue-*", "--json"
    )
    assert code == 0
    assert json.loads(printed)["photos"] == 8
    _, printed, _ = run(*sources, "--out", tmp_path / "index", "--exclude", "2/", "--exclude=b/*", "--json")
    report = json.loads(printed)
    assert (report["photos"], report["reasons"]) == (4, {"excluded folder": 4})


def test_bad_input_is_one_line(run, tiny, tmp_path):
    source, out = photos(tmp_path / "photos", 2), tmp_path / "index"
    (tmp_path / "empty").mkdir()
    for words, message in (
        ((), "arguments are required: --out"),
        (("--out", out), "`photos`: expected a folder, zip, tar or dataset, got none"),
        (("--exclude", "2", source, "--out", out), "got none; name at least one, before --exclude and its patterns"),
        ((source,), "arguments are required: --out"),
        ((tmp_path / "none", "--out", out), "no such folder, zip, tar or dataset of photos"),
        ((tmp_path / "empty", "--out", out), "expected at least one image, got none"),
        ((source, "--out", out, "--model", tmp_path / "none"), "expected 'photo', 'photo-fast', the folder of a model"),
        ((source, "--out", out, "--engine", "sqlite", "--model", tiny), "`engine`: expected one of 'faiss', 'milvus'"),
        ((source, "--out", out, "--workers", "many"), "--workers"),
    ):
        code, output, error = run(*words)
        assert code == 2, words
        assert output == ""
        assert message in error, error
        assert error.count("\n") == 1


def test_help_brings_no_torch():
    code = (
        "import sys, bcls.cli.index, bcls.cli.search;"
        "print(sorted({'torch', 'faiss', 'pymilvus', 'scipy', 'transformers'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"


def test_help(run, capsys):
    with pytest.raises(SystemExit) as left:
        run("--help")
    assert left.value.code == 0
    assert "usage: bcls index PHOTOS" in capsys.readouterr().out
