import json
import os
import shlex
import subprocess
import sys

import pytest

from bcls.cli import data
from bcls.cli import main as cli
from tests.data.factories import make_dataset, make_images
from tests.samples import DATA, expect


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs ``bcls data ...`` as a user would; the exit code, standard output and standard error."""
    monkeypatch.setitem(cli.COMMANDS, "data", ("bcls.cli.data", "datasets"))

    def call(*words):
        code = cli.main(["data", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def source(tmp_path):
    make_images(tmp_path / "mine", ["a.webp", "b.webp"])
    (tmp_path / "mine" / "captions.csv").write_text("image,caption,split\na.jpg,one,train\nb.jpg,two,test\n")
    return tmp_path / "mine"


def test_help(run, capsys):
    code, out, _ = run("--help")
    assert code == 0
    assert all(job in out for job in ("import KIND SOURCE --out DIR", "check DIR", "stats DIR", "features DIR"))
    assert run()[0] == 2
    for job in ("import", "check", "stats", "features"):
        with pytest.raises(SystemExit) as left:
            run(job, "--help")
        assert left.value.code == 0
        assert f"usage: bcls data {job}" in capsys.readouterr().out


def test_import_check_stats(run, source, tmp_path):
    out = tmp_path / "out"
    code, printed, notes = run("import", "folder", source, "--out", out)
    assert code == 0
    assert "train" in printed
    assert notes == "note: 2 images have another file extension than in the captions (.webp for .jpg)\n"
    code, printed, _ = run("check", out)
    assert code == 0
    assert "no problems" in printed
    code, printed, _ = run("stats", out)
    assert code == 0
    assert "1" in printed


def test_the_next_command_can_be_pasted_if_a_path_has_spaces(run, source, tmp_path):
    out = tmp_path / "my photos"
    _, printed, _ = run("import", "folder", source, "--out", out)
    command = printed.strip().rpartition("next: bcls data ")[2]
    assert shlex.split(command) == ["check", str(out)]
    assert run(*shlex.split(command))[0] == 0


def test_home_folder(run, source, tmp_path, monkeypatch):
    """A shell does not expand ``--out=~/data``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    home = f"~/{source.relative_to(tmp_path)}"
    assert run("import", "folder", home, "--out=~/out", f"--images={home}")[0] == 0
    assert (tmp_path / "out" / "manifest.json").exists()
    assert run("check", "~/out", f"--images={home}")[0] == 0
    assert run("stats", "~/out")[0] == 0


def test_sizes_of_images_that_have_moved(run, source, tmp_path):
    run("import", "folder", source, "--out", tmp_path / "out")
    moved = source.rename(tmp_path / "moved")
    _, printed, notes = run("stats", tmp_path / "out", "--json")
    assert [split["width"] for split in json.loads(printed)["splits"]] == [None, None]
    assert notes.startswith("note: 2 images cannot be read; see `bcls data check")
    assert run("stats", tmp_path / "out", "--no-sizes")[2] == ""
    _, printed, notes = run("stats", tmp_path / "out", "--images", moved, "--json")
    assert all(split["width"] for split in json.loads(printed)["splits"])
    assert notes == ""


def test_json_alone_on_standard_output(run, source, tmp_path):
    out = tmp_path / "out"
    assert json.loads(run("import", "folder", source, "--out", out, "--json", "--name", "x")[1]) == {
        "out": str(out),
        "name": "x",
        "splits": {"train": {"images": 1, "captions": 1}, "test": {"images": 1, "captions": 1}},
    }
    (source / "a.webp").write_bytes(b"")
    code, printed, _ = run("check", out, "--json", "--workers", "1")
    report = json.loads(printed)
    assert code == 1
    assert report["counts"] == {"damaged-image": 1, "wrong-extension": 1}  # the others are PNG files named .webp
    assert report["quarantined"] == {"images": 1, "captions": 0}
    damaged = next(one for one in report["findings"] if one["kind"] == "damaged-image")
    assert (damaged["subject"], damaged["problem"]) == ("a.jpg", True)
    stats = json.loads(run("stats", out, "--json", "--plot", tmp_path / "s.png")[1])
    assert [split["captions"] for split in stats["splits"]] == [1, 1]
    assert (tmp_path / "s.png").exists()


def test_a_plot_in_the_home_folder(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # on Windows
    assert run("stats", make_dataset(tmp_path / "made"), "--plot=~/s.png")[0] == 0  # which no shell expands
    assert (tmp_path / "s.png").exists()


def test_problems_and_notes(run, tmp_path):
    rows = [
        {"image_id": name, "caption_id": name, "text": "the same [red] words", "split": split}
        for name, split in (("i0", "train"), ("i1", "test"))
    ]
    folder = make_dataset(tmp_path / "made", rows=rows)
    code, out, _ = run("check", folder)
    assert code == 0
    assert "note" in out
    assert run("check", folder, "--strict")[0] == 1
    assert run("check", folder, "--near", "-1")[0] == 0
    (folder / "images" / "i0.png").write_bytes(b"")
    code, out, _ = run("check", folder)
    assert code == 1
    assert "problems were found" in out
    assert "1 images and 0 captions are in quarantine.json" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("chek",), "`SUBCOMMAND`: expected one of 'import', 'check', 'stats', 'features', got 'chek'; did you mean"),
        (("import",), "required: --out, KIND, SOURCE; see `bcls data import --help`"),
        (("import", "folder"), "required: --out, SOURCE"),
        (("import", "fodler", "x", "--out", "y"), "did you mean 'folder'?"),
        (("import", "folder", "x"), "out"),
        (("import", "folder", "x", "--out", "y", "--imgaes", "z"), "--imgaes"),
        (("import", "karpathy", "nothing.json", "--out", "y"), "nothing.json: No such file"),
        (("import", "karpathy", "nothing.json", "--out", "y", "--captions", "x"), "no value for a karpathy source"),
        (("check", "nothing"), "nothing: no such dataset folder"),
        (("check",), "arguments are required: DIR"),
        (("stats", ".", "--plot"), "plot"),
        (("stats", ".", "--plot", "none/a.png"), "`--plot`: expected a file in an existing folder, got none/a.png"),
    ],
)
def test_bad_input_is_one_line(run, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert err.startswith("bcls data:")


@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="root may write anywhere")
def test_a_read_only_folder(run, source, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    code, _, err = run("import", "folder", source, "--out", tmp_path / "locked" / "out")
    assert code == 2
    assert "Permission denied" in err


def test_help_does_not_wait_for_torch():
    code = "import sys, bcls.cli.data; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_fixed_call(run, tmp_path):
    folder = DATA / "flickr8k"
    images = ("--images", folder / "images_224.zip")
    code, out, err = run("import", "karpathy", folder / "dataset_flickr8k.json", *images, "--out", tmp_path / "d")
    assert code == 0
    assert err.count(f"note: {expect(8000, 12)} images have another file extension") == 1
    assert expect("6,000", "30") in out


def test_every_job_is_listed():
    assert list(data.SUBCOMMANDS) == ["import", "check", "stats", "features"]
