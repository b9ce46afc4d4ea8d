"""What the core install does without torch, as listed in the documentation."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from bcls.cli.main import COMMANDS

#: Runs code with the packages of the extra ``train`` missing.
BLOCK = "import sys\nfor name in ('torch', 'accelerate', 'matplotlib', 'transformers'): sys.modules[name] = None\n"


def run(code):
    return subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True)


def bcls(*arguments):
    return run(f"from bcls.cli.main import main\nsys.exit(main({[str(one) for one in arguments]!r}))")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A dataset folder of four images, imported without torch, and similarity matrices for its test split."""
    folder = tmp_path_factory.mktemp("core")
    (folder / "photos").mkdir()
    rows = ["image,caption,split"]
    generator = np.random.default_rng(0)
    for number, colour in enumerate(["red", "green", "blue", "white"]):
        pixels = generator.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
        rows += [f"{number}.png,a {colour} thing,test", f"{number}.png,one thing that is {colour},test"]
    (folder / "captions.csv").write_text("\n".join(rows) + "\n")
    done = bcls(
        "data", "import", "folder", folder / "photos", "--captions", folder / "captions.csv", "--out", folder / "d"
    )
    assert done.returncode == 0, done.stderr
    for name in "ab":
        np.save(folder / f"{name}.npy", generator.normal(size=(4, 8)))
    return folder


def test_import_bcls():
    assert run("import bcls; print(bcls.__version__)").returncode == 0


@pytest.mark.parametrize("name", ["BCLSLoss", "train"])
def test_names_that_need_torch_name_the_extra(name):
    last = run(f"from bcls import {name}").stderr.splitlines()[-1]
    assert last == f'bcls._core.extras.MissingExtraError: bcls.{name} needs torch: pip install "bcls[train]"'


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command):
    done = bcls(command, "--help")
    assert done.returncode == 0, done.stderr
    assert f"usage: bcls {command}" in done.stdout


def test_data_check(dataset):
    done = bcls("data", "check", dataset / "d", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_relevance_and_metrics():
    code = """
import numpy as np
from bcls import relevance
from bcls.evaluation import kendall, ndcg, recalls
vectors = np.eye(3, 5, dtype=np.float32)
labels = relevance(vectors, vectors, [0, 1, 2], caption_image=[0, 1, 2])
tau = round(kendall(labels, labels)["i2t_tau_b"], 9)
print(recalls(labels, [0, 1, 2])["rsum"], tau, ndcg(labels, labels)["i2t_ndcg"])
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["600.0", "1.0", "1.0"]


def test_wordllama_labels(dataset):
    pytest.importorskip("wordllama", reason='needs pip install "bcls[text]"')
    done = bcls("labels", "embed", dataset / "d", "--encoder", "wordllama", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["captions"] == 8


def test_evaluate_and_compare_saved_scores(dataset):
    done = bcls("evaluate", "--similarity", dataset / "a.npy", "--data", dataset / "d", "--json")
    assert done.returncode == 0, done.stderr
    assert "rsum" in json.loads(done.stdout)
    done = bcls("compare", dataset / "a.npy", dataset / "b.npy", "--data", dataset / "d", "--json")
    assert done.returncode == 0, done.stderr


def test_training_names_the_missing_extra(dataset):
    done = bcls("train", "--data", dataset / "d", "--out", dataset / "run")
    assert done.returncode == 2
    assert 'pip install "bcls[train]"' in done.stderr
    assert done.stderr.count("\n") == 1
