"""Two processes with half a batch each learn what one with the whole batch learns."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.distributed_job import CASES
from tests.training.factories import make_data

ROOT = Path(__file__).parents[2]


def launch(ranks, *words):
    """Run the job in so many processes that talk through gloo, and wait for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    jobs = []
    for rank in range(ranks):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        if ranks > 1:
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "ACCELERATE_USE_CPU": "true"}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(ranks)}
        command = [sys.executable, "-m", "tests.training.distributed_job", *map(str, words)]
        jobs.append(subprocess.Popen(command, env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True))
    for job in jobs:
        _, printed = job.communicate(timeout=120)
        assert job.returncode == 0, printed


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Where one process and two have left their results."""
    folder = tmp_path_factory.mktemp("ranks")
    make_data(folder / "data" / "vectors")
    make_data(folder / "data" / "regions", regions=4)
    launch(1, folder / "data", folder / "one")
    launch(2, folder / "data", folder / "two")
    return folder / "one", folder / "two"


@pytest.mark.parametrize("model", [model for model, _, _ in CASES])
def test_value_and_gradient_equal_those_of_one_process(ended, model):
    one, two = (load_file(folder / model) for folder in ended)
    assert one.keys() == two.keys()
    assert one["value"] > 0
    assert any(name not in {"value", "similarity"} and value.abs().max() > 1e-4 for name, value in one.items())
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-6, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("name", ["micro", "streaming"])
def test_micro_batches_and_streaming_give_the_gradients_of_one_process(ended, name):
    expected, found = load_file(ended[0] / "vsepp"), load_file(ended[1] / name)
    expected["spread"] = expected.pop("similarity").std()
    assert found.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(
            found[key], expected[key], rtol=1e-5, atol=1e-6, msg=lambda text, k=key: f"{k}: {text}"
        )


def test_a_run_of_two_processes_has_the_weights_of_one_process(ended):
    for run in ("run", "micro-run"):
        for name in ("last", "best"):
            one = load_file(ended[0] / "run" / "checkpoints" / name / "model.safetensors")
            two = load_file(ended[1] / run / "checkpoints" / name / "model.safetensors")
            for key in one:
                torch.testing.assert_close(two[key], one[key], rtol=1e-4, atol=1e-5)
    lines = [(folder / "run" / "metrics.jsonl").read_text().count("\n") for folder in ended]
    assert lines[0] == lines[1]


def test_torchrun_on_a_machine_without_a_gpu_needs_no_device(tmp_path):
    data, out = make_data(tmp_path / "data"), tmp_path / "run"
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "bcls"]
    command += ["train", "--data", data, "--out", out, "--features", "made", "--labels", "none", "--epochs", "1"]
    command += ["--loss.name", "triplet-sn", "--model.width", "8", "--word-threshold", "1", "--batch", "8", "--json"]
    ended = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["epochs"] == 1  # printed by one of them
    environment = json.loads((out / "environment.json").read_text())
    assert [part["processes"] for part in environment["parts"]] == [2]
