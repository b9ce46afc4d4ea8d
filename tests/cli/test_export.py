"""``bcls export`` as a user runs it."""

import json

import pytest
import torch

from bcls.cli import main as cli
from bcls.data.vocabulary import Vocabulary
from bcls.models import build, load
from bcls.models.folder import CALIBRATION


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs ``bcls export ...`` in a folder with a model; the exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "export", ("bcls.cli.export", "a model for use elsewhere"))
    words = Vocabulary.build(["a dog runs"], threshold=1)
    torch.manual_seed(0)
    config = {"name": "dual", "image": "features", "features": 4, "width": 6, "text": "gru", "text_pooling": "mean"}
    build(config, vocabulary=words).save_pretrained(tmp_path / "run" / "checkpoints" / "best")

    def call(*words):
        code = cli.main(["export", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_onnx(run, tmp_path):
    code, out, _ = run("run", "--out", "towers", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["format"], found["model"], found["width"], found["images"]) == ("onnx", "dual", 6, "vectors")
    assert {path.name for path in (tmp_path / "towers").iterdir()} >= {"image.onnx", "text.onnx", "config.json"}


@pytest.mark.parametrize(
    ("precision", "limit", "allowed"),
    [
        ("float32", "tolerance 0.0001", "a difference of 0.0001 was allowed"),
        ("float16", "cosine distance at most 0.001", "a cosine distance of 0.001 was allowed"),
    ],
)
def test_the_difference_is_printed_with_its_limit(run, tmp_path, precision, limit, allowed):
    """The limit of rounded weights is a cosine distance, which an entry of a vector may exceed."""
    code, out, _ = run("run", "--out", "towers", "--precision", precision)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("maximum difference of a vector's entry to torch ")]
    assert line.endswith(f", {limit}")
    assert f"for captions; {allowed}" in (tmp_path / "towers" / "README.md").read_text()


def test_folder(run, tmp_path):
    code, out, err = run("run", "--out", "model", "--format", "folder")
    assert (code, err) == (0, "")
    assert "written to model" in out
    again, first = load(tmp_path / "model"), load(tmp_path / "run")
    torch.testing.assert_close(again.encode_texts(["a dog"]), first.encode_texts(["a dog"]))


@pytest.mark.parametrize("kind", ["onnx", "folder"])
def test_the_calibration_is_copied(run, tmp_path, kind):
    source = tmp_path / "run" / "checkpoints" / "best"
    for name in CALIBRATION:
        (source / name).write_text(f"contents of {name}")
    for _ in range(2):  # the second run replaces the first
        assert run("run", "--out", "copy", "--format", kind)[0] == 0
    for name in CALIBRATION:
        assert (tmp_path / "copy" / name).read_text() == f"contents of {name}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "bcls export: the following arguments are required: MODEL"),
        (("run",), "out"),
        (("gone", "--out", "x"), "check the spelling"),
        (("run", "--out", "x", "--format", "onxn"), "did you mean 'onnx'?"),
        (("run", "--out", "x", "--format", "folder", "--regions"), "--regions"),
    ],
)
def test_bad_input_is_one_line(run, words, message):
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


def test_help(run):
    with pytest.raises(SystemExit) as stopped:
        run("--help")
    assert stopped.value.code == 0
