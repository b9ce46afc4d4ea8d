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


@pytest.fixture
def calibration(run, tmp_path):
    """Writes the calibration of the model; its contents by file name."""
    contents = {name: f"contents of {name}" for name in CALIBRATION}
    for name, content in contents.items():
        (tmp_path / "run" / "checkpoints" / "best" / name).write_text(content)
    return contents


def check_difference(run, folder, precision, limit, allowed):
    """The limit of rounded weights is a cosine distance, which an entry of a vector may exceed."""
    code, out, _ = run("run", "--out", folder.name, "--precision", precision)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("maximum difference of a vector's entry to torch ")]
    assert line.endswith(f", {limit}")
    assert f"for captions; {allowed}" in (folder / "README.md").read_text()


def test_onnx(run, calibration, tmp_path):
    towers = tmp_path / "towers"
    limits = "cosine distance at most 0.001", "a cosine distance of 0.001 was allowed"
    check_difference(run, towers, "float16", *limits)
    assert {name: (towers / name).read_text() for name in CALIBRATION} == calibration
    code, out, _ = run("run", "--out", "towers", "--json")  # replaces the first
    assert code == 0
    found = json.loads(out)
    assert "bcls index DATASET --features NAME --out INDEX --model towers" in run("run", "--out", "towers")[1]
    assert (found["format"], found["model"], found["width"], found["images"]) == ("onnx", "dual", 6, "vectors")
    assert {path.name for path in towers.iterdir()} >= {"image.onnx", "text.onnx", "config.json"}
    assert {name: (towers / name).read_text() for name in CALIBRATION} == calibration


@pytest.mark.slow
def test_the_difference_of_unchanged_weights_is_printed_with_its_limit(run, tmp_path):
    check_difference(run, tmp_path / "towers", "float32", "tolerance 0.0001", "a difference of 0.0001 was allowed")


def test_folder(run, tmp_path):
    code, out, err = run("run", "--out", "model", "--format", "folder")
    assert (code, err) == (0, "")
    assert "written to model" in out
    again, first = load(tmp_path / "model"), load(tmp_path / "run")
    torch.testing.assert_close(again.encode_texts(["a dog"]), first.encode_texts(["a dog"]))


def test_a_folder_has_the_calibration(run, calibration, tmp_path):
    for _ in range(2):  # the second run replaces the first
        assert run("run", "--out", "copy", "--format", "folder")[0] == 0
    assert {name: (tmp_path / "copy" / name).read_text() for name in CALIBRATION} == calibration
    assert json.loads((tmp_path / "copy" / "config.json").read_text())["sha256"].keys() >= set(CALIBRATION)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "bcls export: the following arguments are required: MODEL"),
        (("run",), "out"),
        (("gone", "--out", "x"), "`model`: expected 'photo'"),
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
