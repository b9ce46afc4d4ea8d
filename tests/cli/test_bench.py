"""``bcls bench`` as a user runs it."""

import json
import subprocess
import sys

import pytest
import torch

from bcls.cli import main as cli
from bcls.experiments import bench as subjects


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs ``bcls bench ...``; the exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "bench", ("bcls.cli.bench", "speed"))
    monkeypatch.setattr(subjects, "_QUICK_SECONDS", 0.0)

    def call(*words):
        code = cli.main(["bench", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_one_subject(run, tmp_path):
    code, out, err = run("width", "--out", "here", "--quick")
    assert code == 0
    assert "## BCLS from embeddings against their width" in out
    assert "written to here" in out
    if not torch.cuda.is_available():
        assert "torch finds no GPU: running on the CPU" in err
    assert json.loads((tmp_path / "here" / "bench-width.json").read_text())["command"] == "bcls bench width --quick"


def test_json_alone_on_standard_output(run):
    code, out, _ = run("streaming", "width", "--out", "here", "--quick", "--json", "--device", "cpu")
    assert code == 0
    assert [result["subject"] for result in json.loads(out)] == ["streaming", "width"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("loses", "--out", "x"), "`SUBJECT`: expected one of .* did you mean 'losses'"),
        (("losses",), "out"),
        (("losses", "--out", "x", "--device", "tpu"), "`--device`"),
    ],
)
def test_bad_usage(run, words, says, tmp_path):
    code, _, err = run(*words)
    assert code == 2
    import re

    assert re.search(says, err)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(run):
    code, _, err = run("--out", "x", "--quick", "--device", "cuda")
    assert code == 2
    assert "`--device`: expected a GPU that torch can use" in err


def test_help_does_not_load_torch():
    code = "import sys, bcls.cli.bench; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
